"""Anchor boxes: the same few boxes around every cell of a map.

Conventions of MMDetection: sides are not rounded, centres lie at whole multiples of the level's stride. A anchors per cell, H W cells;
boxes are xyxy in input pixels.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

PADDED_TO = 32
"""Pictures are padded to multiples of this; anchors further away from a picture belong to padding for the batch's sake."""


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Float[Tensor, "A 4"]:
    """Boxes around (0, 0): for every ratio (height / width), one per size, of that area ** 0.5."""
    sides = [(size / sqrt(ratio) / 2, size * sqrt(ratio) / 2) for ratio in ratios for size in sizes]
    return torch.tensor([(-x, -y, x, y) for x, y in sides], dtype=torch.float32)


def grid_anchors(cell: Float[Tensor, "A 4"], grid: tuple[int, int], stride: int) -> Float[Tensor, "N 4"]:
    """Anchors of all cells of a (height, width) grid, N = H * W * A: row by row, then by anchor."""
    y = torch.arange(grid[0], device=cell.device, dtype=cell.dtype) * stride
    x = torch.arange(grid[1], device=cell.device, dtype=cell.dtype) * stride
    ys, xs = y[:, None].expand(grid), x.expand(grid)
    return (torch.stack((xs, ys, xs, ys), -1)[:, :, None] + cell).reshape(-1, 4)


def cells_of(valid: tuple[int, int], stride: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a level that belong to a picture of that (height, width), its own padding to multiples of 32 included."""
    rows, columns = (-(-(-(-side // PADDED_TO) * PADDED_TO) // stride) for side in valid)
    return min(rows, grid[0]), min(columns, grid[1])
