"""From a run folder or a weights file to predictions on pictures, one at a time or streamed."""

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

import numpy as np
import torch
from PIL import Image
from torch import nn

from pyramidvit import weights
from pyramidvit.data.loader import collate
from pyramidvit.draw import encode_png
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.export.backend import with_backend
from pyramidvit.export.exported import Exported, load_exported
from pyramidvit.export.formats import Format, format_of
from pyramidvit.export.runtimes import Backend, is_exported
from pyramidvit.export.write import ExportReport, export
from pyramidvit.files import write_bytes
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import Device, make_accelerator
from pyramidvit.tasks import Task
from pyramidvit.tasks.dense import DenseTask
from pyramidvit.tasks.pictures import eight_bits, pictures_in
from pyramidvit.tasks.table import task_from_weights
from pyramidvit.types import BadSample, Batch, Film, Prediction, Sample
from pyramidvit.views import WHOLE, Views, predict_views
from pyramidvit.weights.source import obtain
from pyramidvit.weights.zoo import ZOO

Source = str | Path | np.ndarray
"""A file, or an upright picture as an array (H, W, C) uint8, or float32 from 0 to 1; a clip as one (T, H, W, C) uint8."""


@dataclass(frozen=True)
class Predicted:
    """What the network says about one picture or clip, and the picture itself, (H, W, C), or frames of the clip."""

    prediction: Any
    """A ``Prediction``; which one depends on the task."""
    image: np.ndarray | Film = field(repr=False)
    task: Task = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return self.prediction.to_json()

    def text(self, k: int = 5) -> str:
        """The prediction in a line, at most k classes; of detections those that are drawn."""
        return self.task.shown(self.prediction).text(k)

    def draw(self) -> Image.Image:
        """The picture with the prediction on it."""
        return self.task.draw(self.image if isinstance(self.image, Film) else eight_bits(self.image), self.prediction)

    def save(self, path: str | Path) -> Path:
        """Write the annotated picture as a PNG file. UserError for a name that ends otherwise."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise UserError(f"Annotated pictures are PNG files: end the name in .png, got {path.name}.")
        make_folder(path.parent)
        write_bytes(path, encode_png(self.draw(), level=1))
        return path


class _Group(NamedTuple):
    """Pictures with their samples, or why they can't be read, and the batch of those that can; None where there is none."""

    entries: list[tuple[Any, Sample] | BadSample]
    batch: Batch | None


class Predictor:
    """A trained network with everything it needs: ``predictor("photo.jpg")``, ``predictor([…])`` or ``predictor.stream(paths)``."""

    def __init__(
        self, task: Task, model: nn.Module, device: torch.device, batch_size: int = 8, views: Views = WHOLE, backend: str = "torch"
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}.")
        if views != WHOLE and not isinstance(task, DenseTask):
            raise UserError(f"Tiles, flips and scales are for segmentation and detection; these weights are for: {task.title.lower()}.")
        self.views = views
        self.task = task
        self.model = model.eval().to(device)
        self.device = device
        self.backend = backend
        self.batch_size = batch_size
        self.transform = task.transform(training=False)

    @overload
    def __call__(self, source: Source) -> Predicted: ...
    @overload
    def __call__(self, source: Iterable[Source]) -> list[Predicted]: ...

    def __call__(self, source: Source | Iterable[Source]) -> Predicted | list[Predicted]:
        """Predict for one picture, or for several in order. BadFileError for the first that can't be read."""
        sources: Iterable[Source] = [source] if isinstance(source, str | Path | np.ndarray) else source
        results: list[Predicted] = []
        for result in self.stream(sources):
            if isinstance(result, BadSample):
                raise BadFileError(result.path, result.reason)
            results.append(result)
        return results[0] if isinstance(source, str | Path | np.ndarray) else results

    def stream(self, sources: Iterable[Source]) -> Iterator[Predicted | BadSample]:
        """Predictions in order; a picture that can't be read gives a BadSample in its place.

        While the network computes one batch, a thread reads the next; no more are in memory.
        """
        if self.views != WHOLE:
            yield from map(self._look, sources)
            return
        remaining = iter(sources)
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._prepare, remaining)
            while (group := ahead.result()).entries:
                ahead = reader.submit(self._prepare, remaining)
                predictions = iter(self._predict(group.batch))
                for entry in group.entries:
                    yield entry if isinstance(entry, BadSample) else Predicted(next(predictions), entry[0], self.task)

    def export(self, path: str | Path, format: Format | None = None) -> ExportReport:
        """Write the network as a file that is enough to predict elsewhere: .onnx, .xml (OpenVINO) or .pt2 (torch), verified beside it."""
        if isinstance(self.model, Exported):
            raise UserError("This network is an exported file already: copy it, or export the run that it was made from.")
        path = Path(path)
        meta = self.task.weights_meta(self.task.measured)
        return export(self.model, meta, self.task.input_shape, path, format or format_of(path))

    def _look(self, source: Source) -> Predicted | BadSample:
        entry = self._read(source)
        if isinstance(entry, BadSample):
            return entry
        image, sample = entry
        prediction = predict_views(cast(DenseTask, self.task), self._forward, sample, self.views, self.batch_size)
        return Predicted(prediction, image, self.task)

    def _read(self, source: Source) -> tuple[Any, Sample] | BadSample:
        if not isinstance(source, str | Path | np.ndarray):
            got = type(source).__name__
            raise UserError(f"A picture is a path or an array (H, W, C), got {got}; np.asarray(picture) makes an array of most things.")
        try:
            return self.task.read(source)
        except BadFileError as error:
            return BadSample(error.path, error.reason)

    def _forward(self, batch: Batch) -> Any:
        return self.model(batch.to(self.device).images)

    def _prepare(self, sources: Iterator[Source]) -> _Group:
        """The next batch."""
        entries = [self._read(source) for source in islice(sources, self.batch_size)]
        samples = [self.transform(entry[1]) for entry in entries if not isinstance(entry, BadSample)]
        return _Group(entries, collate(samples) if samples else None)

    @torch.inference_mode()
    def _predict(self, batch: Batch | None) -> Sequence[Prediction]:
        return [] if batch is None else self.task.predict(self._forward(batch), batch)


