"""PVT v2 (Wang et al. 2022, https://arxiv.org/abs/2106.13797).

Follows https://github.com/whai362/PVT/blob/57e2dfaa5a46f9050d76f306a4fcd9a7c061f520/classification/pvt_v2.py; maps as in its
detection/pvt_v2.py. Left out, since no published variant sets them: qk_scale, qkv_bias=False, dropout inside blocks, num_stages != 4.
Shapes: B batch, H W grid, C channels, N = H * W queries, M keys after reduction, h heads, d = C / h, E hidden channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.models.epsilon import PatchEpsilon
from pyramidvit.models.kernels import Linear
from pyramidvit.models.layers import (
    BlockConv,
    DropPath,
    FeatureInfo,
    LayerNorm,
    TokenConv,
    drop_path_rates,
    gelu,
    init_weights,
    run_block,
    to_map,
    to_tokens,
)


@dataclass(frozen=True)
class PVTv2Config:
    """Architecture; the defaults are PVT v2 b2."""

    widths: tuple[int, ...] = (64, 128, 320, 512)
    """Channels of the maps at strides 4, 8, 16, 32."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks per stage."""
    heads: tuple[int, ...] = (1, 2, 5, 8)
    """Attention heads per stage."""
    expansions: tuple[int, ...] = (8, 8, 4, 4)
    """Hidden channels of the feed-forward, as multiples of the width."""
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    """Keys and values are computed on a grid this many times coarser per side."""
    linear: bool = False
    """Keys and values on a 7x7 grid in every stage, whatever the size, and a ReLU in the feed-forward."""
    patch_eps: float = 1e-5
    """Epsilon of the norms after patches and after reduction: 1e-5 in the official code and timm, 1e-6 in Transformers and MMDetection."""
    drop_path_rate: float = 0.1
    """Stochastic depth of the published ImageNet training."""

    def __post_init__(self) -> None:
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise UserError(
                    f"Stage width {width} is not a multiple of its {heads} heads; the next multiple is {-(-width // heads) * heads}."
                )


