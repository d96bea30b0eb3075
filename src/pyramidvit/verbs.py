"""What each verb of the command line does: resolve settings, call the parts, print. The signatures are the flags."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from pyramidvit import config as configs
from pyramidvit import models as networks
from pyramidvit import predict as predicting
from pyramidvit.config import AugmentConfig, DataConfig, RunConfig, Sources, resolve, validate
from pyramidvit.data import check as checking
from pyramidvit.data.folders import ClassData, fingerprint, read_class_data
from pyramidvit.data.image import ReadOptions
from pyramidvit.engine import TrainResult
from pyramidvit.engine import evaluate as evaluate_task
from pyramidvit.engine import train as train_task
from pyramidvit.errors import UserError
from pyramidvit.models.cost import Cost, measure_cost
from pyramidvit.runs import RunFolder
from pyramidvit.summary import Measured, print_result, write_run_report
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.types import BadSample

Json = Annotated[bool, Parameter(name="--json", negative="")]
Device = Literal["auto", "cpu", "cuda", "mps"]
Settings = Annotated[RunConfig | None, Parameter(name="*")]


def train(
    data: Path | None = None,
    *,
    config: Path | None = None,
    resume: Path | None = None,
    runs: Path = Path("runs"),
    name: str | None = None,
    settings: Settings = None,
) -> int:
    """Train a network on a folder of pictures, or continue a run.

    Args:
        data: Folder with a folder of pictures per class (or train/ and val/ with such folders), or a CSV file of path,label.
        config: YAML file with settings; flags override it.
        resume: Run folder to continue exactly where it stopped.
        runs: Folder for run folders.
        name: Name of the run; the network and a number if not given.
    """
    console = Console(highlight=False)
    if resume is not None:
        if data is not None or config is not None:
            raise UserError("--resume continues with the run's own data and settings: leave the data folder and --config out.")
        return _continue(RunFolder.open(resume), settings, console)
    if data is None:
        raise UserError("Give the folder to train on: pyramidvit train PHOTOS. To continue a run: pyramidvit train --resume RUN.")
    resolved, sources = resolve(settings, config)
    found = read_class_data(data, val_share=resolved.data.val_share, seed=resolved.loop.seed)
    run = RunFolder.create(runs, resolved.task, name, model=resolved.model.name)
    task = start_run(run, resolved, sources, found, console)
    result = train_task(task, resolved, run, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, task, result, sources, console)
    return 0


def _continue(run: RunFolder, settings: RunConfig | None, console: Console) -> int:
    saved = run.read_config()
    changes = settings.model_dump(exclude_unset=True) if settings else {}
    merged = saved.model_dump()
    for section, values in changes.items():
        merged[section] = merged[section] | values if isinstance(values, dict) else values
    config, data = validate(merged, "the command line"), ClassData.from_json(run.read_data())
    task = ClassifyTask(config, data.classes, data)
    result = train_task(task, config, run, resume=True, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, task, result, configs.read_sources(run.config_file), console)
    return 0


def start_run(run: RunFolder, config: RunConfig, sources: Sources, data: ClassData, console: Console) -> ClassifyTask:
    """Write down what a new run is, before its first step."""
    run.write_config(config, sources)
    run.write_env()
    run.write_data(data.to_json() | {"fingerprint": fingerprint(data)})
    counts = {split: len(items) for split, items in data.splits.items()}
    console.print(f"Run folder {run.path}: {config.model.name}, {len(data.classes)} classes, {counts['train']} train + {counts['val']} val")
    return ClassifyTask(config, data.classes, data)


def finish_run(run: RunFolder, task: ClassifyTask, result: TrainResult, sources: Sources, console: Console) -> None:
    """Measure the best weights as they are on the disk, and write model card and report."""
    config, data = task.config, task.data
    if data is None or not data.splits["val"]:
        console.print(f"Weights: {run.best_weights} (there is no validation split to measure them on)")
        return
    predictor = predicting.load(run.path, device=config.loop.device)
    measured = Measured(task, evaluate_task(task, predictor.model, task.dataset("val"), config=config))
    print_result(console, measured)
    run.write_card(config, data.classes, {split: len(items) for split, items in data.splits.items()}, measured.result.to_json())
    report = write_run_report(run, run.path, measured, config=config, sources=sources, notes=_notes(result, data))
    console.print(f"Report: {report}")


def _notes(result: TrainResult, data: ClassData) -> tuple[str, ...]:
    notes = [f"{result.steps} steps in {result.epochs} epochs, {result.samples_per_second:.1f} pictures per second."]
    if data.made_split:
        notes.append("The data had no validation split; one was drawn from it, the same share of every class (see data.json).")
    if result.stopped_early:
        notes.append("Training ended early: the headline number had stopped improving.")
    for count, what in (
        (result.skipped, "pictures were left out in training, since their files could not be read (log.txt names them)"),
        (result.nonfinite, "steps were left out, since the loss was not finite"),
        (result.overflows, "steps were left out, since a gradient left the range of fp16"),
    ):
        if count:
            notes.append(f"{count} {what}.")
    return tuple(notes)


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    split: Literal["train", "val", "all"] | None = None,
    on_bad_sample: Literal["error", "skip"] = "error",
    batch_size: Annotated[int, Parameter(name=["--batch-size", "-b"])] = 32,
    workers: int | None = None,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Measure a trained network on pictures with known classes, and write a report.

    Args:
        run: Run folder, or a weights file.
        data: Pictures in class folders or a CSV; the run's own data if not given.
        split: Part of the data to measure on; the validation split where there is one, else all of it.
        on_bad_sample: What to do when a file can't be read: stop, or leave it out and count it.
        batch_size: Pictures per step.
        workers: Processes that read pictures; chosen from the number of cores if not given.
        device: Where to compute.
        json: Print the numbers as JSON, nothing else.
    """
    predictor = predicting.load(run, device=device)
    task = predictor.task
    folder = RunFolder.open(run) if run.is_dir() else None
    found, chosen = _evaluation_data(folder, task, data, split)
    items = (*found.splits["train"], *found.splits["val"]) if chosen == "all" else found.splits[chosen]
    if not items:
        raise UserError(f"{found.root} has no pictures in its {chosen} split; choose another one with --split.")
    config = task.config.model_copy(
        update={
            "data": task.config.data.model_copy(update={"on_bad_sample": on_bad_sample, "workers": workers}),
            "loop": task.config.loop.model_copy(update={"batch_size": batch_size, "device": device}),
        }
    )
    task = ClassifyTask(config, task.classes, replace(found, splits={"train": (), "val": items}))
    measured = Measured(task, evaluate_task(task, predictor.model, task.dataset("val"), config=config))
    if json:
        _print_json(measured.to_json() | {"data": str(found.root), "split": chosen})
        return 0
    console = Console(highlight=False)
    console.print(f"{len(items)} pictures, {chosen} of {found.root}")
    print_result(console, measured)
    target = (folder.path / "evaluations" if folder else Path("evaluations")) / f"{found.root.name or 'data'}-{chosen}"
    target.mkdir(parents=True, exist_ok=True)
    console.print(f"Report: {write_run_report(folder, target, measured, config=config, notes=(f'Measured on {chosen} of {found.root}.',))}")
    return 0


