"""MViT (Fan et al. 2021, https://arxiv.org/abs/2104.11227) and MViT v2 (Li et al. 2022, https://arxiv.org/abs/2112.01526), for clips and
for pictures.

Follows https://github.com/facebookresearch/SlowFast/blob/287ec0076846560f44a9327e931a5a2360240533/slowfast/models/attention.py and
video_model_builder.py. Differs in that any size works: tables of positions are resized to the grid. Maps are the stages' outputs as they
are; as in the published classifiers, the one norm after them belongs to the embedding. Left out, since no published variant sets them:
pooling by mean or maximum, pooling before the projection, sine positions, qkv_bias=False, dropout inside blocks.
Shapes: B batch, G a grid (T, H, W) or (H, W), N its tokens and M those of the pooled grid, each after a class token if there is one,
C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.kernels import Linear
from pyramidvit.models.layers import (
    Backbone,
    DropPath,
    FeatureInfo,
    FeedForward,
    drop_path_rates,
    init_linear,
    run_block,
)
from pyramidvit.models.pooling import BlockShape, PooledAttention, apart, max_pool, pooled_grid, together
from pyramidvit.models.pos_embed import resize_table


@dataclass(frozen=True)
class MViTConfig:
    """Architecture; the defaults are MViT base for clips of 16 frames. Tuples are (T, H, W) for clips and (H, W) for pictures."""

    size: tuple[int, ...] = (16, 224, 224)
    """Input that the tables of positions are made for; at other sizes they are resized."""
    depths: tuple[int, ...] = (1, 2, 11, 2)
    """Blocks per stage."""
    width: int = 96
    """Channels of the first stage; every stage doubles them."""
    heads: int = 1
    """Attention heads of the first stage; every stage doubles them."""
    patch: tuple[int, ...] = (3, 7, 7)
    """Kernel of the first convolution."""
    patch_stride: tuple[int, ...] = (2, 4, 4)
    """Its stride. Where patches overlap they are padded by half a kernel."""
    pool: tuple[int, ...] | None = (3, 3, 3)
    """Kernel of the pooling convolutions; None makes it stride + 1 along every axis that is pooled, and 1 elsewhere."""
    kv_stride: tuple[int, ...] = (1, 8, 8)
    """Pooling of keys and values in the first stage; every stage halves it in height and width, down to 1."""
    class_token: bool = True
    """Whether a class token is the embedding, or the mean of all tokens."""
    v2: bool = False
    """MViT v2: relative positions instead of absolute ones; queries pooled in every block, and added to what the attention gives."""
    widen_in_attention: bool = False
    """Whether the first block of a stage doubles the channels in its attention, or the last block before it in its feed-forward."""
    drop_path_rate: float = 0.2
    """Stochastic depth of the published training."""
    embed_dropout: float = 0.5
    """Dropout before the last layer in the published training."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            nearest = -(-self.width // self.heads) * self.heads
            raise ValueError(f"Width {self.width} is not a multiple of its {self.heads} heads; the next multiple is {nearest}.")
        tuples = self.size, self.patch, self.patch_stride, self.pool or self.size, self.kv_stride
        if len({len(sides) for sides in tuples}) > 1 or len(self.size) not in (2, 3):
            raise ValueError(f"size, patch, patch_stride, pool and kv_stride must all be (T, H, W) or all (H, W), got {tuples}.")

    def block(self, stage: int, number: int) -> BlockShape:
        """Shape of one block, both counted from 0."""
        width, flat = self.width * 2**stage, (1,) * len(self.size)
        first, last = stage > 0 and number == 0, stage < len(self.depths) - 1 and number == self.depths[stage] - 1
        return BlockShape(
            in_width=width // 2 if first and self.widen_in_attention else width,
            width=width,
            out_width=width * 2 if last and not self.widen_in_attention else width,
            heads=self.heads * 2**stage,
            q_stride=(*flat[2:], 2, 2) if first else flat,
            kv_stride=(*self.kv_stride[:-2], *(max(step // 2**stage, 1) for step in self.kv_stride[-2:])),
            pool=self.pool,
            relative=self.v2,
            class_token=self.class_token,
        )


CLIPS = MViTConfig()
CLIPS_V2 = replace(CLIPS, v2=True, widen_in_attention=True)
PICTURES = MViTConfig((224, 224), patch=(7, 7), patch_stride=(4, 4), pool=(3, 3), kv_stride=(4, 4), drop_path_rate=0.1, embed_dropout=0.0)
PICTURES_V2 = replace(PICTURES, v2=True, widen_in_attention=True, class_token=False)
MINI = replace(  # the three stages of MViT small
    CLIPS, size=(8, 64, 64), depths=(1, 1, 1), width=48, patch=(3, 8, 8), patch_stride=(2, 8, 8), kv_stride=(1, 2, 2), class_token=False,
    drop_path_rate=0.0, embed_dropout=0.0,
)  # fmt: skip

VARIANTS = {
    "mvit_base_16x4": CLIPS,
    "mvit_base_32x3": replace(CLIPS, size=(32, 224, 224)),
    "mvit_base_64x3": replace(CLIPS, size=(64, 224, 224)),
    "mvit_base24_32x3": replace(CLIPS, size=(32, 224, 224), depths=(2, 3, 16, 3), pool=None, drop_path_rate=0.3),
    "mvit_small_16x4": replace(CLIPS, depths=(3, 7, 6), width=128, patch=(3, 8, 8), patch_stride=(2, 8, 8), kv_stride=(1, 4, 4)),
    "mvit_mini_8x2": MINI,
    "mvit_base16": PICTURES,
    "mvit_base24": replace(PICTURES, depths=(2, 3, 16, 3), drop_path_rate=0.3),
    "mvit_base24_wide_320": replace(PICTURES, size=(320, 320), depths=(2, 3, 16, 3), width=112, drop_path_rate=0.3),
    "mvitv2_tiny": replace(PICTURES_V2, depths=(1, 2, 5, 2)),
    "mvitv2_small": PICTURES_V2,
    "mvitv2_base": replace(PICTURES_V2, depths=(2, 3, 16, 3), drop_path_rate=0.3),
    "mvitv2_large": replace(PICTURES_V2, depths=(2, 6, 36, 4), width=144, heads=2, widen_in_attention=False, drop_path_rate=0.5),
    "mvitv2_small_16x4": CLIPS_V2,
    "mvitv2_base_32x3": replace(CLIPS_V2, size=(32, 224, 224), depths=(2, 3, 16, 3), drop_path_rate=0.3),
    "mvitv2_large_40x3": replace(CLIPS_V2, size=(40, 312, 312), depths=(2, 6, 36, 4), width=144, heads=2, drop_path_rate=0.75),
}
"""MViT small has never been released: its paper gives blocks, channels and patches; one head and the stride of keys are inferred.
MViT mini is ours, for CPUs and small clips."""


class Block(nn.Module):
    """Attention and feed-forward. Where one of them widens the channels, what goes around it is a projection of its normed input."""

    def __init__(self, shape: BlockShape, grid: tuple[int, ...], drop_path: float) -> None:
        super().__init__()
        self.shape = shape
        self.norm1 = nn.LayerNorm(shape.in_width, eps=1e-6)
        self.attn = PooledAttention(shape, grid)
        self.norm2 = nn.LayerNorm(shape.width, eps=1e-6)
        self.mlp = FeedForward(shape.width, 4 * shape.width, shape.out_width)
        self.proj = Linear(shape.in_width, shape.out_width) if shape.in_width != shape.out_width else nn.Identity()
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...]) -> Float[Tensor, "B M C2"]:
        y = self.norm1(x)
        x = self.proj(y) if self.shape.in_width != self.shape.width else x
        x = max_pool(x, grid, self.shape.q_stride, self.shape.class_token) if max(self.shape.q_stride) > 1 else x
        x = self.drop_path(x, self.attn(y, grid))
        y = self.norm2(x)
        x = self.proj(y) if self.shape.width != self.shape.out_width else x
        return self.drop_path(x, self.mlp(y))


class Stage(nn.Module):
    """Blocks at one resolution, to which the first one pools."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.stride = blocks[0].shape.q_stride
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...], checkpointing: bool) -> Float[Tensor, "B M C2"]:
        for i, block in enumerate(self.blocks):
            x = run_block(partial(block, grid=grid), x, checkpointing)
            grid = grid if i else pooled_grid(grid, self.stride)
        return x


class Patches(nn.Module):
    """The first convolution, from pixels to tokens."""

    def __init__(self, in_chans: int, config: MViTConfig) -> None:
        super().__init__()
        self.stride = config.patch_stride
        self.padding = tuple(side // 2 if side > step else 0 for side, step in zip(config.patch, self.stride, strict=True))
        clips = len(config.size) == 3
        weight = torch.empty(config.width, in_chans, *config.patch)
        self.conv = F.conv3d if clips else F.conv2d
        self.weight = nn.Parameter(weight.to(memory_format=torch.channels_last_3d if clips else torch.channels_last))
        self.bias = nn.Parameter(torch.zeros(config.width))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "B C *size"]) -> Float[Tensor, "B *G C2"]:
        return self.conv(x, self.weight, self.bias, self.stride, self.padding).movedim(1, -1).contiguous()


class MViT(Backbone):
    """Stages that pool the grid as they go; clips keep their frames, halved by the patches."""

    classify_only = ("norm.",)

    def __init__(
        self,
        config: MViTConfig = CLIPS,
        in_chans: int = 3,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        classify: bool = False,
    ) -> None:
        super().__init__(in_chans, out_indices, classify, config.depths)
        shapes = [[config.block(i, j) for j in range(depth)] for i, depth in enumerate(self.depths)]
        self.config = config
        self.feature_info = tuple(FeatureInfo(shapes[i][-1].out_width, config.patch_stride[-1] * 2**i) for i in self.out_indices)
        self.width = self.feature_info[-1].channels
        self.input_shape = (in_chans, *config.size)
        self.embed_dropout = config.embed_dropout
        grid = tuple(side // step for side, step in zip(config.size, config.patch_stride, strict=True))

        def table(*shape: int, wanted: bool) -> nn.Parameter | None:
            return nn.Parameter(nn.init.trunc_normal_(torch.empty(*shape, config.width), std=0.02)) if wanted else None

        self.class_token = table(1, 1, wanted=config.class_token)
        self.class_position = table(1, 1, wanted=config.class_token and not config.v2)
        self.positions = table(*grid[-2:], wanted=not config.v2)
        self.frame_positions = table(grid[0], wanted=not config.v2 and len(grid) == 3)
        self.patches = Patches(in_chans, config)
        rates = drop_path_rates(config.drop_path_rate if drop_path_rate is None else drop_path_rate, config.depths)
        self.stages = nn.ModuleList()
        for stage in shapes:
            blocks = []
            for shape in stage:
                blocks.append(Block(shape, grid, next(rates)))
                grid = tuple(side // step for side, step in zip(grid, shape.q_stride, strict=True))
            self.stages.append(Stage(blocks))
        if classify:
            self.norm = nn.LayerNorm(self.width, eps=1e-6)
        self.apply(init_linear)

    def _tokens(self, x: Float[Tensor, "B *G C"]) -> Float[Tensor, "B N C"]:
        """Patches with their positions, after the class token with its own."""
        _, *grid, _ = x.shape
        if self.positions is not None:
            x = x + resize_table(self.positions, grid[-2:])
        if self.frame_positions is not None:
            x = x + resize_table(self.frame_positions, grid[:1])[:, None, None]
        if self.class_token is None:
            return x.flatten(1, -2)
        class_token = self.class_token if self.class_position is None else self.class_token + self.class_position
        return together(class_token.expand(x.shape[0], -1, -1), x)

    def _run(self, x: Float[Tensor, "B C *size"]) -> tuple[list[Float[Tensor, "B _ *G"]], Float[Tensor, "B N D"]]:
        """All maps, and the last stage's tokens."""
        self.check_input(x)
        x = self.patches(x)
        grid = tuple(x.shape[1:-1])
        x = self._tokens(x)
        maps = []
        for i, stage in enumerate(self.stages):
            x = stage(x, grid, self.checkpointing)
            grid = pooled_grid(grid, self.config.block(i, 0).q_stride)
            maps.append(apart(x, grid, self.config.class_token)[1].movedim(-1, 1))
        return maps, x

    def forward(self, x: Float[Tensor, "B C *size"]) -> list[Float[Tensor, "B _ *G"]]:
        maps, _ = self._run(x)
        return [maps[i] for i in self.out_indices]

    def embed(self, x: Float[Tensor, "B C *size"]) -> Float[Tensor, "B D"]:
        self.check_classify()
        _, tokens = self._run(x)
        return self.norm(tokens[:, 0]) if self.config.class_token else self.norm(tokens).mean(1)
