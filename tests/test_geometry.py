"""Boxes of masks against a loop over pixels."""

import pytest
import torch

from pyramidvit.geometry import masks_to_boxes


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
