"""torch.compile: the same numbers as without, and no new graph for every size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.runtime import compiled


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return PVTv2(PVTv2Config(widths=(16, 16, 32, 32), depths=(1, 1, 1, 1), heads=(1, 1, 2, 2), expansions=(2, 2, 2, 2), drop_path_rate=0.0))


def gradients(network: nn.Module, weights: nn.Module, x: Tensor) -> list[Tensor]:
    outputs = network(x)
    loss = torch.stack([y.square().mean() for y in outputs]).sum()
    return [*outputs, *torch.autograd.grad(loss, [*weights.parameters()])]


@pytest.mark.slow
def test_a_training_step_is_the_same():
    network = small_network()
    x = torch.randn(2, 3, 64, 97)
    for got, want in zip(gradients(compiled(network, dynamic=False), network, x), gradients(network, network, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_many_sizes_do_not_make_as_many_graphs():
    """PB-95, for training: eight sizes have a graph of their own, further ones run as without."""
    network = nn.Conv2d(1, 1, 1)
    torch.compiler.reset()
    fast = compiled(network, dynamic=False, backend=(graphs := CountGraphs()))
    for side in range(3, 15):
        x = torch.randn(1, 1, side, side)
        torch.testing.assert_close(fast(x), network(x))
    assert graphs.made == 8


class CountGraphs:
    """A compiler that compiles nothing."""

    made = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        self.made += 1
        return graph.forward


def test_a_missing_compiler_is_said_before_training(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        compiled(small_network(), dynamic=False)
