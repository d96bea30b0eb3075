"""Boxes of masks against a loop over pixels; run lengths and polygons against the COCO tools."""

import numpy as np
import pytest
import torch

from pyramidvit.geometry import (
    decode_rle,
    encode_mask,
    encode_window,
    mask_to_polygons,
    masks_to_boxes,
    polygons_to_rle,
    rle_area,
    rle_box,
    rle_counts,
    rle_from_counts,
)
from pyramidvit.types import Rle


def test_boxes_are_tight_with_exclusive_right_and_lower_edges():
    masks = torch.zeros(3, 7, 9, dtype=torch.bool)
    masks[0, 5, 3] = True
    masks[1] = True
    masks[2, 1, 8] = masks[2, 6, 0] = True
    assert masks_to_boxes(masks).tolist() == [[3, 5, 4, 6], [0, 0, 9, 7], [0, 1, 9, 7]]


def test_boxes_equal_a_loop_over_pixels():
    masks = torch.rand(50, 11, 6, generator=torch.Generator().manual_seed(0)) < 0.05
    masks = masks[masks.flatten(1).any(1)]
    for mask, box in zip(masks, masks_to_boxes(masks).tolist(), strict=True):
        pixels = [(x, y) for y in range(11) for x in range(6) if mask[y, x]]
        columns, rows = [x for x, _ in pixels], [y for _, y in pixels]
        assert box == [min(columns), min(rows), max(columns) + 1, max(rows) + 1]


def test_no_objects_give_no_boxes():
    assert masks_to_boxes(torch.zeros(0, 4, 4, dtype=torch.bool)).shape == (0, 4)


def test_an_object_without_pixels_and_a_wrong_shape_are_errors():
    with pytest.raises(ValueError, match="1 of 2 objects"):
        masks_to_boxes(torch.stack((torch.zeros(4, 4), torch.ones(4, 4))).bool())
    with pytest.raises(ValueError, match=r"\(4, 4\)"):
        masks_to_boxes(torch.ones(4, 4).bool())


