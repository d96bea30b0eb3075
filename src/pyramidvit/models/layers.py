"""What several networks share. Shapes: B batch, C channels, H W grid, T frames; tokens are channels-last (B, H, W, C)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pyramidvit.errors import UserError, expect, is_whole
from pyramidvit.models.kernels import GeluLinear, Linear, conv_gelu, has_onednn, linear, linear_gelu

FEW_TOKENS = 2 * 56 * 56
"""Up to here the rearrangement of `BlockConv` stays in the cache."""


@dataclass(frozen=True)
class FeatureInfo:
    """One map of a backbone: its number of channels, and how many input pixels one of its cells spans per side."""

    channels: int
    stride: int


class Backbone(nn.Module):
    """A pyramid network: pictures (B, C, H, W) in, a list of maps (B, Cᵢ, Hᵢ, Wᵢ) out, finest first; clips (B, C, T, H, W) give maps
    (B, Cᵢ, Tᵢ, Hᵢ, Wᵢ).

    ``feature_info`` describes the maps that ``forward`` returns, ``width`` is the length of ``embed``'s vectors, ``input_shape`` the
    declared default input without the batch. Stages behind the last wanted map are not built, and what only ``embed`` needs is built only
    with ``classify``, so that no parameter is without use.

    Subclasses hold their blocks in ``stages[s].blocks[j]``; what stands before them in a stage comes first, its norm last.
    """

    feature_info: tuple[FeatureInfo, ...]
    width: int
    input_shape: tuple[int, ...]
    embed_dropout = 0.0
    """Dropout between ``embed`` and a classifier's last layer in the published training."""
    name = ""
    """Of networks that are not told from their tensors."""
    classify_only: tuple[str, ...] = ()
    """Beginnings of the names of parameters that only ``classify`` builds."""

    def __init__(self, in_chans: int, out_indices: Sequence[int] | None, classify: bool, depths: Sequence[int]) -> None:
        super().__init__()
        self.in_chans, self.classify, self.checkpointing = in_chans, classify, False
        self.out_indices = resolve_out_indices(range(len(depths)) if out_indices is None else out_indices, len(depths))
        self.published_depths, self.depths = tuple(depths), tuple(depths[: self.out_indices[-1] + 1])
        if classify and len(self.depths) < len(depths):
            raise ValueError(f"classify=True needs the coarsest map, {len(depths) - 1}, among out_indices {self.out_indices}.")

    def embed(self, x: Float[Tensor, "B C *size"]) -> Float[Tensor, "B D"]:
        """The vector that a classifier's last layer sees; needs ``classify=True`` at construction."""
        raise NotImplementedError

    def check_input(self, x: Tensor) -> None:
        """Raise with what was expected and what came unless x is a batch that this network takes."""
        (check_clip if len(self.input_shape) == 4 else check_picture)(x, self.in_chans)
        check_values(x, next(self.parameters()).dtype)

    def check_classify(self) -> None:
        """Raise unless this network was built to classify."""
        if not self.classify:
            raise ValueError(f"This {type(self).__name__} was built for its maps only; build it with classify=True to embed with it.")

    def check_size(self, size: tuple[int, int]) -> None:
        """UserError unless pictures of this height and width can be taken; ours take any."""

    def own_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:  # noqa: ARG002
        """A file's tensors as ``backbone.…`` and ``head.…``, for networks whose names the layouts of weights/ don't know; None for ours."""
        return None

    def leaves_out(self, parameter: str) -> bool:
        """Whether a parameter of the whole network is one that this cut of it does without."""
        stage = parameter.removeprefix("stages.").split(".")[0]
        return (stage.isdecimal() and int(stage) >= len(self.depths)) or (not self.classify and parameter.startswith(self.classify_only))

    @property
    def num_depths(self) -> int:
        """How many depths ``depth_of`` tells apart: the stem, then every block."""
        return 1 + sum(self.depths)

    def depth_of(self, parameter: str) -> int:
        """Place of a parameter on the way from input (0) to output, for layer-wise learning rates."""
        if not parameter.startswith("stages."):
            return self.num_depths - 1 if parameter.startswith("norm.") else 0
        _, stage, part, *rest = parameter.split(".")
        before = sum(self.depths[: int(stage)])
        if part == "blocks":
            return before + int(rest[0]) + 1
        return before + self.depths[int(stage)] if part == "norm" else before

    def stage_of(self, parameter: str) -> int:
        """Stage, from 0, that a parameter belongs to, for freezing."""
        if not parameter.startswith("stages."):
            return len(self.depths) - 1 if parameter.startswith("norm.") else 0
        return int(parameter.split(".")[1])

    def set_grad_checkpointing(self, on: bool = True) -> None:
        """Recompute the blocks' activations in the backward pass instead of keeping them."""
        self.checkpointing = on


