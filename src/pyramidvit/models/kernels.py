"""Linear layers as oneDNN computes them: the same numbers to rounding, sooner on the CPU.

torch's own linear layer copies the bias over its whole output before the product, and its matrix library is slow on the tall, narrow
matrices of a pyramid's first stages. The operators that torch.compile emits for oneDNN do both better; docs/results.md has the figures.
They are used in eager mode, on the CPU, in float32, and nowhere else: tracing, export, autocast and accelerators see plain torch.
Shapes: B batch, *N any grid, I inputs, O outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class Linear(nn.Linear):
    """nn.Linear, through oneDNN where that is possible."""

    def forward(self, input: Float[Tensor, "B *N I"]) -> Float[Tensor, "B *N O"]:
        return linear(input, self.weight, self.bias)


class GeluLinear(nn.Linear):
    """A linear layer on the GELU of its input. Training keeps that input only, and computes its GELU anew in the backward pass."""

    def forward(self, input: Float[Tensor, "B *N I"]) -> Float[Tensor, "B *N O"]:
        if not has_onednn(input):
            return F.linear(F.gelu(input), self.weight, self.bias)
        if torch.is_grad_enabled():
            return _GeluLinear.apply(input, self.weight, self.bias)
        return _product(F.gelu(input), self.weight, self.bias)


def linear(x: Float[Tensor, "B *N I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> Float[Tensor, "B *N O"]:
    """F.linear, through oneDNN where that is possible."""
    if not has_onednn(x):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _product(x, weight, bias)


def linear_gelu(x: Float[Tensor, "B *N I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> Float[Tensor, "B *N O"]:
    """The exact GELU of a linear layer, where possible in one pass; for inference, since it keeps nothing for a gradient."""
    if not has_onednn(x) or torch.is_grad_enabled():
        return F.gelu(F.linear(x, weight, bias))
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "none")


def conv_gelu(x: Float[Tensor, "B C H W"], conv: nn.Conv2d) -> Float[Tensor, "B C2 H2 W2"]:
    """The exact GELU of a convolution with zero padding, in inference in one pass where possible."""
    if torch.is_grad_enabled() or not has_onednn(x):
        return F.gelu(nn.Conv2d.forward(conv, x))
    shape = list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups
    return torch.ops.mkldnn._convolution_pointwise(x, conv.weight, conv.bias, *shape, "gelu", [], "none")


def has_onednn(x: Tensor) -> bool:
    """Whether oneDNN's own operators may take ``x``: eager float32 on the CPU, and nobody counts, traces or transforms operators."""
    return (
        not torch.compiler.is_compiling()  # first: the compiler can't follow the rest
        and type(x) is Tensor
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]  # torch.func
        and torch._C._len_torch_dispatch_stack() == 0  # operation counters and the like
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _gradients(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, weight and bias; plain torch where they are to be differentiated again."""
    rows = grad.flatten(0, -2)
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = grad @ weight if torch.is_grad_enabled() else _product(grad, weight.t(), None)
    if ctx.needs_input_grad[1]:
        grad_weight = rows.t() @ x.flatten(0, -2)
    if ctx.needs_input_grad[2]:
        grad_bias = rows.sum(0)
    return grad_x, grad_weight, grad_bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _gradients(ctx, x, weight, *grad_outputs)


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(F.gelu(x), weight, bias)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_active, grad_weight, grad_bias = _gradients(ctx, F.gelu(x), weight, *grad_outputs)
        grad_x = None if grad_active is None else torch.ops.aten.gelu_backward(grad_active, x)
        return grad_x, grad_weight, grad_bias
