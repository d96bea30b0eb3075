"""Pooled attention, of which MViT is made (see mvit.py).

Shapes: B batch, G a grid (H, W) or (T, H, W), N its tokens, M and K those of the pooled grids of queries and of keys, each after a class
token if there is one, C channels, h heads, d = C / h, E the sides of the keys' grid added up, k a kernel.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.kernels import Linear, has_onednn, linear
from pyramidvit.models.layers import LayerNorm
from pyramidvit.models.pos_embed import key_rows, relative_bias, relative_logits


@dataclass(frozen=True)
class BlockShape:
    """What differs from block to block."""

    in_width: int
    """Channels before the attention."""
    width: int
    """Channels between attention and feed-forward."""
    out_width: int
    """Channels after the feed-forward."""
    heads: int
    """Attention heads."""
    q_stride: tuple[int, ...]
    """Pooling of queries, and with them of the grid."""
    kv_stride: tuple[int, ...]
    """Pooling of keys and values."""
    pool: tuple[int, ...] | None
    """Kernel of the pooling convolutions; None makes it stride + 1 along every axis that is pooled, and 1 elsewhere."""
    relative: bool
    """Relative positions; queries pooled in every block, and added to what the attention gives."""
    class_token: bool
    """Whether one comes before the tokens of the grid."""


class PooledAttention(nn.Module):
    """Pooled queries ask, keys and values on a coarser grid answer. ``grid`` is the one that relative positions are made for."""

    def __init__(self, shape: BlockShape, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.axes = shape, "thw"[-len(grid) :] if shape.relative else ""
        channels = shape.width // shape.heads

        def pool(stride: tuple[int, ...], wanted: bool) -> Pool | None:
            kernel = shape.pool or tuple(step + 1 if step > 1 else 1 for step in stride)
            return Pool(channels, kernel, stride, shape.class_token) if wanted and max(*kernel, *stride) > 1 else None

        self.qkv = Linear(shape.in_width, 3 * shape.width)
        self.pool_q = pool(shape.q_stride, shape.relative or max(shape.q_stride) > 1)
        self.pool_k = pool(shape.kv_stride, True)
        self.pool_v = pool(shape.kv_stride, True)
        self.proj = Linear(shape.width, shape.width)
        if shape.relative:
            for axis, side, q, kv in zip(self.axes, grid, shape.q_stride, shape.kv_stride, strict=True):
                table = torch.empty(2 * max(side // q, side // kv) - 1, channels)
                self.register_parameter(f"rel_pos_{axis}", nn.Parameter(nn.init.trunc_normal_(table, std=0.02)))

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...]) -> Float[Tensor, "B M C2"]:
        parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), (self.pool_q, self.pool_k, self.pool_v), strict=True)
        q, k, v = (self._pooled(linear(x, weight, bias), pool, grid) for weight, bias, pool in parts)  # (B, M, h, d), 2 × (B, K, h, d)
        y = self._relative(q, k, v, grid) if self.shape.relative else _attend(q, k, v)  # (B, M, h, d)
        return self.proj(y.flatten(2))

    def _pooled(self, x: Float[Tensor, "B N C"], pool: "Pool | None", grid: tuple[int, ...]) -> Float[Tensor, "B M h d"]:
        return x.unflatten(-1, (self.shape.heads, -1)) if pool is None else pool(x, grid)

    def _relative(
        self, q: Float[Tensor, "B M h d"], k: Float[Tensor, "B K h d"], v: Float[Tensor, "B K h d"], grid: tuple[int, ...]
    ) -> Float[Tensor, "B M h d"]:
        """Attention with relative positions, and the queries added to its result; the class token is left out of both.

        The fused kernel takes no bias that needs a gradient, and a bias has the size of queries times keys. So positions go in as further
        channels: a query has its products with the positions of all rows of keys, a key has a 1 for each row that it is in. Without the
        fused kernel the scores are there in full anyway, and the bias is added to them.
        """
        q_grid, k_grid = pooled_grid(grid, self.shape.q_stride), pooled_grid(grid, self.shape.kv_stride)
        skip = int(self.shape.class_token)
        _, tokens = apart(q, q_grid, self.shape.class_token)
        d = q.shape[-1]
        tables = [self.get_parameter(f"rel_pos_{axis}") for axis in self.axes]
        if _is_fused():
            tables = [table * d**0.5 for table in tables]  # undoes the scale, which is for keys only
            logits = torch.cat(relative_logits(tokens, tables, k_grid), -1).flatten(1, -3)  # (B, M - skip, h, E)
            rows = F.pad(key_rows(k_grid, like=q), (0, 0, skip, 0))[:, None].expand(*k.shape[:3], -1)  # (B, K, h, E)
            wide_q = torch.cat([q, F.pad(logits, (0, 0, 0, 0, skip, 0))], -1)  # (B, M, h, d + E)
            wide_k, wide_v = torch.cat([k, rows], -1), F.pad(v, (0, rows.shape[-1]))  # 2 × (B, K, h, d + E)
            y = _attend(wide_q, wide_k, wide_v, scale=d**-0.5)[..., :d]
        else:
            bias = relative_bias(relative_logits(tokens, tables, k_grid))
            y = _attend(q, k, v, F.pad(bias, (skip, 0, skip, 0)))
        # q comes first: a sum is laid out like its first term, and y is not laid out the same in eager and exported attention
        return torch.cat([y[:, :skip], q[:, skip:] + y[:, skip:]], 1) if skip else q + y


def _attend(
    q: Float[Tensor, "B M h c"],
    k: Float[Tensor, "B K h c"],
    v: Float[Tensor, "B K h c"],
    bias: Float[Tensor, "B h M K"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B M h c"]:
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias, scale=scale)
    return y.transpose(1, 2)


def _is_fused() -> bool:
    """Whether scaled_dot_product_attention may take its fused kernel; exported graphs have none."""
    return torch.backends.cuda.flash_sdp_enabled() and not torch.compiler.is_exporting()  # the flag counts on the CPU, too


def pooled_grid(grid: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """What any pooling here leaves of a grid: rounded up, in the words of the convolutions, so that tracing finds the two alike at once."""
    return tuple((side - 1) // step + 1 for side, step in zip(grid, stride, strict=True))


def apart(
    x: Float[Tensor, "B _ *C"], grid: tuple[int, ...], class_token: bool
) -> tuple[Float[Tensor, "B _ *C"] | None, Float[Tensor, "B *G C"]]:
    """The class token, if there is one, and the tokens of the grid, laid out."""
    return (x[:, :1], x[:, 1:].unflatten(1, grid)) if class_token else (None, x.unflatten(1, grid))


def together(class_token: Float[Tensor, "B _ C"] | None, tokens: Float[Tensor, "B *G C"]) -> Float[Tensor, "B _ C"]:
    """One sequence again."""
    tokens = tokens.flatten(1, -2)
    return tokens if class_token is None else torch.cat([class_token, tokens], 1)


class Pool(nn.Module):
    """Tokens pooled by a convolution whose filters all heads share, then a norm. The class token skips the convolution only."""

    def __init__(self, channels: int, kernel: tuple[int, ...], stride: tuple[int, ...], class_token: bool) -> None:
        super().__init__()
        self.stride, self.class_token = stride, class_token
        self.weight = nn.Parameter(torch.empty(channels, 1, *kernel))
        self.norm = LayerNorm(channels, eps=1e-6)
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...]) -> Float[Tensor, "B M h d"]:
        class_token, tokens = apart(x, grid, self.class_token)
        x = together(class_token, depthwise(tokens, self.weight, self.stride))
        return self.norm(x.unflatten(-1, (-1, len(self.weight))))


def max_pool(x: Float[Tensor, "B N C"], grid: tuple[int, ...], stride: tuple[int, ...], has_class_token: bool) -> Float[Tensor, "B M C"]:
    """The largest of windows of stride + 1 rows and columns, every frame by itself; the class token stays as it is."""
    class_token, tokens = apart(x, grid, has_class_token)
    frames, step = tokens.flatten(0, -4).permute(0, 3, 1, 2), stride[-1]  # (B * T, C, H, W)
    frames = F.max_pool2d(frames, step + 1, step, (step + 1) // 2).permute(0, 2, 3, 1)
    return together(class_token, frames.unflatten(0, tokens.shape[:-3]))


def depthwise(x: Float[Tensor, "B *G C"], weight: Float[Tensor, "d 1 *k"], stride: tuple[int, ...]) -> Float[Tensor, "B *G2 C"]:
    """A convolution of every channel by itself, padded by half its odd kernel; each head of d channels gets the same filters."""
    weight = weight.repeat(x.shape[-1] // len(weight), *[1] * (weight.ndim - 1))  # (C, 1, *k)
    if x.ndim == 4:
        return _pictures(x, weight, stride)
    if weight.shape[2] == 1:
        return _pictures(x.flatten(0, 1), weight[:, :, 0], stride[1:]).unflatten(0, x.shape[:2])
    if torch.is_grad_enabled() and stride[0] == 1 and has_onednn(x):
        return _DepthwiseClips.apply(x, weight, stride)
    return _clips(x, weight, stride)


def _pictures(x: Float[Tensor, "B H W C"], weight: Float[Tensor, "C 1 kh kw"], stride: tuple[int, ...]) -> Float[Tensor, "B H2 W2 C"]:
    padding = [side // 2 for side in weight.shape[2:]]
    return F.conv2d(x.permute(0, 3, 1, 2), weight, None, stride, padding, groups=len(weight)).permute(0, 2, 3, 1)


def _clips(x: Float[Tensor, "B T H W C"], weight: Float[Tensor, "C 1 kt kh kw"], stride: tuple[int, ...]) -> Float[Tensor, "B T2 H2 W2 C"]:
    padding = [side // 2 for side in weight.shape[2:]]
    return F.conv3d(x.permute(0, 4, 1, 2, 3), weight, None, stride, padding, groups=len(weight)).permute(0, 2, 3, 4, 1)


class _DepthwiseClips(torch.autograd.Function):
    """On the CPU oneDNN is quick at depth-wise clips forwards but slow backwards, and quick both ways at pictures. So the gradients go
    through the kernel's frames one by one: frame i leads from input t + i - kt // 2 to output t. docs/results.md has the figures."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _clips(x, weight, stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, ctx.stride = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grad_outputs, ctx.saved_tensors
        B, T, *_ = x.shape
        wanted = [*ctx.needs_input_grad[:2], False]
        settings = ctx.stride[1:], [side // 2 for side in weight.shape[3:]], [1, 1], False, [0, 0], len(weight), wanted
        grad_x, grad_weight = (torch.zeros_like(y) if want else None for y, want in zip((x, weight), wanted, strict=False))
        for i in range(weight.shape[2]):
            shift = i - weight.shape[2] // 2
            if abs(shift) >= T:
                continue
            outputs, inputs = slice(max(-shift, 0), T - max(shift, 0)), slice(max(shift, 0), T - max(-shift, 0))
            some_grad, some_x = (y.flatten(0, 1).permute(0, 3, 1, 2) for y in (grad[:, outputs], x[:, inputs]))
            to_x, to_weight, _ = torch.ops.aten.convolution_backward(some_grad, some_x, weight[:, :, i], None, *settings)
            if grad_x is not None:
                grad_x[:, inputs] += to_x.permute(0, 2, 3, 1).unflatten(0, (B, -1))
            if grad_weight is not None:
                grad_weight[:, :, i] = to_weight
        return grad_x, grad_weight, None