def resolve_out_indices(out_indices: Sequence[int], levels: int = 4) -> tuple[int, ...]:
    """Indices of the wanted maps, negative ones counted from the coarsest, as rising numbers from 0."""
    expect(isinstance(out_indices, Sequence) and all(map(is_whole, out_indices)), "out_indices", out_indices, "several whole numbers")
    valid = f"Valid indices are {list(range(levels))} (finest to coarsest), or {list(range(-levels, 0))} from the coarsest end."
    if not out_indices:
        raise UserError(f"out_indices is empty: name at least one map. {valid}")
    if wrong := [i for i in out_indices if not -levels <= i < levels]:
        raise UserError(f"out_indices {tuple(out_indices)} asks for maps that don't exist: {wrong}. {valid}")
    indices = tuple(i % levels for i in out_indices)
    if list(indices) != sorted(set(indices)):
        raise UserError(f"out_indices {tuple(out_indices)} must rise without repeats. {valid}")
    return indices


def check_picture(x: Tensor, in_chans: int) -> None:
    """Raise with the expected and the received shape unless x is (B, in_chans, H, W) with H, W >= 32."""
    wanted = f"This network takes pictures (B, {in_chans}, H, W), got {tuple(x.shape)}"
    if x.ndim == 5:
        raise ValueError(f"{wanted}: that looks like clips; choose a video network.")
    if x.ndim != 4:
        raise ValueError(f"{wanted}. A single picture needs a batch axis: x[None].")
    if x.shape[1] != in_chans:
        hint = " Channels come before height and width: permute(0, 3, 1, 2)." if x.shape[-1] == in_chans else ""
        raise ValueError(f"{wanted}: it has to have {in_chans} channels.{hint}")
    _check_size(x, "Pictures")


def check_clip(x: Tensor, in_chans: int) -> None:
    """Raise with the expected and the received shape unless x is (B, in_chans, T, H, W) with T >= 1 and H, W >= 32."""
    wanted = f"This network takes clips (B, {in_chans}, T, H, W), got {tuple(x.shape)}"
    if x.ndim == 4 and in_chans not in (x.shape[0], x.shape[-1]):
        raise ValueError(f"{wanted}: that looks like pictures; choose a picture network, or make them clips of one frame: x[:, :, None].")
    if x.ndim != 5:
        raise ValueError(f"{wanted}. A single clip needs a batch axis: x[None].")
    if x.shape[1] != in_chans:
        hint = " Channels come before frames: permute(0, 2, 1, 3, 4)." if x.shape[2] == in_chans else ""
        hint = " Channels come before frames, height and width: permute(0, 4, 1, 2, 3)." if x.shape[-1] == in_chans else hint
        raise ValueError(f"{wanted}: it has to have {in_chans} channels.{hint}")
    if x.shape[2] == 0:
        raise ValueError(f"{wanted}: a clip needs at least one frame.")
    _check_size(x, "Frames")


def check_values(x: Tensor, dtype: torch.dtype) -> None:
    """Raise unless x holds at least one input, of values that a network with parameters of this type takes."""
    if x.shape[0] == 0:
        raise ValueError(f"The batch is empty, got {tuple(x.shape)}: give at least one picture or clip.")
    if x.dtype == dtype or (x.is_floating_point() and x.dtype != torch.float64 and _is_autocast(x.device.type)):
        return
    hint = f"x.to({dtype})" if x.is_floating_point() else f"(x.to({dtype}) / 255 - mean) / std for pictures of 8 bits"
    raise ValueError(f"This network computes with {dtype}, got values of {x.dtype}: {hint}.")


def _is_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _check_size(x: Tensor, things: str) -> None:
    H, W = x.shape[-2:]
    if min(H, W) < 32:
        nearest = f"{max(H, 32)}x{max(W, 32)}"
        raise ValueError(
            f"{things} must be at least 32x32 (height x width), got {tuple(x.shape)}; the nearest size that works is {nearest}."
        )


