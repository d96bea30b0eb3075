"""`pyramidvit predict`: what is on pictures."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from cyclopts.validators import Number
from PIL import Image
from rich.console import Console

from pyramidvit import predict as predicting
from pyramidvit.coco_results import write_coco_document
from pyramidvit.config import Section
from pyramidvit.config.base import Positive
from pyramidvit.draw import encode_png
from pyramidvit.errors import UserError
from pyramidvit.export.runtimes import Backend
from pyramidvit.files import write_bytes
from pyramidvit.predict import Predictor
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import Device
from pyramidvit.tasks.detect import DetectTask
from pyramidvit.tasks.segment import SegmentTask
from pyramidvit.timelines import timelines
from pyramidvit.types import BadSample, Detections, SegMap
from pyramidvit.verbs import BatchSize, Json, TopK, print_json
from pyramidvit.views import Views


@Parameter(name="*", group="Several looks, for segmentation and detection")
class Looks(Section):
    """How often and at what the network looks."""

    tile: int | None = None
    """Look at large pictures in tiles of so many pixels, best the size of the training pictures."""
    overlap: float = 0.25
    """Share of a tile that it has in common with the next one."""
    flip: Annotated[bool, Parameter(negative="")] = False
    """Look at the mirrored picture too."""
    scales: Annotated[tuple[float, ...], Parameter(consume_multiple=1)] = (1.0,)
    """Look at several sizes, as factors."""


@Parameter(name="*", group="Long videos")
class Sliding(Section):
    """A window that slides over a video."""

    timeline: Annotated[bool, Parameter(negative="")] = False
    """Say what happens when in each video; asked for by the other two as well."""
    window: Positive | None = None
    """Seconds that one answer is about; those of a clip if not given."""
    hop: Positive | None = None
    """Seconds from one window to the next; half a window if not given."""


def predict(
    run: Path,
    *pictures: str,
    out: Path | None = None,
    top: TopK = 5,
    batch_size: BatchSize = 8,
    device: Device = "auto",
    backend: Backend | None = None,
    looks: Looks | None = None,
    min_score: Annotated[float, Number(gte=0, lte=1)] | None = None,
    coco: Path | None = None,
    labels: Path | None = None,
    sliding: Sliding | None = None,
    json: Json = False,
) -> int:
    """Say what is on pictures or in clips, and write each one with its prediction on it.

    Args:
        run: Run folder, a weights file, or an exported file.
        pictures: Files, folders and patterns such as 'photos/*.jpg'; videos and folders of frames for a network for clips.
        out: Folder for the annotated pictures; predictions/ of the run if not given.
        top: Classes to name per picture.
        batch_size: Pictures per step.
        device: Where to compute.
        backend: What runs the network: torch if not given, the fastest that is installed for an exported file and with auto.
        min_score: Detection: leave out what has a lower score; pictures show what is above the best score of the evaluation.
        coco: Detection: write one COCO json of all pictures to this file.
        labels: Segmentation: folder for label maps, PNG files whose values are class numbers.
        json: Print one JSON object per line and write no pictures.
    """
    if not pictures:
        raise UserError("Give pictures to look at: pyramidvit predict RUN photo.jpg (folders and patterns work too).")
    views = Views(**(looks or Looks()).model_dump())
    predictor = load_with_backend(run, backend, device=device, batch_size=batch_size, views=views)
    for flag, kind, value in (("--coco", DetectTask, coco), ("--min-score", DetectTask, min_score), ("--labels", SegmentTask, labels)):
        if value is not None and not isinstance(predictor.task, kind):
            raise UserError(f"{flag} is for {kind.title.lower()}; these weights are for: {predictor.task.title.lower()}.")
    folder = out or (RunFolder.open(run).predictions if run.is_dir() else Path("predictions"))
    _check_targets(None if json else folder, labels, coco=coco)
    failed, found, names, label_names = 0, list[Detections](), _free_names(folder), _free_names(labels or folder)
    files = predicting.find_pictures(pictures, predictor.task.files_in)
    for result in timelines(predictor, files, sliding.window, sliding.hop) if sliding else predictor.stream(files):
        if isinstance(result, BadSample):
            failed += 1
            _complain(result, json)
            continue
        if min_score is not None:
            result = replace(result, prediction=result.prediction.above(min_score))
        found += [result.prediction] if coco else []
        if labels is not None:
            _write_labels(label_names(result.prediction.path), result.prediction)
        if json:
            print_json(result.prediction.to_json(top))
        else:
            saved = result.save(names(result.prediction.path))
            _console().print(f"{result.prediction.path}: {result.text(top)}  → {saved}", markup=False)
    if coco is not None:
        write_coco_document(coco, found)
    return 2 if failed else 0


def load_with_backend(run: Path, backend: Backend | None, **settings: Any) -> Predictor:
    """A predictor; on standard error what is done when that takes long, and which backend was chosen where that was left to us."""
    tell = _console(stderr=True)
    predictor = predicting.load(run, backend=backend, progress=lambda text: tell.print(f"{text} …", markup=False), **settings)
    if backend == "auto" or (backend is None and predictor.backend != "torch"):
        tell.print(f"backend: {predictor.backend}", markup=False)
    return predictor


def _json_file(path: Path) -> Path:
    """The path, if one json can be written to it."""
    if path.suffix.lower() != ".json" or path.is_dir():
        what = "is a folder" if path.is_dir() else f"ends in {path.suffix!r}"
        raise UserError(f"--coco writes one json of all pictures: give a file that ends in .json, and {path} {what}.")
    return path


def _check_targets(*folders: Path | None, coco: Path | None) -> None:
    """All that is written to, before the first picture."""
    for place in (*folders, None if coco is None else _json_file(coco).parent):
        if place is not None:
            _check_writable(place)


def _check_writable(folder: Path) -> None:
    """Make a folder and see that files can be written there, before there is something to lose."""
    predicting.make_folder(folder)
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"Can't write to the folder {folder}: {error.strerror}. Choose another one, or make room.") from None


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def _complain(bad: BadSample, json: bool) -> None:
    if json:
        print_json({"path": bad.path, "error": bad.reason})
    _console(stderr=True).print(f"error: {bad.path}: {bad.reason}", markup=False)


def _write_labels(path: Path, prediction: SegMap) -> None:
    """A label map as a PNG file whose values are class numbers."""
    predicting.make_folder(path.parent)
    array = prediction.labels.numpy()
    write_bytes(path, encode_png(Image.fromarray(array if array.dtype == np.uint8 else array.astype(np.uint16))))


def _free_names(folder: Path) -> Callable[[str], Path]:
    """Names of annotated pictures: that of the picture, numbered where something of that name is there already. Nothing is overwritten."""

    def name(path: str) -> Path:
        stem = Path(path).stem
        return next(free for n in count(1) if not (free := folder / (f"{stem}.png" if n == 1 else f"{stem}-{n}.png")).exists())

    return name