def _evaluation_data(folder: RunFolder | None, task: ClassifyTask, data: Path | None, split: str | None) -> tuple[ClassData, str]:
    """The data and the split to measure on. The run's own data keeps the split it was trained with: held-out pictures stay held out."""
    own = ClassData.from_json(folder.read_data()) if folder else None
    if own is None and data is None:
        raise UserError("A weights file does not know its data: give the folder to measure on.")
    if own is not None and (data is None or (data if data.is_dir() else data.parent).resolve() == own.root.resolve()):
        return own, split or "val"
    settings = task.config
    found = read_class_data(data or Path(), val_share=settings.data.val_share, seed=settings.loop.seed, classes=task.classes)
    return found, split or ("all" if found.made_split else "val")


def predict(
    run: Path,
    *pictures: str,
    out: Path | None = None,
    top: Annotated[int, Parameter(name=["--top", "-k"])] = 5,
    batch_size: Annotated[int, Parameter(name=["--batch-size", "-b"])] = 8,
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
                _print_json({"path": result.path, "error": result.reason})
            errors.print(f"error: {result.path}: {result.reason}", markup=False)
        elif json:
            _print_json(result.prediction.to_json(top))
        else:
            saved = result.save(names(result.prediction.path))
            best = ", ".join(f"{name} {probability:.1%}" for name, probability in result.prediction.top(top))
            console.print(f"{result.prediction.path}: {best}  → {saved}", markup=False)
    return 2 if failed else 0


def _free_names(folder: Path) -> Callable[[str], Path]:
    """Names of annotated pictures: that of the file, numbered when two files share it."""
    taken: Counter[str] = Counter()

    def name(path: str) -> Path:
        stem = Path(path).stem
        taken[stem] += 1
        return folder / (f"{stem}.png" if taken[stem] == 1 else f"{stem}-{taken[stem]}.png")

    return name


def check(
    data: Path,
    *,
    seed: int = 0,
    settings: Annotated[DataConfig | None, Parameter(name="*")] = None,
    json: Json = False,
) -> int:
    """Look a data set over before training; exit code 2 when training on it would be wrong.

    Args:
        data: Folder with a folder of pictures per class (or train/ and val/ with such folders), or a CSV file of path,label.
        json: Print the findings as JSON, nothing else.
    """
    config = settings or DataConfig()
    found = read_class_data(data, val_share=config.val_share, seed=seed)
    options = ReadOptions(config.in_chans, config.value_range, config.orientation, config.max_pixels)
    report = checking.check_class_data(found, options, workers=config.workers)
    if json:
        _print_json(report.to_json())
    else:
        Console(highlight=False).print(checking.render(report))
    return 0 if report.ok else 2


def models(pattern: str = "*", *, json: Json = False) -> int:
    """List the networks whose name matches a pattern such as 'pvt_v2_*'."""
    names = networks.list_models(pattern)
    if not names:
        raise UserError(f"No network matches {pattern!r}. Names: {', '.join(networks.list_models())}.")
    if json:
        _print_json(names)
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0


def info(
    name: str,
    *,
    size: Annotated[str | None, Parameter(metavar="HxW")] = None,
    in_chans: int = 3,
    num_classes: int = 1000,
    json: Json = False,
) -> int:
    """Count parameters, multiply-adds (attention products included) and activation memory of a network.

    Args:
        name: Network; `pyramidvit models` lists the names.
        size: Height x width of the input, such as 512x640; the published size if not given.
        in_chans: Channels of the input.
        num_classes: Classes of the head.
        json: Print the numbers as JSON, nothing else.
    """

    def build() -> networks.Classifier:
        return networks.create_model(name, num_classes=num_classes, in_chans=in_chans)

    cost = measure_cost(name, build, (in_chans, *AugmentConfig.model_validate({"size": size}).size) if size else None)
    if json:
        _print_json(cost.to_json())
    else:
        Console(highlight=False).print(_cost_table(cost))
    return 0


def _cost_table(cost: Cost) -> Table:
    shape = "x".join(map(str, cost.input_shape))
    memory = f"{cost.activation_bytes / 2**20:,.0f} MiB kept per picture in a training step"
    table = Table(
        title=f"{cost.model} on {shape}", caption=f"Multiply-adds include the products of attention. Activations in fp32: {memory}."
    )
    for column in ("part", "output", "parameters", "multiply-adds"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part in cost.parts:
        table.add_row(part.name, "x".join(map(str, part.output[1:])), f"{part.params:,}", f"{part.macs / 1e9:.3f} G")
    table.add_section()
    table.add_row("total", "", f"{cost.params:,}", f"{cost.macs / 1e9:.3f} G")
    return table


def _print_json(content: Any) -> None:
    sys.stdout.write(to_json(content, ensure_ascii=False, allow_nan=False) + "\n")
