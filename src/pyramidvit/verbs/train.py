"""`pyramidvit train`: from a folder of pictures to a run folder."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from pyramidvit import predict as predicting
from pyramidvit.config import RunConfig, Sources, resolve, validate
from pyramidvit.config.presets import SMALL
from pyramidvit.data.findings import split_findings
from pyramidvit.engine import TrainResult, evaluate
from pyramidvit.engine import train as train_task
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.plan import plan_run
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import make_accelerator
from pyramidvit.summary import Measured, print_result, write_run_report
from pyramidvit.tasks import Data, Task
from pyramidvit.tasks.table import TASKS, build_task, infer_task
from pyramidvit.tasks.unused import refuse_unused
from pyramidvit.types import BadSample
from pyramidvit.types import Section as ReportSection

ASSUMED_CLASSES = 1000
EXAMPLES = 6
"""Held-out pictures that are drawn with their prediction."""


Preset = Literal["small", "published"]


def train(
    data: Path | None = None,
    *,
    config: Path | None = None,
    resume: Path | None = None,
    runs: Path | None = None,
    name: str | None = None,
    preset: Preset | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    settings: Annotated[RunConfig | None, Parameter(name="*")] = None,
) -> int:
    """Train a network on a folder of pictures or videos, or continue a run.

    Args:
        data: Folder with a folder of pictures or videos per class (or train/ and val/ with such folders), or a list of paths and labels.
            With --resume, where the run's data is now, if it has moved.
        config: YAML file with settings; flags override it.
        resume: Run folder to continue exactly where it stopped.
        runs: Folder for run folders; runs/ if not given.
        name: Name of the run; the network and a number if not given.
        preset: Settings for segmentation, detection and videos to start from: small, for CPUs and small data, or published, which is
            taken with --config.
        dry_run: Show what would be done, with data or without, and do nothing.
    """
    console = Console(highlight=False)
    if resume is not None:
        if dry_run:
            raise UserError("--dry-run shows what a new run would do: leave --resume out.")
        if config is not None or name is not None or runs is not None:
            raise UserError("--resume continues a run under its own name and settings: leave --config, --name and --runs out.")
        return _continue(RunFolder.open(resume), settings, data, console)
    if data is None and not dry_run:
        raise UserError("Give the folder to train on: pyramidvit train PHOTOS. To continue a run: pyramidvit train --resume RUN.")
    resolved, sources = settle(settings, config, preset, data)
    if dry_run:
        return _show_plan(resolved, data, console)
    assert data is not None
    task = build_task(resolved, data)
    check_settings(task, console)
    run = RunFolder.create(runs or Path("runs"), resolved.task, name, model=resolved.model.name)
    start_run(run, task, sources, console)
    result = train_task(task, resolved, run, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, task, result, sources, console)
    return 0


def settle(settings: RunConfig | None, file: Path | None, preset: Preset | None, data: Path | None) -> tuple[RunConfig, Sources]:
    """All settings of a new run: the task is found out from the data, and decides what the preset says, unless it is given."""
    asked, sources = resolve(settings, file)
    name = asked.task if "task" in sources or data is None else infer_task(data)
    chosen = preset or ("published" if file else "small")
    resolved, sources = resolve(settings, file, {"task": name} | (SMALL.get(name, {}) if chosen == "small" else {}))
    refuse_unused(resolved)
    return resolved, {key: f"preset {chosen}" if source == "preset" else source for key, source in sources.items()}


def _show_plan(config: RunConfig, data: Path | None, console: Console) -> int:
    """Print what a run would do; without data, for as many classes as ImageNet has."""
    task: Task = TASKS[config.task](config, [f"class {i}" for i in range(ASSUMED_CLASSES)]) if data is None else build_task(config, data)
    _read_one(task)
    table, notes = plan_run(task, config, None if task.data is None else len(task.data.splits["train"]))
    console.print(table)
    for note in notes:
        console.print(note, markup=False)
    console.print("This was a dry run: nothing was trained or written." + ("" if data else f" Without data, {ASSUMED_CLASSES} classes."))
    return 0


def check_settings(task: Task, console: Console) -> None:
    """Find out what can't work before anything is written: network, weights, device, data."""
    if task.data is None:
        raise ValueError("A training needs a task with data.")
    for finding in split_findings(task.data.splits, task.things):
        if finding.level == "error":
            raise UserError(finding.message)
        console.print(f"{finding.level}: {finding.message}", markup=False)
    _read_one(task)
    make_accelerator(task.config.loop.device, task.config.loop.precision)
    model: Any = task.model()
    model.backbone.check_size(task.preprocess.size)
    if task.load_report is not None:
        console.print(f"{task.config.model.weights}: {task.load_report}", markup=False)