def load(
    path: str | Path,
    *,
    device: Device = "auto",
    batch_size: int = 8,
    views: Views = WHOLE,
    backend: Backend | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Predictor:
    """A predictor from a run folder (its best weights), from one weights file of ours, from an exported file (.onnx, .xml, .pt2), or from
    published weights such as pvt_v2_b2.in1k.

    ``backend`` is what runs the network: torch if not given, and for exported files the fastest that is installed. ``progress`` hears what
    takes long. UserError when there is nothing to load, or the backend can't run it.
    """
    published = str(path) in ZOO
    path = Path(path)
    if is_exported(path) and not published:
        exported = load_exported(path, backend or "auto")
        task = task_from_weights(path, exported.description.meta)
        return Predictor(task, exported, _cpu(device, exported.backend), batch_size, views, exported.backend)
    file = RunFolder.open(path).best_weights if path.is_dir() else path
    if not file.is_file() and not published:
        raise UserError(_no_weights(path, file))
    tensors, meta = obtain(str(path)) if published else weights.read(file)
    if meta is None:
        raise UserError(f"{file} holds weights without classes and preprocessing; expected a file that `pyramidvit train` wrote.")
    task = task_from_weights(file, meta)
    with torch.device("meta"):  # random weights would only be overwritten
        model = task.model()
    model.to_empty(device="cpu")
    weights.load(model, tensors)
    chosen = make_accelerator(device, "fp32").device
    if backend is None or (backend == "auto" and chosen.type != "cpu"):
        return Predictor(task, model, chosen, batch_size, views)
    kept = sorted(f for f in (path / "exports").glob("*") if f.suffix in (".onnx", ".xml")) if path.is_dir() else []
    running, name = with_backend(model.eval(), meta, task.input_shape, backend, kept=kept, progress=progress)
    return Predictor(task, running, _cpu(device, name) if isinstance(running, Exported) else chosen, batch_size, views, name)


def _cpu(device: Device, backend: str) -> torch.device:
    """Where exported files run. UserError when another device was asked for."""
    if device not in ("auto", "cpu"):
        raise UserError(f"{backend} runs on the CPU here, and --device is {device}: leave it out, or choose --backend torch.")
    return torch.device("cpu")


def find_pictures(sources: Iterable[str], files_in: Callable[[Path], list[Path]] = pictures_in) -> list[Path]:
    """Files from files, folders (what ``files_in`` finds in them) and patterns.

    UserError for a source that gives none. A file that does not exist is found out when it is read, like any other that can't be.
    """
    pictures: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir() and source:
            found = files_in(path)
        elif path.exists() or (source and not glob.has_magic(source)):
            found = [path]
        else:
            found = [Path(p) for p in sorted(glob.glob(source, recursive=True)) if Path(p).is_file()]
        if not found:
            raise UserError(f"{source!r} gives nothing to look at. Expected a file, a folder or a pattern such as 'photos/*.jpg'.")
        pictures += found
    return pictures


def make_folder(path: Path) -> None:
    """Make a folder to write to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Can't make the folder {path}: {error.strerror}. Choose another one.") from None


def _no_weights(path: Path, file: Path) -> str:
    if path.is_dir():
        return f"{path} holds no weights yet: its training has not finished an epoch. Go on with `pyramidvit train --resume {path}`."
    return (
        f"There is no run or file {file}. Expected a run folder, a .safetensors file that `pyramidvit train` wrote, published weights "
        "such as pvt_v2_b2.in1k, or, to predict and evaluate, an exported file."
    )
