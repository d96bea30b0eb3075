"""Parameter groups, learning rates, freezing, averaging; the optimiser's state by name."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyramidvit.config import OptimConfig


class Staged(Protocol):
    """What a model tells about its parameters; every model of ours does."""

    num_depths: int
    """Depths on the way from the input (0) to the last layer (num_depths - 1)."""

    def depth_of(self, parameter: str) -> int: ...

    def stage_of(self, parameter: str) -> int: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


def param_groups(model: Staged, *, weight_decay: float, layer_decay: float = 1.0, decay_all: bool = False) -> list[dict[str, Any]]:
    """Trainable parameters in groups for the optimiser, each with its ``weight_decay`` and ``lr_scale``.

    Biases, norms and other 1-D parameters have no weight decay, unless ``decay_all``. ``lr_scale`` is ``layer_decay`` to the power of the
    distance from the last layer, so the last layer has 1.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = weight_decay if decay_all or parameter.ndim > 1 else 0.0
        scale = layer_decay ** (model.num_depths - 1 - model.depth_of(name)) if layer_decay < 1 else 1.0
        group = groups.setdefault((decay, scale), {"params": [], "weight_decay": decay, "lr_scale": scale})
        group["params"].append(parameter)
    return list(groups.values())


def make_optimizer(groups: list[dict[str, Any]], optim: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or SGD with Nesterov's momentum, over what `param_groups` gave."""
    if optim.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.momentum > 0, fused=True)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def scaled_lr(lr: float, batch: int, reference_batch: int) -> float:
    """Learning rate for a step over ``batch`` samples when ``lr`` is stated for ``reference_batch``: in proportion."""
    return lr * batch / reference_batch


Fall = Callable[[float], float]
"""Share of the run after its warm-up, 0 to 1 → share of the peak's height above the end, 1 to 0."""


def cosine(progress: float) -> float:
    """A half cosine from 1 to 0."""
    return (1 + math.cos(math.pi * progress)) / 2


def poly(progress: float, *, power: float) -> float:
    """From 1 to 0, faster at the end than a straight line when ``power`` is below 1."""
    return (1 - progress) ** power


def steps(progress: float, *, milestones: Sequence[float], factor: float = 0.1) -> float:
    """1, times ``factor`` at each milestone."""
    return factor ** sum(progress >= milestone for milestone in milestones)


def learning_rate(
    step: int, *, total_steps: int, warmup_steps: int, peak: float, warmup_lr: float = 0.0, min_lr: float = 0.0, fall: Fall = cosine
) -> float:
    """Learning rate of one step (from 0): a straight line from ``warmup_lr`` to ``peak``, then ``fall`` to ``min_lr``.

    Depends on nothing but the step, so a resumed run can't differ. ``warmup_lr`` and ``min_lr`` above ``peak`` count as ``peak``.
    """
    warmup_lr, min_lr = min(warmup_lr, peak), min(min_lr, peak)
    if step < warmup_steps:
        return warmup_lr + (peak - warmup_lr) * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return min_lr + (peak - min_lr) * fall(progress)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its share of the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def freeze(model: Staged, stages: int) -> int:
    """Stop training the first ``stages`` stages (4: all but the head); returns the number of frozen values."""
    frozen = 0
    for name, parameter in model.named_parameters():
        if model.stage_of(name) < stages:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen


def train_mode(model: nn.Module) -> None:
    """Switch to training, but for modules whose parameters are all frozen: their norms keep their statistics and nothing drops out."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


class Ema:
    """An exponentially averaged copy of a model in fp32, for evaluation; buffers are copied, not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).float().eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after optimiser step ``step`` (from 0). The decay grows as (1 + step) / (10 + step) up to its final value,
        so that short runs are not averages of random weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs.float(), 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: Staged) -> dict[str, Tensor]:
    """The optimiser's state as ``<parameter>/<quantity>`` → tensor."""
    state = optimizer.state
    return {
        f"{name}/{quantity}": tensor
        for name, parameter in model.named_parameters()
        if parameter in state
        for quantity, tensor in state[parameter].items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: Staged, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave. ValueError for a name that the model does not have."""
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, _, quantity = key.rpartition("/")
        if name not in parameters:
            raise ValueError(f"The optimiser's state is of another network: there is no parameter {name!r}.")
        parameter = parameters[name]
        if tensor.shape == parameter.shape:  # strides like the parameter's: fused kernels walk through both in the order of the memory
            restored = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        else:
            restored = tensor.to(parameter.device if _fused(optimizer) else "cpu", copy=True)
        optimizer.state[parameter][quantity] = restored


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    """Fused kernels keep their step count beside the parameters, the others on the CPU."""
    return bool(optimizer.param_groups[0].get("fused"))