def _read_one(task: Task) -> None:
    """Read the first training sample, so that a missing package or settings that don't fit the files are said now."""
    if task.data is not None and task.data.splits["train"]:
        with contextlib.suppress(BadFileError):  # what becomes of a bad file is for training to decide
            task.read(task.data.splits["train"][0].path)


def _continue(run: RunFolder, settings: RunConfig | None, moved: Path | None, console: Console) -> int:
    saved = run.read_config()
    changes = settings.model_dump(exclude_unset=True) if settings else {}
    merged = saved.model_dump()
    for section, values in changes.items():
        merged[section] = merged[section] | values if isinstance(values, dict) else values
    config = validate(merged, "the command line")
    kind = TASKS[config.task]
    data = kind.data_from_json(run.read_data(), moved if moved is None or moved.is_dir() else moved.parent)
    task = kind(config, data.classes, data)
    result = train_task(task, config, run, resume=True, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, task, result, run.read_sources(), console)
    return 0


def start_run(run: RunFolder, task: Task, sources: Sources, console: Console) -> None:
    """Write down what a new run is, before its first step."""
    data, config = task.data, task.config
    if data is None:
        raise ValueError("A run needs a task with data.")
    run.write_config(config, sources)
    run.write_env()
    run.write_data(data.to_json() | {"fingerprint": data.fingerprint})
    counts = {split: len(items) for split, items in data.splits.items()}
    console.print(f"Run folder {run.path}: {config.model.name}, {len(data.classes)} classes, {counts['train']} train + {counts['val']} val")
    for remark in data.remarks:
        console.print(remark, markup=False)


def finish_run(
    run: RunFolder, task: Task, result: TrainResult, sources: Sources, console: Console, sections: Sequence[ReportSection] = ()
) -> None:
    """Measure the best weights as they are on the disk, and write model card and report, with ``sections`` of its own."""
    config, data = task.config, task.data
    if data is None or not data.splits["val"]:
        console.print(f"Weights: {run.best_weights} (there is no validation split to measure them on)")
        return
    predictor = predicting.load(run.path, device=config.loop.device)
    measured = Measured.of(task, evaluate(task, predictor.model, task.dataset("val"), config=config))
    print_result(console, measured)
    run.write_card(config, data.classes, {split: len(items) for split, items in data.splits.items()}, measured.evaluation.result.to_json())
    held_out = data.splits["val"]
    chosen = [item.path for item in held_out[:: max(1, len(held_out) // EXAMPLES)]][:EXAMPLES]
    examples = [shown for shown in predictor.stream(chosen) if not isinstance(shown, BadSample)]
    for example in examples:
        path = Path(example.prediction.path)
        example.save(run.predictions / f"{path.parent.name}-{path.stem}.png")
    notes = _notes(result, data, task.things)
    report = write_run_report(run, run.path, measured, config=config, sources=sources, notes=notes, examples=examples, sections=sections)
    console.print(f"Report: {report}")


def _notes(result: TrainResult, data: Data, things: str) -> tuple[str, ...]:
    notes = [f"{result.steps} steps in {result.epochs} epochs, {result.samples_per_second:.1f} samples per second."]
    if data.made_split:
        notes.append("The data had no validation split; one was drawn from it, the same share of every class (see data.json).")
    if result.stopped_early:
        notes.append("Training ended early: the headline number had stopped improving.")
    for count, what in (
        (result.skipped, f"times one of the {things} was left out in training, since its file could not be read (log.txt names them)"),
        (result.nonfinite, "steps were left out, since the loss was not finite"),
        (result.overflows, "steps were left out, since a gradient left the range of fp16"),
    ):
        if count:
            notes.append(f"{count} {what}.")
    return tuple(notes)
