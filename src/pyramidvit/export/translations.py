"""Operators of torch in those of ONNX, where the exporter has no translation or one that is slow. Values are onnxscript's.

Shapes: B batch or rows, C channels, G groups, N boxes of a row.
"""

from collections.abc import Callable
from typing import Any

import torch

from pyramidvit.export.suppress import suppress


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Operator of torch → function that the exporter calls in its place."""
    return {suppress._opoverload: _suppress, torch.ops.aten.group_norm.default: _group_norm}


def _operators() -> Any:
    """Those of the opset that files are written in; their own types speak of constants, not of values."""
    from onnxscript import opset20  # noqa: PLC0415

    return opset20


def _suppress(boxes: Any, scores: Any, iou: float, limit: int) -> Any:
    op = _operators()
    # OpenVINO forgets in graphs of 8 bits for any size that boxes have four numbers, and needs to know.
    boxes = op.Gather(boxes, op.Constant(value_ints=[0, 1, 2, 3]), axis=2)
    limits = op.Constant(value_ints=[limit]), op.Constant(value_floats=[iou]), op.Constant(value_floats=[0.0])
    chosen = op.NonMaxSuppression(boxes, scores, *limits)
    nothing = op.Mul(scores, op.Constant(value_float=0.0))
    kept = op.GatherND(scores, chosen)  # (number chosen,), whose rows are (row, group, box)
    return op.ScatterND(nothing, chosen, kept)


def _group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: ARG001  part of the operator's signature
) -> Any:
    """Of maps (B, C, ...) by the means of channels: the exporter's own way joins the channels of a group in one axis, for which a runtime
    that keeps maps channels-last copies them twice."""
    op, axes = _operators(), range(2, len(input.shape))
    apart, line = op.Constant(value_ints=[0, num_groups, -1]), op.Constant(value_ints=[1, -1, *[1] * len(axes)])

    def of_groups(x: Any) -> Any:
        """Mean over the group of each channel, (B, C, 1, ...)."""
        channels = op.ReduceMean(x, op.Constant(value_ints=[*axes]), keepdims=1)
        members = op.Reshape(channels, apart)  # (B, G, C / G)
        groups = op.ReduceMean(members, op.Constant(value_ints=[2]), keepdims=1)
        return op.Reshape(op.Expand(groups, op.Shape(members)), op.Shape(channels))

    x = op.Sub(input, of_groups(input))
    scale = op.Reciprocal(op.Sqrt(op.Add(of_groups(op.Mul(x, x)), op.Constant(value_float=eps))))
    x = op.Mul(x, scale if weight is None else op.Mul(scale, op.Reshape(weight, line)))
    return x if bias is None else op.Add(x, op.Reshape(bias, line))
