"""`pyramidvit predict`: what is on pictures."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from rich.console import Console

from pyramidvit import predict as predicting
from pyramidvit.errors import UserError
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import Device
from pyramidvit.types import BadSample
from pyramidvit.verbs import BatchSize, Json, TopK, print_json


def predict(
    run: Path,
    *pictures: str,
    out: Path | None = None,
    top: TopK = 5,
    batch_size: BatchSize = 8,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Say what is on pictures, and write each one with its prediction on it.

    Args:
        run: Run folder, or a weights file.
        pictures: Files, folders and patterns such as 'photos/*.jpg'.
        out: Folder for the annotated pictures; predictions/ of the run if not given.
        top: Classes to name per picture.
        batch_size: Pictures per step.
        device: Where to compute.
        json: Print one JSON object per line and write no pictures.
    """
    if not pictures:
        raise UserError("Give pictures to look at: pyramidvit predict RUN photo.jpg (folders and patterns work too).")
    predictor = predicting.load(run, device=device, batch_size=batch_size)
    folder = out or (RunFolder.open(run).predictions if run.is_dir() else Path("predictions"))
    console, errors = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
    failed = 0
    names = _free_names(folder)
    for result in predictor.stream(predicting.find_pictures(pictures)):
        if isinstance(result, BadSample):
            failed += 1
            if json:
                print_json({"path": result.path, "error": result.reason})
            errors.print(f"error: {result.path}: {result.reason}", markup=False)
        elif json:
            print_json(result.prediction.to_json(top))
        else:
            saved = result.save(names(result.prediction.path))
            console.print(f"{result.prediction.path}: {result.prediction.text(top)}  → {saved}", markup=False)
    return 2 if failed else 0


def _free_names(folder: Path) -> Callable[[str], Path]:
    """Names of annotated pictures: that of the picture, numbered where something of that name is there already. Nothing is overwritten."""

    def name(path: str) -> Path:
        stem = Path(path).stem
        return next(free for n in count(1) if not (free := folder / (f"{stem}.png" if n == 1 else f"{stem}-{n}.png")).exists())

    return name
