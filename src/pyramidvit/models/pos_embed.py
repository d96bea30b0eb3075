"""Tables of positions, fitted to any grid. Shapes: C channels or head dim; a grid is (H, W) or (T, H, W)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def resize_table(table: Float[Tensor, "*old C"], grid: Sequence[int]) -> Float[Tensor, "*new C"]:
    """A table for another grid, interpolated linearly along every axis (cell centres, no smoothing); the table itself at its own size."""
    if table.shape[:-1] == torch.Size(grid):
        return table
    mode = ("linear", "bilinear", "trilinear")[len(grid) - 1]
    return F.interpolate(table.movedim(-1, 0)[None], tuple(grid), mode=mode)[0].movedim(0, -1)
