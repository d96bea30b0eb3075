"""Tables of positions, fitted to any grid. Shapes: C channels or head dim; a grid is (H, W) or (T, H, W)."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def resize_table(table: Float[Tensor, "*old C"], grid: Sequence[int]) -> Float[Tensor, "*new C"]:
    """A table for another grid, interpolated linearly along every axis (cell centres, no smoothing); the table itself at its own size.

    A graph exported for any size always interpolates, which changes nothing at the table's own size.
    """
    if all(isinstance(side, int) for side in grid) and table.shape[:-1] == torch.Size(grid):
        return table
    mode = ("linear", "bilinear", "trilinear")[len(grid) - 1]
    return F.interpolate(table.movedim(-1, 0)[None], tuple(grid), mode=mode)[0].movedim(0, -1)


def relative_table(table: Float[Tensor, "L d"], queries: int, keys: int) -> Float[Tensor, "Q K d"]:
    """What a table of relative positions along one axis holds for every pair of a query and a key.

    A table of 2 n - 1 rows holds the distances from 1 - n to n - 1 on the finer of the two grids; one of another length is resized first.
    """
    finer: Any = torch.sym_max(queries, keys)  # in a graph exported for any size no decision is made yet
    table = resize_table(table, (2 * finer - 1,))
    query, key = torch.arange(queries, device=table.device)[:, None], torch.arange(keys, device=table.device)
    return table[query * finer // queries + (keys - 1 - key) * finer // keys]  # whole numbers: a quotient of floats may fall below its own


def relative_logits(
    q: Float[Tensor, "B *Q h d"], tables: Sequence[Float[Tensor, "_ d"]], keys: Sequence[int]
) -> list[Float[Tensor, "B *Q h _"]]:
    """Decomposed relative positions: for each axis the products of every query with the positions of that axis's rows of keys."""
    axes = "thw"[-len(keys) :]
    return [
        torch.einsum(f"b{axes}nd,{axis}kd->b{axes}nk", q, relative_table(table, q.shape[1 + i], keys[i]))
        for i, (axis, table) in enumerate(zip(axes, tables, strict=True))
    ]


def relative_bias(logits: Sequence[Float[Tensor, "B *Q h _"]]) -> Float[Tensor, "B h N M"]:
    """What the products of all axes add to the scores of every query with every key."""
    axes = len(logits)
    spread = [x.view(*x.shape[:-1], *[1] * i, -1, *[1] * (axes - 1 - i)) for i, x in enumerate(logits)]  # (B, *Q, h, 1, _, 1)
    bias = reduce(torch.add, spread)  # (B, *Q, h, *K)
    return bias.flatten(-axes).flatten(1, axes).transpose(1, 2)


def key_rows(keys: Sequence[int], like: Tensor) -> Float[Tensor, "M E"]:
    """For all keys of a grid in order, a 1 for each row that they are in: products with queries' logits, end to end, add up to the bias."""
    rows = []
    for i, side in enumerate(keys):
        one_of = torch.eye(side, dtype=like.dtype, device=like.device)
        rows.append(one_of.view(*[1] * i, side, *[1] * (len(keys) - 1 - i), side).expand(*keys, side))
    return torch.cat(rows, -1).flatten(0, -2)
