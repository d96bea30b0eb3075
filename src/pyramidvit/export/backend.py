"""A trained network behind the backend that was asked for."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from pyramidvit.export.describe import digest
from pyramidvit.export.exported import load_exported
from pyramidvit.export.graphs import backbone_of
from pyramidvit.export.runtimes import Backend, choose
from pyramidvit.export.write import export
from pyramidvit.runtime import compiled
from pyramidvit.types import Preprocess
from pyramidvit.weights import WeightsMeta

ABLE: tuple[Backend, ...] = ("openvino", "onnx", "torch")
"""What ``auto`` chooses from for a network; torch.compile, which needs about a minute before its first answer, has to be asked for."""


def with_backend(
    model: nn.Module,
    meta: WeightsMeta,
    declared: Sequence[int],
    backend: Backend,
    *,
    kept: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[nn.Module, str]:
    """The network as it is to be run, and the name of what runs it; ``declared`` (C, [T,] H, W) is the input that it was trained on.

    For ONNX Runtime and OpenVINO it is one of the exports in ``kept``, if it was made of these weights, else a new one, verified and thrown
    away at the end. UserError when the backend is not installed, or the network can't be exported.
    """
    chosen = "compile" if backend == "compile" else choose(backend, ABLE)
    if chosen == "torch":
        return model, chosen
    if chosen == "compile":
        return compiled(model, dynamic=None), chosen
    weights = digest(model) if kept else ""
    for file in kept:
        if file.suffix == ".xml" and chosen != "openvino":
            continue
        exported = load_exported(file, chosen)
        if exported.description.weights == weights and exported.description.precision == "fp32":
            return exported, chosen
    progress(f"exporting for {chosen}; `pyramidvit export` does it once for all")
    folder = Path(tempfile.mkdtemp(prefix="pyramidvit-"))
    try:
        path = folder / "network.onnx"
        export(model, meta, declared, path, "onnx", progress=progress)
        return load_exported(path, chosen), chosen
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def anonymous(model: nn.Module, backend: Backend) -> nn.Module:
    """A network without a task behind a backend, to time it: verified like any other export."""
    shape = backbone_of(model).input_shape
    meta = WeightsMeta("network", "classify", (), Preprocess.for_channels(shape[0]))
    return with_backend(model.eval(), meta, shape, backend)[0]
