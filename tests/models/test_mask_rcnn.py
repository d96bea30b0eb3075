"""Mask R-CNN's parts against plain ones, and that it learns."""

import pytest
import torch
import torch.nn.functional as F

from pyramidvit.models import mask_rcnn, masks
from pyramidvit.models.mask_rcnn import MaskRCNN, MaskRCNNConfig
from pyramidvit.models.masks import crop_masks, paste_masks, paste_windows
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.models.roi_heads import MaskHead, levels_for, pool_regions
from pyramidvit.models.rpn import RPNConfig, propose
from pyramidvit.types import BoxTarget

TINY = PVTv2Config(widths=(16, 24, 32, 40), depths=(1, 1, 1, 1), heads=(1, 1, 1, 1), expansions=(2, 2, 2, 2), drop_path_rate=0.0)
CONFIG = MaskRCNNConfig(
    width=16, box_hidden=32, mask_depth=1, samples=32, rpn=RPNConfig(candidates=50, training_candidates=80, proposals=40, anchor_scale=4)
)


def network(num_classes=2):
    torch.manual_seed(0)
    return MaskRCNN(PVTv2(TINY), num_classes, CONFIG)


def disc(size, centre, radius):
    y, x = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    return (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2


def boxes_in(size, count, seed=0):
    H, W = size
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)) * torch.tensor([W, H])
    return torch.cat((corners.amin(1), corners.amax(1) + 1), 1)


def test_pasting_is_bilinear_at_pixel_centres():
    torch.manual_seed(0)
    probabilities, boxes, size = torch.rand(8, 28, 28), boxes_in((50, 70), 8), (50, 70)
    y, x = torch.meshgrid(torch.arange(50) + 0.5, torch.arange(70) + 0.5, indexing="ij")
    for window, mask, (x0, y0, x1, y1) in zip(paste_windows(probabilities, boxes, size), probabilities, boxes.tolist(), strict=True):
        grid = torch.stack(((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)), -1) * 2 - 1
        want = F.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]
        h, w = window.probabilities.shape
        inside = want[window.top : window.top + h, window.left : window.left + w]
        torch.testing.assert_close(window.probabilities, inside, rtol=1e-3, atol=1e-3)
        assert (want >= 0.5).sum() == (inside >= 0.5).sum()


def test_pasting_boxes_that_leave_the_picture_or_have_no_area():
    boxes = torch.tensor([[-20.0, -5, 10, 12], [30, 30, 90, 90], [5, 5, 5, 20], [100, 100, 120, 120]])
    pasted = paste_masks(torch.ones(4, 28, 28), boxes, (40, 50))
    assert pasted.flatten(1).sum(1).tolist() == [10 * 12, 20 * 10, 0, 0]
    assert paste_masks(torch.ones(0, 28, 28), torch.zeros(0, 4), (40, 50)).shape == (0, 40, 50)


def test_cropping_undoes_pasting():
    truth = torch.stack([disc((60, 80), (30, 40), 18), disc((60, 80), (20, 20), 9)])
    boxes = torch.tensor([[22.0, 12, 58, 48], [11, 11, 29, 29], [15, 10, 60, 50]])
    index = torch.tensor([0, 1, 0])
    crops = crop_masks(truth, index, boxes, 28)
    assert set(crops.unique().tolist()) == {0, 1}
    back = paste_masks(crops, boxes, (60, 80))
    for got, want, (x0, y0, x1, y1) in zip(back, truth[index], boxes.int().tolist(), strict=True):
        want = want & torch.zeros_like(want).index_put((torch.arange(y0, y1)[:, None], torch.arange(x0, x1)), torch.tensor(True))
        assert (got & want).sum() / (got | want).sum() > 0.93


def test_cropping_many_masks_in_pieces(monkeypatch):
    truth = torch.stack([disc((40, 40), (y, 20), 10) for y in (10, 15, 20, 25, 30)])
    boxes, index = boxes_in((40, 40), 30), torch.arange(30) % 5
    whole = crop_masks(truth, index, boxes, 14)
    monkeypatch.setattr(masks, "PIXELS_AT_ONCE", 2 * 40 * 40)
    assert torch.equal(crop_masks(truth, index, boxes, 14), whole)
    assert crop_masks(truth, index[:0], boxes[:0], 14).shape == (0, 14, 14)


