"""`pyramidvit evaluate`: what a trained network reaches on pictures with known classes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from pyramidvit.config import RunConfig
from pyramidvit.data.samples import LabelledFile
from pyramidvit.engine import evaluate as evaluate_task
from pyramidvit.errors import UserError
from pyramidvit.export.runtimes import Backend
from pyramidvit.predict import make_folder
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import Device
from pyramidvit.summary import Measured, print_result, write_run_report
from pyramidvit.tasks import Task
from pyramidvit.tasks.table import TASKS
from pyramidvit.verbs import AT_LEAST_1, BatchSize, Json, Workers, print_json
from pyramidvit.verbs.predict import load_with_backend


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    split: Literal["train", "val", "all"] | None = None,
    on_bad_sample: Literal["error", "skip"] = "error",
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    backend: Backend | None = None,
    clips: Annotated[int | None, AT_LEAST_1] = None,
    crops: Literal[1, 3] | None = None,
    shuffle_frames: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Measure a trained network on pictures or clips with known classes, and write a report.

    Args:
        run: Run folder, a weights file, or an exported file.
        data: Pictures or videos in class folders or a list; the run's own data if not given.
        split: Part of the data to measure on; the validation split where there is one, else all of it.
        on_bad_sample: What to do when a file can't be read: stop, or leave it out and count it.
        batch_size: Pictures per step.
        workers: Processes that read pictures; chosen from the number of cores if not given.
        device: Where to compute.
        backend: What runs the network: torch if not given, the fastest that is installed for an exported file and with auto.
        clips: Videos: clips per video, whose probabilities are averaged; as trained if not given.
        crops: Videos: crops per clip, 1 or 3; as trained if not given.
        shuffle_frames: Videos: show each clip's frames in random order; what is lost is what time was worth.
        json: Print the numbers as JSON, nothing else.
    """
    predictor = load_with_backend(run, backend, device=device)
    device = "cpu" if predictor.device.type == "cpu" else device
    task = predictor.task
    folder = RunFolder.open(run) if run.is_dir() else None
    found, chosen, items = evaluation_data(folder, task, data, split)
    config = task.config.model_copy(
        update={
            "data": task.config.data.model_copy(update={"on_bad_sample": on_bad_sample, "workers": workers}),
            "loop": task.config.loop.model_copy(update={"batch_size": batch_size, "device": device}),
        }
    )
    config = _with_views(config, {"clips": clips, "crops": crops, "shuffle_frames": shuffle_frames or None})
    task = TASKS[task.name](config, task.classes, replace(found, splits={"train": (), "val": items}))
    measured = Measured.of(task, evaluate_task(task, predictor.model, task.dataset("val"), config=config))
    remarks = () if data is None else found.remarks
    if json:
        print_json(measured.to_json() | {"data": str(found.root), "split": chosen} | ({"remarks": [*remarks]} if remarks else {}))
        return 0
    console = Console(highlight=False)
    console.print(*remarks, f"{len(items)} {task.things}, {chosen} of {found.root}", sep="\n", markup=False)
    print_result(console, measured)
    notes = [f"Measured on {chosen} of {found.root}."]
    if trained := _trained_on(folder, task, items):
        notes.append(f"{trained} of these {task.things} were trained on, so new ones will do worse.")
        console.print(notes[-1])
    target = (folder.path / "evaluations" if folder else Path("evaluations")) / f"{found.root.name or 'data'}-{chosen}"
    make_folder(target)
    console.print(f"Report: {write_run_report(folder, target, measured, config=config, notes=notes)}", markup=False)
    return 0


def _with_views(config: RunConfig, views: dict[str, Any]) -> RunConfig:
    """The settings with other views of clips, as far as they were given."""
    given = {name: value for name, value in views.items() if value is not None}
    if given and config.task != "video":
        raise UserError(f"--{next(iter(given)).replace('_', '-')} is for videos; this network was trained on pictures.")
    return config.model_copy(update={"clip": config.clip.model_copy(update=given)})


def evaluation_data(
    folder: RunFolder | None, task: Task, data: Path | None, split: str | None
) -> tuple[Any, str, tuple[LabelledFile, ...]]:
    """The data, the split to measure on and what is in it. The run's own data, wherever it is now, keeps the split that was held out in
    training. UserError when there is nothing to measure on."""
    found, chosen = _data_and_split(folder, task, data, split)
    items = (*found.splits["train"], *found.splits["val"]) if chosen == "all" else tuple(found.splits[chosen])
    if not items:
        raise UserError(f"{found.root} has no {task.things} in its {chosen} split; choose another one with --split.")
    return found, chosen, items


def _data_and_split(folder: RunFolder | None, task: Task, data: Path | None, split: str | None) -> tuple[Any, str]:
    """The data and the split to measure on. The run's own data, wherever it is now, keeps the split that was held out in training."""
    record = folder.read_data() if folder else None
    if data is None:
        if record is None:
            raise UserError("A weights file does not know its data: give the folder to measure on.")
        return task.data_from_json(record), split or "val"
    settings = task.config
    found = task.read_data(data, settings, task.classes)
    if record is not None and found.fingerprint == record.get("fingerprint"):
        return task.data_from_json(record, found.root), split or "val"
    return found, split or ("all" if found.made_split else "val")


def _trained_on(folder: RunFolder | None, task: Task, items: Sequence[LabelledFile]) -> int:
    """How many of the pictures were in the run's training split."""
    if folder is None:
        return 0
    trained = {item.path.absolute() for item in task.data_from_json(folder.read_data()).splits["train"]}
    return sum(item.path.absolute() in trained for item in items)