def random_masks(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    masks = []
    for number in range(count):
        height, width = (int(side) for side in torch.randint(1, 40, (2,), generator=generator))
        fine = torch.rand(height, width, generator=generator) < torch.rand((), generator=generator)
        blocks = (torch.rand(height // 8 + 1, width // 8 + 1, generator=generator) < 0.5).repeat_interleave(8, 0).repeat_interleave(8, 1)
        masks.append(fine if number % 2 else blocks[:height, :width])
    return [torch.zeros(3, 5).bool(), torch.ones(3, 5).bool(), *masks]


def random_polygons(seed: int) -> list[np.ndarray]:
    """One to three outlines that cross themselves and leave the picture; some on whole or tenths of pixels, some with a point twice."""
    rng = np.random.default_rng(seed)
    polygons = [np.round(rng.uniform(-10, 50, (rng.integers(3, 9), 2)), seed % 4) for _ in range(rng.integers(1, 4))]
    polygons[0][1] = polygons[0][seed % 2]
    return polygons


def test_run_lengths_of_a_small_mask_are_the_known_ones():
    mask = torch.tensor([[1, 0, 0], [0, 0, 1]]).bool()
    rle = encode_mask(mask)
    assert rle_counts(rle).tolist() == [0, 1, 4, 1]
    assert rle == rle_from_counts((2, 3), [0, 1, 4, 1]) == Rle((2, 3), b"0140")
    assert decode_rle(rle).equal(mask)


def test_masks_come_back_from_run_lengths_with_their_areas_and_boxes():
    for mask in random_masks(100):
        rle = encode_mask(mask)
        assert decode_rle(rle).equal(mask)
        assert rle_area(rle) == int(mask.sum())
        assert rle_box(rle) == (tuple(masks_to_boxes(mask[None])[0].tolist()) if mask.any() else None)


def test_run_lengths_equal_those_of_the_coco_tools():
    coco = pytest.importorskip("pycocotools.mask")
    for mask in random_masks(200):
        reference = coco.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
        assert encode_mask(mask).counts == reference["counts"]


def test_long_runs_and_large_changes_survive():
    counts = [0, 70_000_000, 5, 1, 29_999_989, 4, 1]
    assert rle_counts(rle_from_counts((10_000, 10_000), counts)).tolist() == counts


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (b"", "damaged"),
        (b"\xff0", "damaged"),
        (b"o", "damaged"),
        (b"ooooooooo0", "too large"),
        (b"05", "add up to 2 x 3"),
        (b"0N", "0 or more"),
    ],
)
def test_damaged_run_lengths_are_refused(counts: bytes, words: str):
    """Before any memory is taken for the mask."""
    with pytest.raises(ValueError, match=words):
        decode_rle(Rle((2, 3), counts))


def test_plain_run_lengths_that_do_not_fill_the_mask_are_refused():
    for counts in ([0, 5], [0, 7], [-1, 7], [], [2**62, 2**62]):
        with pytest.raises(ValueError, match="2 x 3"):
            rle_from_counts((2, 3), counts)


def test_a_rectangle_covers_its_pixels_and_a_union_counts_once():
    square, beside = np.array([2, 1, 5, 1, 5, 4, 2, 4.0]), np.array([[4, 2], [7, 2], [7, 3], [4, 3.0]])
    mask = torch.zeros(6, 9).bool()
    mask[1:4, 2:5] = True
    assert decode_rle(polygons_to_rle([square], (6, 9))).equal(mask)
    mask[2:3, 4:7] = True
    assert decode_rle(polygons_to_rle([square, beside], (6, 9))).equal(mask)
    assert rle_area(polygons_to_rle([], (6, 9))) == 0


def test_polygons_are_drawn_as_by_the_coco_tools():
    """Bit for bit, so that average precision is too."""
    coco = pytest.importorskip("pycocotools.mask")
    for seed in range(300):
        polygons, size = random_polygons(seed), (20 + seed % 20, 50 - seed % 31)
        reference = coco.merge(coco.frPyObjects([polygon.ravel().tolist() for polygon in polygons], *size))
        assert polygons_to_rle(polygons, size).counts == reference["counts"], seed


def test_odd_polygons_are_refused():
    for polygon, words in (
        ([1, 1, 2, 2], "three points"),
        ([1, 1, 2, 2, float("nan"), 1], "not finite"),
        ([1, 1, 1e300, 2, 3, 1], "beyond"),
        ([0, 0, 1e6, 1e6] * 20, "long outline"),
    ):
        with pytest.raises(ValueError, match=words):
            polygons_to_rle([np.array(polygon, float)], (8, 8))


def test_outlines_of_a_mask_give_the_mask_back_with_its_holes_filled():
    ring = torch.ones(5, 6).bool()
    ring[2, 2:4] = False
    apart = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1]]).bool()  # two touch at a corner
    assert [outline.tolist() for outline in mask_to_polygons(torch.ones(2, 3).bool())] == [[[0, 0], [3, 0], [3, 2], [0, 2]]]
    assert len(mask_to_polygons(ring)) == 1
    assert len(mask_to_polygons(apart)) == 3
    for mask, filled in ((ring, torch.ones(5, 6).bool()), (apart, apart), (torch.zeros(4, 4).bool(), torch.zeros(4, 4).bool())):
        assert decode_rle(polygons_to_rle(mask_to_polygons(mask), (mask.shape[0], mask.shape[1]))).equal(filled)


@pytest.mark.parametrize("window", [(0, 0, 7, 9), (0, 3, 7, 4), (2, 1, 3, 5), (4, 8, 3, 1), (3, 3, 0, 0)])
def test_a_mask_in_a_window_is_that_of_the_whole_picture(window: tuple[int, int, int, int]) -> None:
    """Also where a run goes on from the bottom of a column to the top of the next."""
    top, left, height, width = window
    part = torch.rand(height, width, generator=torch.Generator().manual_seed(0)) < 0.7
    whole = torch.zeros(7, 9, dtype=torch.bool)
    whole[top : top + height, left : left + width] = part
    assert encode_window(part, top, left, (7, 9)) == encode_mask(whole)
