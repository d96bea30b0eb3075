"""Semantic FPN (Kirillov et al. 2019, https://arxiv.org/abs/1901.02446): all levels of a pyramid, brought to stride 4 and added up.

Conventions of MMSegmentation's FPN head, with which PVT was published. Shapes: B batch, C channels, K classes, H W input pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.fpn import PointConv, PyramidModel
from pyramidvit.models.layers import Backbone
from pyramidvit.models.matching import check_counts
from pyramidvit.types import MaskTarget

IGNORE = 255
"""Label of pixels that are neither learned nor counted."""
SCORES_AT_ONCE = 2**24
"""Class scores that are enlarged at once for a label map: 64 MB."""


@dataclass(frozen=True)
class SemanticFPNConfig:
    """Architecture; the defaults are those of the published PVT segmentors."""

    width: int = 256
    """Channels of the feature pyramid."""
    channels: int = 128
    """Channels of the head."""
    dropout: float = 0.1
    """Share of the head's channels that training leaves out."""
    strides: tuple[int, ...] = (4, 8, 16, 32)
    """Levels: input pixels per cell; the logits come at the first one."""


SMALL = SemanticFPNConfig(width=64, channels=64)
"""For CPUs and small data."""


class ConvNormReLU(nn.Module):
    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H W"]:
        return F.relu_(self.norm(self.conv(x)))


class SemanticFPNOutputs(NamedTuple):
    """``logits`` (B, K, H / 4, W / 4) for an input of (height, width) ``size``."""

    logits: Tensor
    size: tuple[int, int]


class SemanticFPN(PyramidModel):
    """Pictures (B, C, H, W) → class logits at stride 4, in training and evaluation alike."""

    def __init__(self, backbone: Backbone, num_classes: int, config: SemanticFPNConfig = SemanticFPNConfig()) -> None:
        super().__init__(backbone, num_classes, config.strides, config.width)
        self.config = config
        self.branches = nn.ModuleList()
        for i in range(len(config.strides)):  # each halving of the stride has a convolution; without any there is one as well
            widths = [config.width, *[config.channels] * max(i, 1)]
            self.branches.append(nn.ModuleList(ConvNormReLU(a, b) for a, b in pairwise(widths)))
        self.dropout = nn.Dropout2d(config.dropout)
        self.classes = PointConv(config.channels, num_classes)
        nn.init.normal_(self.classes.weight, 0, 0.01)
        nn.init.zeros_(self.classes.get_parameter("bias"))

    def forward(self, images: Float[Tensor, "B C H W"]) -> SemanticFPNOutputs:
        levels = self.pyramid(images)
        total = self.branches[0][0](levels[0])  # pyright: ignore[reportIndexIssue]
        for x, branch in zip(levels[1:], list(self.branches)[1:], strict=True):
            for layer in branch.children():
                x = F.interpolate(layer(x), scale_factor=2, mode="bilinear")
            if torch.compiler.is_compiling() or x.shape != total.shape:  # a graph for any size asks no questions
                x = F.interpolate(x, total.shape[2:], mode="bilinear")
            total = total + x
        return SemanticFPNOutputs(self.classes(self.dropout(total)), (images.shape[2], images.shape[3]))


def losses(outputs: SemanticFPNOutputs, targets: Sequence[MaskTarget], valid: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """Cross entropy at the input's size, averaged over all labelled pixels of the batch; 0 where none is labelled.

    ``targets`` (h, w) and ``valid`` (height, width) have the size of each picture inside the padded batch; padding counts as unlabelled.
    ValueError for labels outside the classes.
    """
    check_counts(len(outputs.logits), targets, valid)
    K = outputs.logits.shape[1]
    labels = torch.full((len(targets), *outputs.size), IGNORE)
    for picture, target, (height, width) in zip(labels, targets, valid, strict=True):
        picture[:height, :width] = target.labels
    if bool((wrong := (labels != IGNORE) & ((labels >= K) | (labels < 0))).any()):
        raise ValueError(f"{int(wrong.sum())} pixels have the label {int(labels[wrong][0])}, and {K} classes have 0 to {K - 1}.")
    logits = F.interpolate(outputs.logits.float(), outputs.size, mode="bilinear")
    total = F.cross_entropy(logits, labels.to(logits.device), ignore_index=IGNORE, reduction="sum")
    return {"pixels": total / (labels != IGNORE).sum().clamp(min=1)}


def logits_at_input_size(outputs: SemanticFPNOutputs, valid: Sequence[tuple[int, int]]) -> list[Float[Tensor, "K h w"]]:
    """Class logits of every pixel of each picture, without the padding below and to the right of its (height, width) ``valid``."""
    logits = F.interpolate(outputs.logits.float(), outputs.size, mode="bilinear")
    return [picture[:, :height, :width] for picture, (height, width) in zip(logits, valid, strict=True)]


def label_maps(
    outputs: SemanticFPNOutputs, valid: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]] | None = None
) -> list[Tensor]:
    """Best class of every pixel of each picture, uint8 (int64 for more than 255 classes), in a fixed amount of memory.

    ``valid`` is the (height, width) of each inside the padded batch, ``sizes`` those to enlarge them to (``valid`` if not given).
    """
    K = outputs.logits.shape[1]
    maps = []
    for logits, inside, size in zip(outputs.logits.float(), valid, sizes or valid, strict=True):
        step = max(1, SCORES_AT_ONCE // (K * size[1]))
        columns = _neighbours(size[1], inside[1] / size[1] * logits.shape[2] / outputs.size[1], logits.shape[2])
        rows = _neighbours(size[0], inside[0] / size[0] * logits.shape[1] / outputs.size[0], logits.shape[1])
        dtype = torch.uint8 if K <= 255 else torch.int64
        parts = [
            _between(_between(logits, 1, start), 2, columns).argmax(0).to(dtype)
            for start in zip(*(side.split(step) for side in rows), strict=True)
        ]
        maps.append(torch.cat(parts))
    return maps


def _neighbours(count: int, scale: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each of ``count`` pixel centres: the two cells around it, of ``limit``, and the share of the second (bilinear)."""
    place = ((torch.arange(count) + 0.5) * scale - 0.5).clamp(min=0)
    first = place.long().clamp(max=limit - 1)
    return first, (first + 1).clamp(max=limit - 1), place - first


def _between(x: Tensor, axis: int, neighbours: tuple[Tensor, ...]) -> Tensor:
    first, second, share = (side.to(x.device) for side in neighbours)
    shape = [1, 1, 1]
    shape[axis] = -1
    return torch.lerp(x.index_select(axis, first), x.index_select(axis, second), share.view(shape))
