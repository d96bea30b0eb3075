"""Tensors in the shape that a network needs: what may be fitted, and how. C channels; grids are (H, W) or (T, H, W)."""

import math
import re

import torch
from torch import Tensor

from pyramidvit.models.pos_embed import resize_table
from pyramidvit.weights.layouts.keymap import TABLES

CHANNELS = "fitted to this number of input channels"
TABLE = "position tables resized to this input size"
CLIPS = "made for clips out of those for pictures"

IN_TIME = ("frame_positions", "rel_pos_t")
"""Ours, which pictures have no need of; for clips they start at 0."""


def fit(key: str, tensor: Tensor, shape: torch.Size, *, inflate: bool = False) -> tuple[Tensor, list[str]] | None:
    """The tensor in the model's shape, and what had to be done for it beyond axes of length 1; None if nothing may be.

    With ``inflate``, convolutions of pictures become those of clips, see `inflated`.
    """
    done: list[str] = []
    stem = re.search(r"(^|\.)(stages\.0\.)?patches\.weight$", key) is not None
    if inflate and tensor.ndim + 1 == len(shape) and (stem or ".pool_" in key):
        tensor = inflated(tensor, shape[2])
        done.append(CLIPS)
    if tensor.shape == shape:
        return tensor, done
    if _without_ones(tensor.shape) == _without_ones(shape):
        return tensor.reshape(shape), done
    if stem and tensor.shape[:1] + tensor.shape[2:] == shape[:1] + shape[2:]:
        return adapt_stem(tensor, shape[1]), [*done, CHANNELS]
    table = (key.split(".")[-1] in TABLES or ".rel_pos_" in key) and tensor.ndim > 1 and tensor.numel() > 0
    if table and tensor.shape[-1] == shape[-1]:
        grid = _grid(tensor.shape[:-1], shape[:-1])
        if grid is not None:
            return resize_table(tensor.reshape(*grid, shape[-1]), shape[:-1]), done if grid == tuple(shape[:-1]) else [*done, TABLE]
    return None


def adapt_stem(weight: Tensor, in_chans: int) -> Tensor:
    """A first convolution (C, n, *kernel) for ``in_chans`` channels, with exactly the same response to grey pictures.

    Old channels are dealt to new ones in turn. Where several old ones meet they are added (one channel gets the sum of all); where an old
    one goes to several new ones it is divided among them.
    """
    n = weight.shape[1]
    if in_chans < n:
        return torch.stack([weight[:, j::in_chans].sum(1) for j in range(in_chans)], 1)
    order = torch.arange(in_chans) % n
    return weight[:, order] / order.bincount(minlength=n)[order].view(1, -1, *[1] * (weight.ndim - 2))


def inflated(weight: Tensor, frames: int) -> Tensor:
    """A convolution of pictures (C, n, kh, kw) as one of clips (C, n, ``frames``, kh, kw): as it was in the middle frame, 0 in the others,
    so that frames are seen one by one at first (MViT v2, section 4.3)."""
    clips = weight.new_zeros(*weight.shape[:2], frames, *weight.shape[2:])
    clips[:, :, frames // 2] = weight
    return clips


def _without_ones(shape: torch.Size) -> list[int]:
    return [side for side in shape if side != 1]


def _grid(shape: torch.Size, wanted: torch.Size) -> tuple[int, ...] | None:
    """The grid of a table's rows: its own axes, else a square where they fill one, else the wanted grid; None if they fill none."""
    if len(_without_ones(shape)) == len(wanted):
        return tuple(_without_ones(shape))
    rows, side = shape.numel(), math.isqrt(shape.numel())
    if len(wanted) == 1:
        return (rows,)
    if side * side == rows:
        return side, side
    return tuple(wanted) if rows == wanted.numel() else None
