"""Boxes as offsets from other boxes: shifts in units of their sides, and logarithms of the sides' ratios. N boxes, xyxy pixels."""

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Float
from torch import Tensor

MAX_LOG_RATIO = log(1000 / 16)
"""A side grows or shrinks at most this much, so that no exponential overflows."""
RPN_DEVIATIONS = (1.0, 1.0, 1.0, 1.0)
ROI_DEVIATIONS = (0.1, 0.1, 0.2, 0.2)
"""What offsets are divided by, in the second stage of Mask R-CNN."""


def encode(
    origins: Float[Tensor, "N 4"], boxes: Float[Tensor, "N 4"], deviations: Sequence[float] = RPN_DEVIATIONS
) -> Float[Tensor, "N 4"]:
    """Offsets (dx, dy, dw, dh) that lead from ``origins`` to ``boxes``; both need sides above 0."""
    start, sides = origins[:, :2], origins[:, 2:] - origins[:, :2]
    target_sides = boxes[:, 2:] - boxes[:, :2]
    shift = (boxes[:, :2] - start + (target_sides - sides) / 2) / sides
    return torch.cat((shift, (target_sides / sides).log()), 1) / boxes.new_tensor(deviations)


def decode(
    origins: Float[Tensor, "N 4"],
    deltas: Float[Tensor, "N 4"],
    limits: tuple[int, int],
    deviations: Sequence[float] = RPN_DEVIATIONS,
) -> Float[Tensor, "N 4"]:
    """Boxes that ``deltas`` lead to from ``origins``, cut to a picture of (height, width) ``limits``."""
    H, W = limits
    boxes = shifted(origins, deltas, deviations)
    return torch.minimum(boxes.clamp_(min=0), boxes.new_tensor((W, H, W, H)))


def shifted(
    origins: Float[Tensor, "*N 4"], deltas: Float[Tensor, "*N 4"], deviations: Sequence[float] = RPN_DEVIATIONS
) -> Float[Tensor, "*N 4"]:
    """Boxes that ``deltas`` lead to from ``origins``, wherever that is."""
    deltas = deltas * deltas.new_tensor(deviations)
    sides = origins[..., 2:] - origins[..., :2]
    centres = (origins[..., :2] + origins[..., 2:]) / 2 + sides * deltas[..., :2]
    half = sides * deltas[..., 2:].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() / 2
    return torch.cat((centres - half, centres + half), -1)


def has_area(boxes: Float[Tensor, "N 4"]) -> Tensor:
    """Which boxes (N,) have both sides above 0."""
    return (boxes[:, 2:] > boxes[:, :2]).all(1)