def to_map(x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B C H W"]:
    """Tokens seen as a map: the same memory, which torch then calls channels_last."""
    return x.permute(0, 3, 1, 2)


def to_tokens(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B H W C"]:
    """A map seen as channels-last tokens; free when its memory is channels_last already."""
    return x.permute(0, 2, 3, 1).contiguous()


class TokenConv(nn.Conv2d):
    """A convolution on channels-last tokens, with ``gelu`` followed by one; its weight lies in memory as the kernel reads it."""

    def __init__(
        self, in_chans: int, width: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1, gelu: bool = False
    ) -> None:
        super().__init__(in_chans, width, kernel, stride, padding, groups=groups)
        self.gelu = gelu
        self.weight = nn.Parameter(self.weight.detach().to(memory_format=torch.channels_last))

    def forward(self, input: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H2 W2 C2"]:
        x = to_map(input)
        return to_tokens(conv_gelu(x, self) if self.gelu else super().forward(x))


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels. Exported graphs norm a list of tokens, for which OpenVINO has one operation; for grids it has three."""

    def forward(self, input: Float[Tensor, "B *N C"]) -> Float[Tensor, "B *N C"]:
        if torch.compiler.is_exporting() and input.ndim > 3:
            return super().forward(input.flatten(1, -2)).view(input.shape)
        return super().forward(input)


class DropPath(nn.Module):
    """Adds a residual branch, which training leaves out for a share of the samples (Huang et al. 2016, stochastic depth)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B *N C"], branch: Float[Tensor, "B *N C"]) -> Float[Tensor, "B *N C"]:
        if not self.training or self.rate == 0:
            return x + branch if torch.is_grad_enabled() else branch.add_(x)  # in place: fresh memory costs more than the sum
        keep = 1 - self.rate
        mask = branch.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(keep).div_(keep)
        return torch.addcmul(x, branch, mask)

    def extra_repr(self) -> str:
        return f"{self.rate:.3f}"


def drop_path_rates(rate: float, depths: Sequence[int]) -> Iterator[float]:
    """Rates for all blocks in order, rising linearly from 0 in the first to ``rate`` in the last."""
    last = max(sum(depths) - 1, 1)
    return (rate * i / last for i in range(sum(depths)))


def run_block(block: Callable[[Tensor], Tensor], x: Tensor, checkpointing: bool) -> Tensor:
    """A block's output, its activations recomputed in the backward pass if asked for."""
    return checkpoint(block, x, use_reentrant=False) if checkpointing and torch.is_grad_enabled() else block(x)


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, in place where no gradient will need its input."""
    return F.gelu(x) if torch.is_grad_enabled() else torch.ops.aten.gelu_(x)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them; ``out`` defaults to ``width``."""

    def __init__(self, width: int, hidden: int, out: int | None = None) -> None:
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = GeluLinear(hidden, out or width)

    def forward(self, x: Float[Tensor, "B *N C"]) -> Float[Tensor, "B *N C2"]:
        if torch.is_grad_enabled():
            return self.fc2(self.fc1(x))
        return linear(linear_gelu(x, self.fc1.weight, self.fc1.bias), self.fc2.weight, self.fc2.bias)


class BlockConv(TokenConv):
    """A convolution over non-overlapping r × r blocks of tokens; ``in_chans`` defaults to ``width``.

    Rows and columns that fill no block are left out, as without padding. Few tokens are computed as one matrix product, which is sooner
    (docs/results.md); for many, and in training, where the rearranged tokens would have to be kept, the convolution is the better one.
    """

    def __init__(self, width: int, block: int, in_chans: int | None = None) -> None:
        super().__init__(in_chans or width, width, block, block)

    def forward(self, input: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H2 W2 C2"]:
        B, H, W, C = input.shape
        if torch.is_grad_enabled() or not has_onednn(input) or B * H * W > FEW_TOKENS:  # exported, it takes any number of tokens
            return super().forward(input)
        r = self.stride[0]
        x = input[:, : H // r * r, : W // r * r].reshape(B, H // r, r, W // r, r, C).transpose(2, 3).reshape(B, H // r, W // r, r * r * C)
        return linear(x, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)


def init_linear(module: nn.Module) -> None:
    """The published start of linear layers: truncated normal, no bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def init_weights(module: nn.Module) -> None:
    """The published initialisation of PVT v2: truncated normal for linear layers, fan-out normal for convolutions."""
    init_linear(module)
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, 0, (2 / fan_out) ** 0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
