"""Large pictures in tiles: every pixel is covered, seams can't be seen, an object on a seam is one object."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.geometry import decode_rle, encode_mask, masks_to_boxes
from pyramidvit.tiling import Window, merge_detections, stitch_labels, tiles
from pyramidvit.types import Detections

CASES = [
    ((100, 130), (40, 40), 10),
    ((41, 97), (40, 32), 16),
    ((33, 20), (64, 64), 8),
    ((200, 40), (40, 50), 20),
    ((64, 65), (64, 64), 0),
    ((1, 7), (1, 2), 0),
]


@pytest.mark.parametrize(("size", "tile", "overlap"), CASES)
def test_tiles_cover_the_picture_and_share_the_overlap(size: tuple[int, int], tile: tuple[int, int], overlap: int):
    windows = tiles(size, tile, overlap)
    seen = torch.zeros(size)
    for window in windows:
        seen[window.slices] += 1
        assert window.size == (min(size[0], tile[0]), min(size[1], tile[1]))
        assert 0 <= window.top < window.bottom <= size[0]
        assert 0 <= window.left < window.right <= size[1]
    assert seen.min() >= 1
    for axis in (("top", "bottom"), ("left", "right")):
        spans = sorted({(getattr(w, axis[0]), getattr(w, axis[1])) for w in windows})
        assert all(end - start >= overlap for (_, end), (start, _) in pairwise(spans))


def test_no_more_tiles_than_needed():
    assert tiles((512, 512), (512, 512), 64) == [Window(0, 0, 512, 512)]
    assert tiles((512, 960), (512, 512), 64) == [Window(0, 0, 512, 512), Window(0, 448, 512, 960)]
    assert len(tiles((512, 961), (512, 512), 64)) == 3
    assert tiles((10, 10), (512, 512), 64) == [Window(0, 0, 10, 10)], "the tile is larger than the picture"


@pytest.mark.parametrize(("tile", "overlap"), [((64, 64), 33), ((64, 64), -1), ((0, 64), 0)])
def test_impossible_tiles_are_refused(tile: tuple[int, int], overlap: int):
    with pytest.raises(UserError, match=r"[Tt]iles of"):
        tiles((100, 100), tile, overlap)


def stitched(picture: Tensor, network, tile: tuple[int, int], overlap: int) -> Tensor:
    size = (picture.shape[1], picture.shape[2])
    windows = tiles(size, tile, overlap)
    return stitch_labels(size, windows, (network(picture[:, *window.slices]) for window in windows))


@pytest.mark.parametrize(("size", "tile", "overlap"), CASES)
def test_stitched_labels_equal_those_of_the_whole_picture(size: tuple[int, int], tile: tuple[int, int], overlap: int):
    """PB-103: equal to the untiled result; a network that looks at each pixel alone has the same logits in every tile."""
    picture = torch.randn(5, *size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(stitched(picture, lambda part: 3 * part, tile, overlap), picture.argmax(dim=0).to(torch.uint8))


def test_the_borders_of_tiles_are_left_out():
    """A network that looks up to a quarter of the overlap around each pixel is not disturbed by any seam."""
    picture = torch.randn(4, 150, 170, generator=torch.Generator().manual_seed(0))

    def smooth(part: Tensor) -> Tensor:
        return F.avg_pool2d(part[None], 9, 1, 4, count_include_pad=True)[0]

    assert torch.equal(stitched(picture, smooth, (64, 64), 16), smooth(picture).argmax(dim=0).to(torch.uint8))
    naive = torch.zeros(150, 170, dtype=torch.uint8)
    for window in tiles((150, 170), (64, 64), 16):
        naive[window.slices] = smooth(picture[:, *window.slices]).argmax(dim=0).to(torch.uint8)
    assert (naive != smooth(picture).argmax(dim=0)).float().mean() > 0.01, "without that, seams are seen"


def test_across_a_seam_one_answer_fades_into_the_other():
    """Two tiles that disagree by the same margin meet in the middle of what they share."""
    windows = tiles((8, 28), (8, 16), 4)
    left = torch.tensor([1.0, 0.0])[:, None, None].expand(2, 8, 16)
    assert stitch_labels((8, 28), windows, [left, left.flip(0)]).tolist() == [[0] * 14 + [1] * 14] * 8
    sure = 9 * left
    assert stitch_labels((8, 28), windows, [sure, left.flip(0)])[0].tolist() == [0] * 15 + [1] * 13, "the surer one reaches further"


def test_many_classes_have_room():
    logits = torch.zeros(300, 4, 4)
    logits[299] = 1
    labels = stitch_labels((4, 4), tiles((4, 4), (8, 8), 0), [logits])
    assert (labels.dtype, int(labels[0, 0])) == (torch.int64, 299)


def test_logits_that_do_not_fit_the_tiles_are_refused():
    windows = tiles((8, 28), (8, 16), 4)
    with pytest.raises(ValueError, match="got none"):
        stitch_labels((8, 28), windows, [torch.zeros(2, 8, 16)])
    with pytest.raises(ValueError, match=r"got \(2, 8, 15\)"):
        stitch_labels((8, 28), windows, [torch.zeros(2, 8, 15)] * 2)
    with pytest.raises(ValueError, match="more tiles"):
        stitch_labels((8, 28), windows, [torch.zeros(2, 8, 16)] * 3)


@pytest.mark.slow
def test_a_picture_of_24_megapixels_needs_little_memory():
    """PB-103: 21 classes at 6000x4000 would be 2 GB of logits at once; measured as the peak of a fresh process."""
    code = """
