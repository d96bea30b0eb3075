"""A word of warning where positions that were learned for one size are used at a very different one."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit.models.layers import Backbone

TABLES = ("positions", "class_position", "frame_positions", "pos_embed")
"""Ends of the names of positions that were learned one by one, ours and timm's."""
FAR = 2.0
"""A side that is more than this many times as long as the trained one, or shorter by as much."""


def warn_when_far(model: nn.Module, backbone: Backbone, trained: tuple[int, int] | None) -> None:
    """Make a network with tables of positions warn, once, when it predicts from an input far from what its weights were trained for.

    ``trained`` is that height and width, if known; the declared input counts otherwise, as it does for the number of frames. Training at
    another size is no mistake but the remedy, so it brings no warning.
    """
    if any(_is_table(key) for key, _ in backbone.named_parameters()):
        _, *declared = backbone.input_shape
        model.register_forward_pre_hook(_Watch((*declared[:-2], *(trained or declared[-2:]))))


def _is_table(key: str) -> bool:
    return key.split(".")[-1] in TABLES or "rel_pos" in key or "relative_position" in key


class _Watch:
    def __init__(self, trained: tuple[int, ...]) -> None:
        self.trained, self.said = trained, False

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.said or module.training or torch.compiler.is_compiling() or not inputs or not isinstance(inputs[0], Tensor):
            return
        size = inputs[0].shape[2:]
        if len(size) == len(self.trained) and any(max(a / b, b / a) > FAR for a, b in zip(size, self.trained, strict=True) if a and b):
            self.said = True
            got, trained = ("x".join(map(str, sides)) for sides in (size, self.trained))
            warnings.warn(
                f"These weights were trained on inputs of {trained}, and this one has {got}: positions are resized more than {FAR:g} times "
                "along a side, and predictions may suffer. Use a size nearer to the trained one, or train on at this size.",
                stacklevel=3,
            )
