"""Feature pyramid network (Lin et al. 2017, https://arxiv.org/abs/1612.03144), and what all models on top of one share.

Conventions of MMDetection's FPN, with which PVT was published. Shapes: B batch, C channels, H W grid; maps are finest first.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.kernels import linear
from pyramidvit.models.layers import Backbone, to_map, to_tokens

Extra = Literal["conv", "pool"]


class ConvReLU(nn.Conv2d):
    """A convolution, GroupNorm if ``groups`` are given, a ReLU; the size of the map stays."""

    def __init__(self, in_channels: int, width: int, kernel: int = 3, norm_groups: int = 0) -> None:
        super().__init__(in_channels, width, kernel, padding=kernel // 2)
        if norm_groups and width % norm_groups:
            raise ValueError(f"A width of {width} channels can't be normalised in {norm_groups} groups: it has to be a multiple of them.")
        self.norm = nn.GroupNorm(norm_groups, width) if norm_groups else None

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H W"]:
        x = super().forward(input)
        return F.relu_(x if self.norm is None else self.norm(x))


class PointConv(nn.Conv2d):
    """A 1x1 convolution, computed as the linear layer that it is on channels_last memory."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__(in_channels, width, 1)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H W"]:
        if torch.compiler.is_exporting():  # a runtime knows best what it is, and need not change the order of the memory
            return super().forward(input)
        return to_map(linear(to_tokens(input), self.weight.flatten(1), self.bias))


def tower(in_channels: int, width: int, depth: int, norm_groups: int = 0) -> nn.ModuleList:
    """``depth`` 3x3 convolutions with ReLU, one after the other."""
    return nn.ModuleList(ConvReLU(width if i else in_channels, width, norm_groups=norm_groups) for i in range(depth))


def climb(x: Tensor, layers: nn.ModuleList) -> Tensor:
    """``x`` through all layers in order."""
    for layer in layers:
        x = layer(x)
    return x


class FPN(nn.Module):
    """Maps of a backbone → as many maps of ``width`` channels that all know the coarsest one, then ``extra`` coarser levels.

    Coarse maps are enlarged to the size of the next finer one, so pictures may have any size. ``extra_kind``: "conv" makes the first extra
    level from the backbone's last map by a 3x3 convolution of stride 2 and each further one from the level before, without a ReLU in
    between (RetinaNet); "pool" takes every other cell of the level before (Mask R-CNN).
    """

    def __init__(self, in_channels: Sequence[int], width: int = 256, extra: int = 0, extra_kind: Extra = "conv") -> None:
        super().__init__()
        self.extra = extra
        self.laterals = nn.ModuleList(PointConv(channels, width) for channels in in_channels)
        self.outputs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in in_channels)
        sources = [in_channels[-1], *[width] * extra][:extra] if extra_kind == "conv" else []
        self.extras = nn.ModuleList(nn.Conv2d(channels, width, 3, 2, 1) for channels in sources)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, maps: Sequence[Float[Tensor, "B _ _ _"]]) -> list[Float[Tensor, "B C _ _"]]:
        paths = [lateral(x) for lateral, x in zip(self.laterals, maps, strict=True)]
        for i in range(len(paths) - 1, 0, -1):
            paths[i - 1] = paths[i - 1] + F.interpolate(paths[i], paths[i - 1].shape[-2:], mode="nearest")
        levels = [output(x) for output, x in zip(self.outputs, paths, strict=True)]
        x = maps[-1]
        for layer in self.extras:
            x = layer(x)
            levels.append(x)
        for _ in range(self.extra - len(self.extras)):
            levels.append(F.max_pool2d(levels[-1], 1, stride=2))
        return levels


class PyramidModel(nn.Module):
    """A backbone under an FPN, and places of parameters for freezing and layer-wise learning rates.

    ``strides`` are the levels wanted, each twice the one before; those that the backbone has come from it, coarser ones are added.
    """

    def __init__(self, backbone: Backbone, num_classes: int, strides: Sequence[int], width: int, extra_kind: Extra = "conv") -> None:
        super().__init__()
        if len(backbone.input_shape) != 3:
            raise ValueError("Segmentation and detection work on pictures, and this backbone takes clips: choose a picture network.")
        self.backbone, self.num_classes, self.strides = backbone, num_classes, tuple(strides)
        there = [info.stride for info in backbone.feature_info]
        self.taken = [there.index(stride) for stride in strides if stride in there]
        if not strides or self.strides != tuple(strides[0] * 2**i for i in range(len(strides))):
            raise ValueError(f"Levels need strides that double from one to the next, got {self.strides}.")
        if strides[0] not in there or self.taken != list(range(self.taken[0], len(there))):
            raise ValueError(
                f"Levels at strides {self.strides} don't fit a backbone with maps at strides {there}: begin at one of these and go at least"
                f" to {there[-1]}, or build the backbone with fewer maps (out_indices)."
            )
        self.fpn = FPN([backbone.feature_info[i].channels for i in self.taken], width, len(strides) - len(self.taken), extra_kind)
        self.num_depths = backbone.num_depths + 1

    def pyramid(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B C2 _ _"]]:
        """The FPN's levels, one per stride."""
        maps = self.backbone(images)
        return self.fpn([maps[i] for i in self.taken])

    def depth_of(self, parameter: str) -> int:
        """Place of a parameter between stem (0) and head (num_depths - 1)."""
        name = parameter.removeprefix("backbone.")
        return self.num_depths - 1 if name == parameter else self.backbone.depth_of(name)

    def stage_of(self, parameter: str) -> int:
        """Stage of a parameter, from 0; 4 is the head."""
        name = parameter.removeprefix("backbone.")
        return 4 if name == parameter else self.backbone.stage_of(name)

    def set_grad_checkpointing(self, on: bool = True) -> None:
        self.backbone.set_grad_checkpointing(on)


def init_normal(root: nn.Module, std: float = 0.01) -> None:
    """Normal weights and no bias for all layers below ``root``, as published for 256 channels; narrower convolutions get more, so that as
    much of the signal passes."""
    for module in root.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            channels = module.weight.shape[1]
            nn.init.normal_(module.weight, 0, std * max(256 / channels, 1) ** 0.5 if isinstance(module, nn.Conv2d) else std)
            nn.init.zeros_(module.bias)