import resource, torch
from pyramidvit.tiling import stitch_labels, tiles
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
windows = tiles((4000, 6000), (1024, 1024), 128)
labels = stitch_labels((4000, 6000), windows, (torch.zeros(21, *window.size) for window in windows))
assert labels.shape == (4000, 6000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)
"""
    grown = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert grown < 600, f"{grown} MB"


SIZE = (300, 400)


def scene(*boxes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Masks (N, H, W) and labels (N,) from (x, y, right, bottom, label)."""
    masks = torch.zeros(len(boxes), *SIZE, dtype=torch.bool)
    for mask, (x, y, right, bottom, _) in zip(masks, boxes, strict=True):
        mask[y:bottom, x:right] = True
    return masks, torch.tensor([box[4] for box in boxes], dtype=torch.int64)


def look(window: Window, masks: Tensor, labels: Tensor, *, least: float = 0.1, with_masks: bool = True) -> Detections:
    """A perfect detector on one tile: what is visible of each object, if that is enough of it; the more, the surer."""
    visible = masks[:, *window.slices]
    shares = visible.flatten(1).sum(dim=1) / masks.flatten(1).sum(dim=1)
    seen = shares >= least
    order = shares[seen].argsort(descending=True)
    parts = visible[seen][order]
    rles = tuple(map(encode_mask, parts)) if with_masks else None
    scores = 0.5 + 0.4 * shares[seen][order]
    return Detections("tile", ("a", "b"), window.size, masks_to_boxes(parts), labels[seen][order], scores, rles)


def detect(masks: Tensor, labels: Tensor, tile: int = 120, overlap: int = 40, *, least: float = 0.1, with_masks: bool = True) -> Detections:
    windows = tiles(SIZE, (tile, tile), overlap)
    return merge_detections(
        "big.jpg", SIZE, windows, [look(window, masks, labels, least=least, with_masks=with_masks) for window in windows]
    )


def sorted_objects(detections: Detections) -> list[tuple[float, ...]]:
    return sorted((*box, label) for box, label in zip(detections.boxes.tolist(), detections.labels.tolist(), strict=True))


