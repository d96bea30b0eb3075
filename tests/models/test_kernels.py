"""oneDNN's linear layers give what plain torch gives, forwards, backwards and beyond."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from pyramidvit.models.kernels import GeluLinear, Linear, conv_gelu, has_onednn


def plain(layer, x):
    return F.linear(F.gelu(x) if isinstance(layer, GeluLinear) else x, layer.weight, layer.bias)


@pytest.fixture(params=[Linear, GeluLinear])
def layer(request):
    torch.manual_seed(0)
    return request.param(24, 40)


@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 4, 24), (1, 24), (0, 24), (2, 0, 24)])
def test_equals_plain_torch_in_both_directions(layer, shape):
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), plain(layer, x), rtol=1e-5, atol=1e-6)
    results = []
    for function in (layer, lambda t: plain(layer, t)):
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        out = function(leaf)
        out.square().sum().backward()
        results.append([out.detach(), leaf.grad, layer.weight.grad, layer.bias.grad])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_convolution_with_gelu():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(12, 12, 3, padding=1, groups=12)
    x = torch.randn(2, 12, 9, 7)
    want = F.gelu(conv(x))
    torch.testing.assert_close(conv_gelu(x, conv), want)
    with torch.no_grad():
        for memory in (x, x.to(memory_format=torch.channels_last), x[:0]):
            torch.testing.assert_close(conv_gelu(memory, conv), want[: len(memory)], rtol=1e-5, atol=1e-6)


def test_strided_inputs_and_gradients(layer):
    x = torch.randn(6, 24, 5).transpose(1, 2).requires_grad_()
    out = layer(x).transpose(1, 2)
    out.backward(torch.randn_like(out))
    assert out.isfinite().all()
    torch.testing.assert_close(out.transpose(1, 2), plain(layer, x), rtol=1e-5, atol=1e-6)


def test_can_be_differentiated_twice(layer):
    x = torch.randn(3, 24, requires_grad=True)
    results = []
    for function in (layer, lambda t: plain(layer, t)):
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), (x, layer.weight)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_frozen_weights_get_no_gradient_and_let_it_through(layer):
    layer.requires_grad_(False)
    x = torch.randn(3, 24, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None


def test_only_eager_float32_on_the_cpu_is_taken(layer):
    x = torch.randn(2, 24)
    assert has_onednn(x)
    assert not has_onednn(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not has_onednn(x)
    finally:
        torch._C._set_mkldnn_enabled(True)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 2 * 24 * 40
    torch.testing.assert_close(torch.func.vmap(layer)(x[None])[0], plain(layer, x), rtol=1e-5, atol=1e-6)
    exported = torch.export.export(layer, (x,))
    assert "mkldnn" not in str(exported.graph)


def test_training_keeps_the_input_of_gelu_only():
    """Without it, the largest tensor of every block would be kept twice."""
    torch.manual_seed(0)
    layer, kept = GeluLinear(24, 40), []
    x = torch.randn(64, 24, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.shape), t)[1], lambda t: t):
        layer(x)
    assert kept == [x.shape, layer.weight.shape]
