"""PVT (Wang et al. 2021, https://arxiv.org/abs/2102.12122).

Follows https://github.com/whai362/PVT/blob/57e2dfaa5a46f9050d76f306a4fcd9a7c061f520/classification/pvt.py; maps as in its
detection/pvt.py: plain stage outputs, without class token and final norm. Differs where that file is wrong: position tables are resized
whenever the grid differs from theirs, also when only its shape does. Left out, since no published variant sets them: qk_scale,
qkv_bias=False, dropout, patches other than 4, 2, 2, 2.
Shapes: B batch, H W grid, C channels, N = H * W queries, M keys after reduction, h heads, d = C / h.
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
    FeedForward,
    LayerNorm,
    drop_path_rates,
    init_linear,
    run_block,
    to_map,
)
from pyramidvit.models.pos_embed import resize_table


@dataclass(frozen=True)
class PVTConfig:
    """Architecture; the defaults are PVT small."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks per stage."""
    widths: tuple[int, ...] = (64, 128, 320, 512)
    """Channels of the maps at strides 4, 8, 16, 32."""
    heads: tuple[int, ...] = (1, 2, 5, 8)
    """Attention heads per stage."""
    expansions: tuple[int, ...] = (8, 8, 4, 4)
    """Hidden channels of the feed-forward, as multiples of the width."""
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    """Keys and values are computed on a grid this many times coarser per side."""
    size: tuple[int, int] = (224, 224)
    """Height and width that the position tables are made for; at other sizes they are resized."""
    patch_eps: float = 1e-5
    """Epsilon of the norms after patches and after reduction: 1e-5 in the official code, 1e-6 in Transformers and MMDetection."""
    drop_path_rate: float = 0.1
    """Stochastic depth of the published ImageNet training."""

    def __post_init__(self) -> None:
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise UserError(
                    f"Stage width {width} is not a multiple of its {heads} heads; the next multiple is {-(-width // heads) * heads}."
                )


VARIANTS = {
    "pvt_tiny": PVTConfig(depths=(2, 2, 2, 2)),
    "pvt_small": PVTConfig(),
    "pvt_medium": PVTConfig(depths=(3, 4, 18, 3), drop_path_rate=0.3),
    "pvt_large": PVTConfig(depths=(3, 8, 27, 3), drop_path_rate=0.3),
}


class ReducedAttention(nn.Module):
    """Every position asks; only a coarser grid answers (spatial-reduction attention)."""

    def __init__(self, width: int, heads: int, reduction: int, eps: float) -> None:
        super().__init__()
        self.heads, self.reduction = heads, reduction
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.proj = Linear(width, width)
        if reduction > 1:
            self.reduce = BlockConv(width, reduction)
            self.norm = LayerNorm(width, eps)

    def forward(self, x: Float[Tensor, "B *N C"]) -> Float[Tensor, "B *N C"]:
        B, *_, C = shape = x.shape  # (B, H, W, C), or (B, 1 + N, C) with a class token, where nothing is reduced
        q = self.q(x).view(B, -1, self.heads, C // self.heads).transpose(1, 2)  # (B, h, N, d)
        if self.reduction > 1:
            x = self.norm(self.reduce(x))  # (B, H // r, W // r, C)
        k, v = self.kv(x).view(B, -1, 2, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # 2 × (B, h, M, d)
        y = F.scaled_dot_product_attention(q, k, v)  # (B, h, N, d)
        return self.proj(y.transpose(1, 2).reshape(shape))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, expansion: int, reduction: int, eps: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width, eps=1e-6)
        self.attn = ReducedAttention(width, heads, reduction, eps)
        self.norm2 = LayerNorm(width, eps=1e-6)
        self.mlp = FeedForward(width, width * expansion)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B *N C"]) -> Float[Tensor, "B *N C"]:
        x = self.drop_path(x, self.attn(self.norm1(x)))
        return self.drop_path(x, self.mlp(self.norm2(x)))


class Stage(nn.Module):
    """Patches, their positions, blocks at one resolution; in the last stage of a classifier a class token goes along."""

    def __init__(
        self, in_chans: int, width: int, patch: int, grid: tuple[int, int], eps: float, class_token: bool, blocks: list[Block]
    ) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(width)) if class_token else None  # 1-D: without weight decay, as published
        self.class_position = nn.Parameter(torch.empty(1, width)) if class_token else None
        self.positions = nn.Parameter(torch.empty(*grid, width))
        self.patches = BlockConv(width, patch, in_chans)
        self.patch_norm = LayerNorm(width, eps)
        self.blocks = nn.ModuleList(blocks)
        for table in (self.class_token, self.class_position, self.positions):
            if table is not None:
                nn.init.trunc_normal_(table, std=0.02)

    def forward(self, x: Float[Tensor, "B H W C"], checkpointing: bool) -> Float[Tensor, "B *N C2"]:
        x = self.patch_norm(self.patches(x))
        x = x + resize_table(self.positions, x.shape[1:3])  # (B, H2, W2, C2)
        if self.class_token is not None and self.class_position is not None:
            token = (self.class_token + self.class_position).expand(x.shape[0], 1, -1)
            x = torch.cat([token, x.flatten(1, 2)], 1)  # (B, 1 + H2 * W2, C2)
        for block in self.blocks:
            x = run_block(block, x, checkpointing)
        return x


class PVT(PatchEpsilon):
    """Four stages; each halves the grid (the first quarters it), leaving out rows and columns that fill no patch."""

    classify_only = ("stages.3.class_", "norm.")

    def __init__(
        self,
        config: PVTConfig = PVTConfig(),
        in_chans: int = 3,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        classify: bool = False,
    ) -> None:
        super().__init__(in_chans, out_indices, classify, config.depths)
        self.config = config
        self.feature_info = tuple(FeatureInfo(config.widths[i], 4 * 2**i) for i in self.out_indices)
        self.width = self.feature_info[-1].channels
        self.input_shape = (in_chans, *config.size)
        rates = drop_path_rates(config.drop_path_rate if drop_path_rate is None else drop_path_rate, config.depths)
        self.stages = nn.ModuleList()
        for i in range(len(self.depths)):
            shape = config.widths[i], config.heads[i], config.expansions[i], config.reductions[i], config.patch_eps
            blocks = [Block(*shape, next(rates)) for _ in range(config.depths[i])]
            previous, patch = (config.widths[i - 1], 2) if i else (in_chans, 4)
            grid = config.size[0] // (4 * 2**i), config.size[1] // (4 * 2**i)
            self.stages.append(Stage(previous, config.widths[i], patch, grid, config.patch_eps, classify and i == 3, blocks))
        if classify:
            self.norm = LayerNorm(self.width, eps=1e-6)
        self.apply(init_linear)

    def _run(self, x: Float[Tensor, "B C H W"]) -> tuple[list[Float[Tensor, "B _ _ _"]], Float[Tensor, "B *N D"]]:
        """All maps, and the last stage's tokens, before which the class token stands, if there is one."""
        self.check_input(x)
        x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
        maps = []
        for i, stage in enumerate(self.stages):
            _, H, W, _ = x.shape
            x = stage(x, self.checkpointing)
            grid = x[:, 1:].unflatten(1, (H // 2, W // 2)) if self.classify and i == 3 else x
            maps.append(to_map(grid))
        return maps, x

    def forward(self, x: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B _ _ _"]]:
        maps, _ = self._run(x)
        return [maps[i] for i in self.out_indices]

    def embed(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        self.check_classify()
        _, tokens = self._run(x)
        return self.norm(tokens[:, 0])