OBJECTS = {
    "whole in one tile": [(10, 10, 40, 40, 0)],
    "whole in two tiles": [(82, 30, 112, 60, 0)],
    "whole in four tiles": [(82, 92, 105, 118, 1)],
    "on a seam": [(60, 20, 140, 70, 0)],
    "on a corner": [(70, 80, 150, 150, 0)],
    "wider than a tile": [(20, 100, 380, 130, 0)],
    "larger than a tile both ways": [(30, 20, 370, 280, 1)],
    "two classes at one place": [(60, 20, 140, 70, 0), (60, 20, 140, 70, 1)],
    "neighbours of one class": [(60, 20, 140, 50, 0), (60, 55, 140, 85, 0)],
    "at the edges of the picture": [(0, 0, 30, 30, 0), (370, 270, 400, 300, 0), (150, 0, 230, 40, 0)],
    "many": [(x, y, x + 25, y + 18, (x + y) % 2) for x in range(5, 370, 31) for y in range(3, 280, 23)],
    "none": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("objects", OBJECTS.values(), ids=OBJECTS.keys())
def test_every_object_is_found_once_and_whole(objects: list[tuple[int, ...]]):
    masks, labels = scene(*objects)
    found = detect(masks, labels)
    assert sorted_objects(found) == sorted(tuple(map(float, box)) for box in objects)
    assert (found.path, found.size, found.classes) == ("big.jpg", SIZE, ("a", "b"))
    assert torch.equal(found.scores, found.scores.sort(descending=True).values)
    assert found.masks is not None
    for box, label, rle in zip(found.boxes, found.labels, found.masks, strict=True):
        index = objects.index((*map(int, box.tolist()), int(label)))
        assert torch.equal(decode_rle(rle), masks[index])


def test_masks_of_any_shape_are_joined_as_they_were():
    """A ring with a hole over four tiles and more; run lengths go in and come out, without bitmaps."""
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    radius = ((x - 190) ** 2 + (y - 140) ** 2).float().sqrt()
    ring = ((radius > 50) & (radius < 120))[None]
    found = detect(ring, torch.tensor([0]), least=0.01)
    assert len(found) == 1
    assert found.masks is not None
    assert torch.equal(decode_rle(found.masks[0]), ring[0])


def test_a_picture_that_fits_is_as_if_there_were_no_tiles():
    masks, labels = scene((10, 10, 40, 40, 0), (12, 12, 42, 42, 0), (10, 10, 40, 40, 1))
    windows = tiles(SIZE, (512, 512), 64)
    whole = look(windows[0], masks, labels)
    found = merge_detections("tile", SIZE, windows, [whole])
    assert torch.equal(found.boxes, whole.boxes)
    assert torch.equal(found.scores, whole.scores)
    assert found.masks == whole.masks


def test_boxes_without_masks_are_merged_too():
    masks, labels = scene((60, 20, 140, 70, 0))
    found = detect(masks, labels, with_masks=False)
    assert (sorted_objects(found), found.masks) == ([(60, 20, 140, 70, 0)], None)


def test_imprecise_boxes_on_seams_are_still_one_object():
    """Boxes are off by up to two pixels, differently in each tile; scores say nothing about which is whole."""
    generator = torch.Generator().manual_seed(0)
    objects = [(x, y, x + 36, y + 38, 0) for x in range(5, 300, 45) for y in range(3, 250, 47)] + [(330, 60, 390, 200, 0)]
    masks, labels = scene(*objects)
    windows, parts = tiles(SIZE, (120, 120), 40), list[Detections]()
    for window in windows:
        part = look(window, masks, labels, least=0.25, with_masks=False)
        boxes = part.boxes + torch.randint(-2, 3, part.boxes.shape, generator=generator)
        limit = torch.tensor([window.size[1], window.size[0]] * 2)
        scores = torch.rand(len(boxes), generator=generator).sort(descending=True).values
        parts.append(Detections("tile", part.classes, part.size, boxes.clamp(min=0).minimum(limit), part.labels, scores))
    found = merge_detections("big.jpg", SIZE, windows, parts)
    assert len(found) == len(objects)


def test_parts_that_do_not_fit_the_tiles_are_refused():
    windows = tiles(SIZE, (120, 120), 40)
    empty = look(windows[0], *scene())
    with pytest.raises(ValueError, match="1 parts for"):
        merge_detections("a", SIZE, windows, [empty])
    with pytest.raises(ValueError, match="needs detections of size"):
        merge_detections("a", SIZE, tiles(SIZE, (512, 512), 0), [empty])
