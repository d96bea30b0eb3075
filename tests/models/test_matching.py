"""Which box learns which object, against a plain loop."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.ops import box_iou

from pyramidvit.models import matching
from pyramidvit.models.box_coder import ROI_DEVIATIONS, decode, encode
from pyramidvit.models.matching import BACKGROUND, IGNORED, Objects, learnable, match, sample
from pyramidvit.types import BoxTarget


def random_boxes(count, seed, size=200):
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)) * size
    return torch.cat((corners.amin(1), corners.amax(1) + 1), 1)


def objects(boxes, crowd=None):
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    crowd = torch.zeros(0, 4) if crowd is None else torch.tensor(crowd, dtype=torch.float32)
    return Objects(boxes, torch.zeros(len(boxes), dtype=torch.int64), crowd, None)


def slow_match(candidates, truth, positive, negative, best_from):
    iou = box_iou(candidates, truth)
    found = [BACKGROUND if row.max() < negative else IGNORED if row.max() < positive else int(row.argmax()) for row in iou]
    for number, column in enumerate(iou.T):
        if best_from is not None and column.max() >= best_from and column.max() > 0:
            for row in (column == column.max()).nonzero():
                found[int(row)] = number
    return torch.tensor(found)


@pytest.mark.parametrize("best_from", [None, 0, 0.3, 0.5])
@pytest.mark.parametrize("at_once", [2**21, 100, 1])
def test_equals_a_plain_loop_in_pieces_of_any_size(monkeypatch, best_from, at_once):
    monkeypatch.setattr(matching, "PAIRS_AT_ONCE", at_once)
    candidates, truth = random_boxes(300, 0), random_boxes(20, 1)
    got = match(candidates, objects(truth), 0.5, 0.4, best_from)
    assert torch.equal(got, slow_match(candidates, truth, 0.5, 0.4, best_from))
    assert (got >= 0).any()
    assert (got == IGNORED).any()


def test_an_object_that_nothing_overlaps_takes_no_anchor():
    far = objects([[500, 500, 510, 510]])
    assert (match(random_boxes(50, 0), far, 0.5, 0.4, best_from=0) == BACKGROUND).all()


def test_the_best_anchor_learns_an_object_smaller_than_all():
    """PB-80: an IoU of a fortieth is the best there is."""
    candidates = torch.tensor([[0.0, 0, 40, 40], [100, 100, 140, 140]])
    tiny = objects([[10, 10, 16, 16]])
    assert match(candidates, tiny, 0.5, 0.4, best_from=0).tolist() == [0, BACKGROUND]
    assert match(candidates, tiny, 0.5, 0.4).tolist() == [BACKGROUND, BACKGROUND]


def test_crowd_regions_are_neither_objects_nor_background():
    candidates = torch.tensor([[0.0, 0, 10, 10], [40, 40, 50, 50], [95, 95, 105, 105], [200, 200, 210, 210]])
    found = match(candidates, objects([[0, 0, 10, 10]], crowd=[[0, 0, 100, 100]]), 0.5, 0.4)
    assert found.tolist() == [0, IGNORED, BACKGROUND, BACKGROUND]  # an object inside the crowd stays one; a quarter inside is outside
    assert match(candidates, objects([], crowd=[[0, 0, 100, 100]]), 0.5, 0.4).tolist() == [IGNORED, IGNORED, BACKGROUND, BACKGROUND]


class Largest(TorchDispatchMode):
    """Notes the most numbers that any result holds."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and func is not torch.ops.aten.split.Tensor:
                self.numel = max(self.numel, tensor.numel())
        return out


def test_thousands_of_objects_in_a_fixed_amount_of_memory():
    """10,000 anchors and 3000 objects would be 30 million pairs."""
    candidates, truth = random_boxes(10_000, 0), random_boxes(3000, 1)
    with Largest() as largest:
        found = match(candidates, objects(truth), 0.5, 0.4, best_from=0)
    assert (found >= 0).sum() > 1000
    assert largest.numel <= matching.PAIRS_AT_ONCE + len(truth)


def test_what_can_be_learned():
    """PB-43: a box without area is no object, and nothing becomes NaN. PB-45: numbers that aren't finite are an error."""
    boxes = torch.tensor([[0.0, 0, 0, 0], [5, 5, 9, 9], [9, 9, 5, 5], [0, 0, 50, 50]])
    masks = torch.zeros(4, 60, 60, dtype=torch.bool)
    masks[1, 5:9, 5:9] = True
    target = BoxTarget(boxes, torch.tensor([0, 1, 0, 1]), masks, crowd=torch.tensor([False, False, False, True]))
    picture = learnable(target, 2, torch.device("cpu"))
    assert picture.boxes.tolist() == [[5, 5, 9, 9]]
    assert picture.labels.tolist() == [1]
    assert picture.crowd.tolist() == [[0, 0, 50, 50]]
    assert picture.masks is not None
    assert picture.masks.sum() == 16
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite"):
            learnable(BoxTarget(torch.tensor([[0, 0, value, 5]]), torch.tensor([0])), 2, torch.device("cpu"))


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_outside_the_classes(label):
    """PB-51: said in words, before any index is used."""
    with pytest.raises(ValueError, match="must be 0 to 1 for 2 classes"):
        learnable(BoxTarget(torch.tensor([[0.0, 0, 5, 5]]), torch.tensor([label])), 2, torch.device("cpu"))


def test_sampling_draws_from_the_global_generator():
    matches = torch.tensor([0] * 50 + [BACKGROUND] * 500 + [IGNORED] * 500)
    torch.manual_seed(3)
    positives, negatives = sample(matches, 64, 0.25)
    assert (len(positives), len(negatives)) == (16, 48)
    assert (matches[positives] >= 0).all()
    assert (matches[negatives] == BACKGROUND).all()
    torch.manual_seed(3)
    assert torch.equal(sample(matches, 64, 0.25)[1], negatives)
    assert not torch.equal(sample(matches, 64, 0.25)[1], negatives)
    positives, negatives = sample(matches[45:], 64, 0.25)  # background fills what objects leave
    assert (len(positives), len(negatives)) == (5, 59)


@pytest.mark.parametrize("deviations", [(1, 1, 1, 1), ROI_DEVIATIONS])
def test_decoding_undoes_encoding(deviations):
    origins, boxes = random_boxes(100, 0), random_boxes(100, 1)
    near = ((boxes[:, 2:] - boxes[:, :2]) / (origins[:, 2:] - origins[:, :2])).log().abs().amax(1) < 4
    got = decode(origins, encode(origins, boxes, deviations), (300, 300), deviations)
    torch.testing.assert_close(got[near], boxes[near], rtol=1e-4, atol=1e-2)
    assert near.sum() > 50