VARIANTS = {
    "pvt_v2_b0": PVTv2Config(widths=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    "pvt_v2_b1": PVTv2Config(depths=(2, 2, 2, 2)),
    "pvt_v2_b2": PVTv2Config(),
    "pvt_v2_b2_li": PVTv2Config(linear=True),
    "pvt_v2_b3": PVTv2Config(depths=(3, 4, 18, 3), drop_path_rate=0.3),
    "pvt_v2_b4": PVTv2Config(depths=(3, 8, 27, 3), drop_path_rate=0.3),
    "pvt_v2_b5": PVTv2Config(depths=(3, 6, 40, 3), expansions=(4, 4, 4, 4), drop_path_rate=0.3),
}


def average_to(x: Float[Tensor, "B H W C"], side: int) -> Float[Tensor, "B S S C"]:
    """Adaptive average pooling to a grid of ``side`` cells. An exported graph, which has no such operator for any size, multiplies."""
    if not torch.compiler.is_exporting():
        return to_tokens(F.adaptive_avg_pool2d(to_map(x), side))
    rows, columns = (_shares(length, side).to(x) for length in x.shape[1:3])
    return torch.einsum("sh,bhwc,tw->bstc", rows, x, columns)


def _shares(length: int, cells: int) -> Float[Tensor, "S L"]:
    """What each of ``length`` places adds to the mean of each cell: cell i reaches from floor(i L / S) to ceil((i + 1) L / S)."""
    cell, place = torch.arange(cells)[:, None], torch.arange(length)
    start, end = cell * length // cells, ((cell + 1) * length + cells - 1) // cells
    return ((place >= start) & (place < end)).float() / (end - start)


class ReducedAttention(nn.Module):
    """Every position asks; only a coarser grid answers (spatial-reduction attention)."""

    def __init__(self, width: int, heads: int, reduction: int, linear: bool, eps: float) -> None:
        super().__init__()
        self.heads, self.reduction, self.linear = heads, reduction, linear
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.proj = Linear(width, width)
        if linear:
            self.reduce = TokenConv(width, width, 1)
            self.norm = LayerNorm(width, eps)
        elif reduction > 1:
            self.reduce = BlockConv(width, reduction)
            self.norm = LayerNorm(width, eps)

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        B, H, W, C = x.shape
        q = self.q(x).view(B, H * W, self.heads, -1).transpose(1, 2)  # (B, h, N, d)
        if self.linear:
            x = gelu(self.norm(self.reduce(average_to(x, 7))))  # (B, 7, 7, C)
        elif self.reduction > 1:
            x = self.norm(self.reduce(x))  # (B, H // r, W // r, C)
        k, v = self.kv(x).view(B, -1, 2, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # 2 × (B, h, M, d)
        y = F.scaled_dot_product_attention(q, k, v)  # (B, h, N, d)
        return self.proj(y.transpose(1, 2).reshape(B, H, W, C))


class MixFeedForward(nn.Module):
    """A feed-forward that looks at its neighbours, and so needs no position embedding."""

    def __init__(self, width: int, hidden: int, linear: bool) -> None:
        super().__init__()
        self.linear = linear
        self.fc1 = Linear(width, hidden)
        self.dwconv = TokenConv(hidden, hidden, 3, padding=1, groups=hidden, gelu=True)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        x = self.fc1(x)  # (B, H, W, E)
        if self.linear:
            x = F.relu(x)
        return self.fc2(self.dwconv(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, expansion: int, reduction: int, linear: bool, eps: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width, eps=1e-6)
        self.attn = ReducedAttention(width, heads, reduction, linear, eps)
        self.norm2 = LayerNorm(width, eps=1e-6)
        self.mlp = MixFeedForward(width, width * expansion, linear)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        x = self.drop_path(x, self.attn(self.norm1(x)))
        return self.drop_path(x, self.mlp(self.norm2(x)))


class Stage(nn.Module):
    """Overlapping patches, blocks at one resolution, a norm."""

    def __init__(self, in_chans: int, width: int, kernel: int, stride: int, eps: float, blocks: list[Block]) -> None:
        super().__init__()
        self.patches = TokenConv(in_chans, width, kernel, stride, padding=kernel // 2)
        self.patch_norm = LayerNorm(width, eps)
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(width, eps=1e-6)

    def forward(self, x: Float[Tensor, "B H W C"], checkpointing: bool = False) -> Float[Tensor, "B H2 W2 C2"]:
        x = self.patch_norm(self.patches(x))
        for block in self.blocks:
            x = run_block(block, x, checkpointing)
        return self.norm(x)


class PVTv2(PatchEpsilon):
    """Four stages; each halves the grid (the first quarters it) and widens the channels."""

    def __init__(
        self,
        config: PVTv2Config = PVTv2Config(),
        in_chans: int = 3,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        classify: bool = False,
    ) -> None:
        super().__init__(in_chans, out_indices, classify, config.depths)
        self.config = config
        self.feature_info = tuple(FeatureInfo(config.widths[i], 4 * 2**i) for i in self.out_indices)
        self.width = self.feature_info[-1].channels
        self.input_shape = (in_chans, 224, 224)
        rates = drop_path_rates(config.drop_path_rate if drop_path_rate is None else drop_path_rate, config.depths)
        self.stages = nn.ModuleList()
        for i in range(len(self.depths)):
            shape = config.widths[i], config.heads[i], config.expansions[i], config.reductions[i], config.linear, config.patch_eps
            blocks = [Block(*shape, next(rates)) for _ in range(config.depths[i])]
            previous, kernel, stride = (config.widths[i - 1], 3, 2) if i else (in_chans, 7, 4)
            self.stages.append(Stage(previous, config.widths[i], kernel, stride, config.patch_eps, blocks))
        self.apply(init_weights)

    def forward(self, x: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B _ _ _"]]:
        self.check_input(x)
        x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
        maps = []
        for stage in self.stages:
            x = stage(x, self.checkpointing)
            maps.append(to_map(x))
        return [maps[i] for i in self.out_indices]

    def embed(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self(x)[-1].mean((2, 3))