def test_regions_come_back_in_their_order():
    """Whatever level and picture each is read from."""
    torch.manual_seed(0)
    levels = [torch.randn(2, 3, 64 >> i, 64 >> i) for i in range(4)]
    boxes, image = boxes_in((256, 256), 40), torch.arange(40) % 2
    assert len(levels_for(boxes, 4).unique()) > 2
    together = pool_regions(levels, (4, 8, 16, 32), boxes, image, 7)
    for i in range(40):
        torch.testing.assert_close(together[i : i + 1], pool_regions(levels, (4, 8, 16, 32), boxes[i : i + 1], image[i : i + 1], 7))


def test_each_region_gets_the_mask_of_its_class():
    head = MaskHead(4, 1, 3).eval()
    x = torch.randn(3, 4, 14, 14)
    one_by_one = torch.cat([head(x[i : i + 1], torch.tensor([label])) for i, label in enumerate((2, 0, 1))])
    torch.testing.assert_close(head(x, torch.tensor([2, 0, 1])), one_by_one)
    assert head(x[:0], torch.tensor([], dtype=torch.int64)).shape == (0, 28, 28)


def test_true_boxes_are_among_the_regions_that_learn():
    """Else a network without good proposals would never see an object."""
    objects = mask_rcnn.Objects(torch.tensor([[2.0, 3, 30, 31], [40, 41, 60, 62]]), torch.tensor([0, 1]), torch.zeros(0, 4), None)
    proposals = boxes_in((500, 500), 200) + 100
    regions, matches = mask_rcnn._regions(proposals, objects, CONFIG)
    assert len(regions) == CONFIG.samples
    for number, box in enumerate(objects.boxes):
        assert (regions[matches == number] == box).all()
        assert (matches == number).sum() == 1


def test_proposals_in_training_and_evaluation():
    with torch.inference_mode():
        outputs = network()(torch.randn(2, 3, 96, 96))
    for training in (False, True):
        found = propose(outputs.maps, CONFIG.rpn, [(96, 96), (50, 60)], training)
        assert all(0 < len(one.boxes) <= CONFIG.rpn.proposals for one in found)
        assert (found[1].boxes <= torch.tensor([60, 50, 60, 50])).all()


def test_no_detection_at_all_has_no_masks_either():
    outputs = network()(torch.randn(1, 3, 64, 64))
    quiet = outputs._replace(config=MaskRCNNConfig(score_threshold=1.0, rpn=CONFIG.rpn))
    found = mask_rcnn.detect(quiet, [(64, 64)])[0]
    assert found.masks is not None
    assert (found.boxes.shape, found.masks.shape) == ((0, 4), (0, 28, 28))


@pytest.mark.parametrize("num_classes", [1, 80])
def test_masks_begin_undecided(num_classes):
    """Whatever the number of classes: the loss starts near log 2."""
    torch.manual_seed(0)
    head = MaskHead(64, 2, num_classes)
    with torch.inference_mode():
        assert head(torch.randn(8, 64, 14, 14), torch.zeros(8, dtype=torch.int64)).std() < 0.5


@pytest.mark.slow
def test_one_object_is_learned():
    """A disc of one class on grey: box and mask are found where they are."""
    model, size = network(1), (64, 64)
    mask = disc(size, (30, 36), 16)
    x = torch.zeros(1, 3, *size)
    x[:, :, mask] = 2
    target = BoxTarget(torch.tensor([[20.0, 14, 52, 46]]), torch.tensor([0]), mask[None])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        loss = torch.stack(list(mask_rcnn.losses(model(x), [target], [size]).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = mask_rcnn.detect(model.eval()(x), [size])[0]
    assert found.masks is not None
    assert found.scores[0] > 0.5
    assert (found.boxes[0] - target.boxes[0]).abs().max() < 4
    pasted = paste_masks(found.masks[:1], found.boxes[:1], size)[0]
    assert (pasted & mask).sum() / (pasted | mask).sum() > 0.85
