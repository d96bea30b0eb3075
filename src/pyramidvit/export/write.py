"""`export`: a trained network as a file that is proven equal before it gets its name."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from pyramidvit.errors import UserError
from pyramidvit.export.describe import Description, digest
from pyramidvit.export.exported import Exported, load_exported
from pyramidvit.export.formats import SUFFIXES, Format, write_onnx, write_openvino, write_program
from pyramidvit.export.graphs import graph_of
from pyramidvit.export.program import trace
from pyramidvit.export.smaller import write_halves, write_int8
from pyramidvit.export.verify import TOLERANCE, Difference, verify
from pyramidvit.files import TEMP_PREFIX, give_name
from pyramidvit.types import Batch
from pyramidvit.weights import WeightsMeta

Precision = Literal["fp32", "fp16", "int8"]
WORKSHOP = f"{TEMP_PREFIX}export-"
"""Starts the name of the folder in which an export is made, the number of its process follows."""
LEFT_AFTER = 3600.0
"""Seconds without anything new after which a workshop may have been left by a kill."""


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it is from the network. ``size`` and ``frames`` are the only ones it takes, None: any."""

    path: Path
    format: Format
    precision: Precision
    bytes: int
    size: tuple[int, int] | None
    frames: int | None
    differences: tuple[Difference, ...]
    seconds: float

    @property
    def largest(self) -> float | None:
        """The largest difference, in the terms of `verify.TOLERANCE`; None for int8, of which only a metric can say what it costs."""
        return max((one.value for one in self.differences), default=None)

    def to_json(self) -> dict[str, Any]:
        differences = [asdict(one) for one in self.differences]
        return {
            "path": str(self.path),
            "format": self.format,
            "precision": self.precision,
            "bytes": self.bytes,
            "size": None if self.size is None else list(self.size),
            "frames": self.frames,
            "largest_difference": self.largest,
            "tolerance": TOLERANCE.get(self.precision),
            "differences": differences,
            "seconds": self.seconds,
        }


def export(
    model: nn.Module,
    meta: WeightsMeta,
    declared: Sequence[int],
    path: Path,
    format: Format = "onnx",
    *,
    precision: Precision = "fp32",
    calibration: Iterable[Batch] = (),
    accept: Callable[[Exported, Exported], None] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ExportReport:
    """Write a network as a file, verified beside it; ``declared`` (C, [T,] H, W) is the input that it was trained on.

    ``calibration`` is what int8 is fitted to. ``accept`` is shown the export in full precision and the one to be kept, and raises to keep
    none. An older file of that name is replaced at the end, or stays as it was. UserError when the path is wrong, the network can't be
    exported, or the file differs.
    """
    started = time.perf_counter()
    check_path(path, format)
    if precision != "fp32" and format == "torch":
        raise UserError(f"torch's format keeps full precision; for {precision} choose --format onnx or openvino.")
    model = model.cpu().eval()
    graph = graph_of(model)
    with _workshop(path) as folder:
        progress("tracing")
        traced = trace(graph, declared)
        description = Description(meta, graph.inputs, graph.outputs, traced.size, traced.frames, weights=digest(model))
        progress("writing")
        full = folder / "full" / path.name
        full.parent.mkdir()
        if format == "torch":
            write_program(full, traced, description)
        else:
            onnx_file = full.with_suffix(".onnx")
            write_onnx(onnx_file, traced, graph, description)
            if format == "openvino":
                write_openvino(full, onnx_file, description)
        progress("verifying")
        differences = verify(model, load_exported(full, format), declared)
        kept = full
        if precision != "fp32":
            progress(f"converting to {precision}")
            kept = _smaller(folder, full, format, replace(description, precision=precision), calibration)
            differences = verify(model, load_exported(kept, format, exact=True), declared) if precision in TOLERANCE else []
            if accept is not None:
                accept(load_exported(full, format), load_exported(kept, format))  # new ones: neither knows a shape the other doesn't
        size = sum(file.stat().st_size for file in _files(kept, format))
        _keep(kept, path, format)
    return ExportReport(path, format, precision, size, traced.size, traced.frames, tuple(differences), time.perf_counter() - started)


def check_path(path: Path, format: Format) -> None:
    """UserError unless a file of this format can have this name."""
    if path.suffix.lower() != SUFFIXES[format]:
        right = path.with_suffix(SUFFIXES[format]).name
        raise UserError(f"Files of the format {format} end in {SUFFIXES[format]}, got {path.name}: name it {right}.")
    if not path.parent.is_dir():
        raise UserError(f"Can't write {path}: the folder {path.parent} does not exist. Make it first.")
    if path.is_dir():
        raise UserError(f"Can't write {path}: it is a folder. Choose another name.")


def _smaller(folder: Path, full: Path, format: Format, description: Description, calibration: Iterable[Batch]) -> Path:
    """The same network in fewer bits, beside the ONNX file of full precision."""
    kept, source = folder / full.name, full.with_suffix(".onnx")
    onnx_file = kept.with_suffix(".onnx")
    if description.precision == "int8":
        write_int8(source, onnx_file, description, calibration)
    elif format == "onnx":
        write_halves(source, onnx_file, description)
    if format == "openvino":
        write_openvino(kept, onnx_file if description.precision == "int8" else source, description)
    return kept


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A folder beside the file to come, which goes again whatever happens; one that a kill left goes with the next export."""
    _sweep(path.parent)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{WORKSHOP}{os.getpid()}-", dir=path.parent))
    except OSError as error:
        raise UserError(f"Can't write {path}: {error.strerror}. Choose another folder.") from None
    try:
        yield folder
    except OSError as error:
        raise UserError(f"Can't write {path}: {error.strerror or error}. Free some space or choose another folder.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the workshops that a kill left: the process is gone, and, as it may be on another machine, nothing was new for an hour."""
    for left in folder.glob(f"{WORKSHOP}*"):
        with suppress(OSError):  # it is somebody else's, or they are removing it too
            if time.time() - left.stat().st_mtime > LEFT_AFTER and not _runs(left.name.removeprefix(WORKSHOP).partition("-")[0]):
                shutil.rmtree(left)


def _runs(process: str) -> bool:
    """Whether a process may be running; always elsewhere than on POSIX systems, where asking would end it."""
    if os.name != "posix" or not process.isdigit():
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        pass
    return True


def _files(path: Path, format: Format) -> list[Path]:
    """All files of an export, the one that names it last."""
    return [path.with_suffix(".bin"), path] if format == "openvino" else [path]


def _keep(file: Path, path: Path, format: Format) -> None:
    for part, target in zip(_files(file, format), _files(path, format), strict=True):
        give_name(part, target)
