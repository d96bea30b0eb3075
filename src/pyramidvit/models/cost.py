"""What a network costs, found without running it: parameters, multiply-adds, activation memory, per stage."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from pyramidvit.models.classifier import Classifier


@dataclass(frozen=True)
class CostRow:
    """One part: parameters, multiply-adds for one input, and the shape of its output."""

    name: str
    params: int
    macs: int
    output: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """A whole network on one input. ``macs`` are multiply-adds, the products of attention included, which papers call FLOPs;
    ``activation_bytes`` is what a training step keeps for the backward pass in float32 with fused attention, parameters not counted; oneDNN
    on the CPU keeps somewhat less, since it computes the GELU of PVT's and MViT's feed-forward again."""

    model: str
    input_shape: tuple[int, ...]
    params: int
    macs: int
    activation_bytes: int
    parts: tuple[CostRow, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.input_shape[-2], self.input_shape[-1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def growing_sizes(cost: Cost) -> list[tuple[int, int]]:
    """Once, twice and four times the sides that a network was measured on."""
    return [(cost.size[0] * times, cost.size[1] * times) for times in (1, 2, 4)]


def measure_cost(name: str, build: Callable[[], Classifier], size: tuple[int, int] | None = None) -> Cost:
    """Build a network without memory and count it on one picture or clip, of its declared size or of another height and width."""
    with torch.device("meta"):
        model = build()
        declared = model.backbone.input_shape
        input_shape = declared if size is None else (*declared[:-2], *size)
        x = torch.empty(1, *input_shape)
    shapes: dict[str, tuple[int, ...]] = {}
    parts = _parts(model)
    hooks = [part.register_forward_hook(_note_shape(shapes, key)) for key, part in parts.items()]
    learned = [p for p in model.parameters() if p.requires_grad]
    for parameter in learned:  # the counter asks for the gradients of what modules are called with, which are off
        parameter.requires_grad_(False)
    # The fused attention kernels are opaque to the counter; the plain one is not.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    for parameter in learned:
        parameter.requires_grad_()
    counts = counter.get_flop_counts()
    prefix = type(model).__name__
    rows = tuple(
        CostRow(key, sum(p.numel() for p in part.parameters()), sum(counts.get(f"{prefix}.{key}", {}).values()) // 2, shapes.get(key, ()))
        for key, part in parts.items()
    )
    params = sum(p.numel() for p in model.parameters())
    return Cost(name, input_shape, params, counter.get_total_flops() // 2, saved_bytes(model, x), rows)


def _parts(model: nn.Module) -> dict[str, nn.Module]:
    """Stages, where a network has them, and everything beside them that has parameters."""
    found: dict[str, nn.Module] = {}
    for key, child in model.named_children():
        if key in ("backbone", "net", "stages", "layers") or isinstance(child, nn.ModuleList):
            found |= {f"{key}.{inner}": part for inner, part in _parts(child).items()}
        elif any(True for _ in child.parameters()):
            found[key] = child
    return found


def _note_shape(shapes: dict[str, tuple[int, ...]], key: str) -> Callable[..., None]:
    def hook(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            shapes[key] = tuple(output.shape)

    return hook


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that the backward pass would find saved, each storage counted once, parameters left out; fused attention, as it will be."""
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
            alive.append(tensor)  # a freed storage's address could be given out again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad(), _FusedOnMeta():
        model.train()
        model(x)
    return sum(saved.values())


class _FusedOnMeta(TorchFunctionMode):
    """The meta device has no fused attention and would keep all scores; this keeps what the fused kernels do."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and args[0].is_meta:
            q, k, v, *rest = args
            bias = rest[0] if rest else (kwargs or {}).get("attn_mask")
            return _KeptByFused.apply(q, k, v, bias)
        return func(*args, **(kwargs or {}))


class _KeptByFused(torch.autograd.Function):
    """Queries, keys, values, the bias if there is one, the result, and one number per query: nothing of queries times keys."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        *lead, N, _ = q.shape
        y = q.new_empty(*lead, N, v.shape[-1])
        if q.ndim == 4:
            y = y.transpose(1, 2).contiguous().transpose(1, 2)  # as the kernels lay it out
        ctx.save_for_backward(q, k, v, y, q.new_empty(*lead, N), *([] if bias is None else [bias]))
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        raise NotImplementedError("Costs are counted in the forward pass.")
