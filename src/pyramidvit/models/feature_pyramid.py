"""A pyramid out of one map (ViTDet, Li et al. 2022, https://arxiv.org/abs/2203.16527). Shapes: B batch, C channels, H W grid."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn


class FeaturePyramid(nn.Module):
    """One map (B, C, H, W) → maps at the given strides: (B, C / 2ⁿ, 2ⁿ H, 2ⁿ W) after n transposed convolutions, or pooled."""

    def __init__(self, channels: int, stride: int, strides: Sequence[int]) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        self.channels: list[int] = []
        for wanted in strides:
            layers: list[nn.Module] = []
            width = channels
            for _ in range(round(math.log2(max(stride / wanted, 1)))):
                layers += [ChannelNorm(width), nn.GELU()] if layers else []
                layers.append(nn.ConvTranspose2d(width, width // 2, 2, 2))
                width //= 2
            if wanted > stride:
                layers.append(nn.MaxPool2d(wanted // stride, ceil_mode=True))
            self.levels.append(nn.Sequential(*layers))
            self.channels.append(width)

    def forward(self, x: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B _ _ _"]]:
        return [level(x) for level in self.levels]


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of a map."""

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
