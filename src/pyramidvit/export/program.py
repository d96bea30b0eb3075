"""A graph traced by torch.export, for any number of pictures and, where the network allows, any size and number of frames."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx.experimental._config as tracing
from torch import Tensor
from torch._dynamo.exc import UserError as TracingError
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from pyramidvit.errors import UserError
from pyramidvit.export.graphs import Graph, backbone_of
from pyramidvit.models.baselines import TimmBackbone

EXAMPLE = (288, 416)
"""Height and width to trace with where any will do: no map of any level has a side of 1, which would be taken for a constant."""


@dataclass(frozen=True)
class Traced:
    """A program, and the only (height, width) and number of frames that it takes, None where any will do."""

    program: ExportedProgram
    size: tuple[int, int] | None = None
    frames: int | None = None


def trace(graph: Graph, declared: Sequence[int]) -> Traced:
    """Trace a graph whose network was trained on inputs ``declared`` (C, [T,] H, W).

    Ours take any size and number of frames. Some of timm's networks ask about sizes while they run; these are traced for ``declared`` only.
    UserError when a network can't be traced at all.
    """
    C, *frames, H, W = declared
    if not isinstance(backbone_of(graph.model), TimmBackbone):
        return Traced(_for_small_ones_too(_trace(graph, (C, *[6] * len(frames), *EXAMPLE), fixed=False)))
    try:
        return Traced(_trace(graph, (C, *EXAMPLE), fixed=False))
    except (TracingError, UserError, RuntimeError, ValueError, AssertionError):  # each of timm's networks has its own way to say so
        size = (H, W)
    try:
        return Traced(_trace(graph, (C, *size), fixed=True), size)
    except (TracingError, RuntimeError, ValueError, AssertionError) as error:
        raise UserError(f"torch can't export this network of timm: {error}. Choose another one.") from None


def _for_small_ones_too(program: ExportedProgram) -> ExportedProgram:
    """The program without lower bounds of sizes: the tracer assumes that no map has a side of 1, which ours don't need."""
    for symbol, bounds in list(program.range_constraints.items()):
        program.range_constraints[symbol] = ValueRanges(min(bounds.lower, 1), bounds.upper)
    return program


def _trace(graph: Graph, shape: tuple[int, ...], *, fixed: bool) -> ExportedProgram:
    images = torch.randn(2, *shape)
    batch = Dim.DYNAMIC
    sizes: dict[int, object] = {} if fixed else dict.fromkeys(range(2, images.ndim), Dim.DYNAMIC)
    inputs: list[Tensor] = [images]
    dynamic: list[dict[int, object]] = [{0: batch, **sizes}]
    if len(graph.inputs) > 1:
        inputs.append(torch.tensor([shape[-2:]] * 2))
        dynamic.append({0: batch})
    with torch.no_grad(), warnings.catch_warnings(), tracing.patch(backed_size_oblivious=True):  # pyright: ignore
        warnings.simplefilter("ignore")  # about the tracer's own insides, and sizes that weights were not trained on
        return torch.export.export(graph, tuple(inputs), dynamic_shapes=tuple(dynamic))
