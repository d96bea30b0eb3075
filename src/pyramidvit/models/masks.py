"""Masks on a small grid over each box ↔ masks of whole pictures. N objects, S cells per side of the grid; boxes are xyxy in pixels."""

from collections.abc import Iterator
from math import ceil, floor
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchvision.ops import roi_align

PIXELS_AT_ONCE = 2**24
"""Float pixels that are held at once: 64 MB."""
THRESHOLD = 0.5
"""Probability from which a pixel belongs to an object."""


class Window(NamedTuple):
    """Probabilities (h, w) of a part of a picture, whose upper left pixel is in row ``top`` and column ``left``; none elsewhere."""

    top: int
    left: int
    probabilities: Tensor


def paste_windows(probabilities: Float[Tensor, "N S S"], boxes: Float[Tensor, "N 4"], size: tuple[int, int]) -> Iterator[Window]:
    """The mask of each object on the pixels of a picture of (height, width) ``size``, only around its box.

    Pixel centres are found in the box to fractions of a cell, and between cells probabilities are bilinear, with zeros around the grid.
    """
    H, W = size
    S = probabilities.shape[-1]
    for grid, box, (x0, y0, x1, y1) in zip(probabilities, boxes.double(), boxes.tolist(), strict=True):
        left, right = max(floor(x0) - 1, 0), min(ceil(x1) + 1, W)
        top, bottom = max(floor(y0) - 1, 0), min(ceil(y1) + 1, H)
        if right <= left or bottom <= top or x1 <= x0 or y1 <= y0:
            yield Window(0, 0, grid.new_zeros(0, 0))
            continue
        across = _weights(left, right, box[0], box[2], S).to(grid)  # (w, S)
        down = _weights(top, bottom, box[1], box[3], S).to(grid)  # (h, S)
        yield Window(top, left, down @ grid @ across.T)


def _weights(first: int, end: int, low: Tensor, high: Tensor, cells: int) -> Float[Tensor, "n S"]:
    """Share of each of the grid's cells in the pixels ``first`` to ``end``, along one axis of a box from ``low`` to ``high``."""
    centres = torch.arange(first, end, device=low.device) + 0.5
    place = (centres - low) / (high - low) * cells - 0.5
    return (1 - (place[:, None] - torch.arange(cells, device=low.device)).abs()).clamp(min=0)


def paste_masks(probabilities: Float[Tensor, "N S S"], boxes: Float[Tensor, "N 4"], size: tuple[int, int]) -> Bool[Tensor, "N H W"]:
    """Masks of whole pictures, (height, width) ``size``; `paste_windows` needs less memory."""
    masks = torch.zeros(len(boxes), *size, dtype=torch.bool, device=boxes.device)
    for mask, (top, left, window) in zip(masks, paste_windows(probabilities, boxes, size), strict=True):
        mask[top : top + window.shape[0], left : left + window.shape[1]] = window >= THRESHOLD
    return masks


def crop_masks(masks: Bool[Tensor, "M H W"], index: Int[Tensor, " N"], boxes: Float[Tensor, "N 4"], side: int) -> Float[Tensor, "N S S"]:
    """What a mask head should give for ``boxes``: the masks with that ``index``, averaged over a grid of ``side`` cells, and 0 or 1."""
    crops = boxes.new_zeros(len(boxes), side, side)
    order = index.unique()
    for some in order.split(max(1, PIXELS_AT_ONCE // max(masks[0].numel(), 1)) if len(order) else 1):
        here = torch.isin(index, some).nonzero().flatten()
        pixels = masks[some.to(masks.device)].to(boxes.device, boxes.dtype)[:, None]
        place = torch.searchsorted(some, index[here]).to(boxes.dtype)
        crops[here] = roi_align(pixels, torch.cat((place[:, None], boxes[here]), 1), side, aligned=True)[:, 0]
    return (crops >= THRESHOLD).to(boxes.dtype)
