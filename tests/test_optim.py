"""Groups, learning rates, freezing and averaging on a toy pyramid."""

import functools

import pytest
import torch
from torch import nn

from pyramidvit.config import OptimConfig
from pyramidvit.optim import (
    Ema,
    Fall,
    freeze,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    param_groups,
    poly,
    scaled_lr,
    set_learning_rate,
    steps,
    train_mode,
)


class Toy(nn.Module):
    """Four stages of a linear layer, a norm and dropout; a head."""

    num_depths = 5

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(4))
        self.head = nn.Linear(4, 2)

    def depth_of(self, parameter: str) -> int:
        return int(parameter.split(".")[1]) if parameter.startswith("stages") else 4

    stage_of = depth_of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


def test_groups_hold_every_trainable_parameter_once_and_decay_only_matrices() -> None:
    model = Toy()
    groups = param_groups(model, weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(p.ndim > 1 for p in groups[0]["params"])
    assert all(p.ndim == 1 for p in groups[1]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_layer_decay_shrinks_the_learning_rate_towards_the_input() -> None:
    model = Toy()
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.1, layer_decay=0.5))
    set_learning_rate(optimizer, 0.8)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert [rates[id(stage[0].weight)] for stage in model.stages] == pytest.approx([0.05, 0.1, 0.2, 0.4])  # pyright: ignore[reportIndexIssue]
    assert rates[id(model.head.weight)] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("fall", "expected"),
    [
        (functools.partial(poly, power=0.9), [1.0, 0.5**0.9, 0.0]),
        (functools.partial(steps, milestones=(0.5, 0.9)), [1.0, 0.1, 0.01]),
    ],
)
def test_other_schedules_of_the_published_recipes(fall: Fall, expected: list[float]) -> None:
    """ADE20K falls by a power, COCO in steps."""
    rates = [learning_rate(10 + at, total_steps=110, warmup_steps=10, peak=1.0, fall=fall) for at in (0, 50, 100)]
    assert rates == pytest.approx(expected)


def test_learning_rate_warms_up_then_falls_along_a_cosine() -> None:
    def rate(step: int) -> float:
        return learning_rate(step, total_steps=110, warmup_steps=10, peak=1.0, warmup_lr=0.1, min_lr=0.2)

    assert [rate(0), rate(5), rate(10), rate(60), rate(110), rate(999)] == pytest.approx([0.1, 0.55, 1.0, 0.6, 0.2, 0.2])
    assert all(rate(step) > rate(step + 1) for step in range(10, 110))
    assert learning_rate(0, total_steps=1, warmup_steps=0, peak=1e-6, min_lr=1e-5) == 1e-6
    assert scaled_lr(1e-3, 2, 128) == pytest.approx(1e-3 / 64)


def test_frozen_stages_have_no_gradient_no_optimiser_state_and_stay_in_eval() -> None:
    """PB-15: freeze=2."""
    model = Toy()
    count = freeze(model, 2)
    assert count == 2 * (4 * 4 + 4 + 4 + 4)
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.1, layer_decay=0.9), lr=0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_mode(model)
    assert [module.training for module in model.stages] == [False, False, True, True]
    assert [stage[2].training for stage in model.stages] == [False, False, True, True]  # pyright: ignore[reportIndexIssue]
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    after = model.state_dict()
    for name in before:
        frozen = name.startswith(("stages.0", "stages.1"))
        assert torch.equal(before[name], after[name]) == frozen, name
    assert all((p.grad is None) == (model.stage_of(name) < 2) for name, p in model.named_parameters())
    assert not any(key.startswith(("stages.0", "stages.1")) for key in optimizer_tensors(optimizer, model))


def test_freezing_all_stages_leaves_the_head() -> None:
    model = Toy()
    freeze(model, 4)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


def test_averaged_weights_follow_the_formula() -> None:
    model = nn.Linear(2, 2).bfloat16()
    first = model.weight.float().clone()
    ema = Ema(model, decay=0.5)
    average = ema.model.state_dict()["weight"]
    assert average.dtype == torch.float32
    with torch.no_grad():
        model.weight.fill_(2.0)
    ema.update(model, step=0)
    assert torch.allclose(average, 0.1 * first + 0.9 * 2.0)
    last = average.clone()
    ema.update(model, step=1000)
    assert torch.allclose(average, 0.5 * last + 0.5 * 2.0)
    assert not any(parameter.requires_grad for parameter in ema.model.parameters())


def test_averaging_copies_the_statistics_of_norms() -> None:
    model = nn.BatchNorm1d(2)
    ema = Ema(model, decay=0.9)
    model(torch.randn(4, 2))
    ema.update(model, step=0)
    buffers = dict(ema.model.named_buffers())
    assert all(torch.equal(buffers[name], tensor) for name, tensor in model.named_buffers())
    assert buffers["num_batches_tracked"] == 1


def test_restored_state_lies_in_memory_as_its_parameter_does() -> None:
    """Fused kernels pair values by their place in memory: a contiguous moment of a channels-last weight would be read in another order."""

    class Convolution(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)

    torch.manual_seed(0)
    model, other = Convolution(), Convolution()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 4, 4)
    optimizer, optimizer2 = (torch.optim.AdamW(param_groups(m, weight_decay=0.1), lr=0.1, fused=True) for m in (model, other))
    model(x).square().sum().backward()
    optimizer.step()
    other.load_state_dict(model.state_dict())
    contiguous = {name: tensor.contiguous() for name, tensor in optimizer_tensors(optimizer, model).items()}
    load_optimizer_tensors(optimizer2, other, contiguous)
    for each, stepper in ((model, optimizer), (other, optimizer2)):
        stepper.zero_grad()
        each(x).square().sum().backward()
        stepper.step()
    assert torch.equal(model.head.weight, other.head.weight)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_momentum_goes_on_bit_equal(momentum: float) -> None:
    """Nesterov's momentum as torch has it; the very first step has no momentum yet, and neither has a run without."""
    settings = OptimConfig(optimizer="sgd", lr=0.1, momentum=momentum)
    torch.manual_seed(0)
    model, other = Toy().eval(), Toy().eval()
    first, second = (make_optimizer(param_groups(m, weight_decay=1e-4), settings) for m in (model, other))
    assert isinstance(first, torch.optim.SGD)
    assert first.defaults["nesterov"] == (momentum > 0)
    for number in range(3):
        if number == 1:
            other.load_state_dict(model.state_dict())
            load_optimizer_tensors(second, other, optimizer_tensors(first, model))
        for net, stepper in ((model, first), (other, second)):
            stepper.zero_grad()
            net(torch.ones(3, 4)).square().sum().backward()
            if number or net is model:
                stepper.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_the_optimiser_goes_on_bit_equal_from_its_saved_state(fused: bool) -> None:
    torch.manual_seed(0)
    model = Toy().eval()
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.1), lr=0.1, fused=fused)

    def step(model: Toy, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()

    step(model, optimizer)
    other = Toy().eval()
    other.load_state_dict(model.state_dict())
    optimizer2 = torch.optim.AdamW(param_groups(other, weight_decay=0.1), lr=0.1, fused=fused)
    load_optimizer_tensors(optimizer2, other, optimizer_tensors(optimizer, model))
    for _ in range(2):
        step(model, optimizer)
        step(other, optimizer2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="another network"):
        load_optimizer_tensors(optimizer2, other, {"absent/exp_avg": torch.zeros(1)})
