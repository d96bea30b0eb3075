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
    dtype = torch.uint8 if outputs.logits.shape[1] <= 255 else torch.int64
    maps = []
    for logits, inside, size in zip(outputs.logits.float(), valid, sizes or valid, strict=True):
        grid = logits.permute(1, 2, 0).contiguous()
        scales = [inside[axis] / size[axis] * grid.shape[axis] / outputs.size[axis] for axis in (0, 1)]
        rows, columns = (_neighbours(size[axis], scales[axis], grid.shape[axis], grid.device) for axis in (0, 1))
        maps.append(_best_classes(grid, rows, columns).to(dtype))
    return maps


class _Neighbours(NamedTuple):
    """For each of N pixel centres along an axis: the two cells around it, and the share of the second (bilinear)."""

    first: Tensor
    second: Tensor
    share: Tensor


def _neighbours(count: int, scale: float, limit: int, device: torch.device) -> _Neighbours:
    place = ((torch.arange(count, device=device) + 0.5) * scale - 0.5).clamp(min=0)
    first = place.long().clamp(max=limit - 1)
    return _Neighbours(first, (first + 1).clamp(max=limit - 1), place - first)


def _best_classes(grid: Float[Tensor, "h w K"], rows: _Neighbours, columns: _Neighbours) -> Tensor:
    """Best class (H, W) between the cells of a grid of logits. A class that is best in all four cells around a pixel is best there too,
    since interpolation weighs them; so logits are only enlarged along borders of classes."""
    best = grid.argmax(2)
    if grid.shape[2] <= 32767:
        best = best.short()
    corners = [best.index_select(0, y).index_select(1, x) for y in rows[:2] for x in columns[:2]]
    labels = corners[0].clone()
    open_y, open_x = torch.stack([corner != labels for corner in corners[1:]]).any(0).nonzero(as_tuple=True)
    step = max(1, SCORES_AT_ONCE // grid.shape[2])
    for y, x in zip(open_y.split(step), open_x.split(step), strict=True):
        top, bottom, down = (side[y] for side in rows)
        left, right, across = (side[x] for side in columns)
        west, east = (torch.lerp(grid[top, side], grid[bottom, side], down[:, None]) for side in (left, right))
        labels[y, x] = torch.lerp(west, east, across[:, None]).argmax(1).to(labels.dtype)
    return labels
