"""`pyramidvit export`: a trained network as a file for other programs, proven equal."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from pyramidvit.bench.measure import Step, take_turns
from pyramidvit.data.loader import Batches, evaluation_batches
from pyramidvit.engine import evaluate as evaluate_task
from pyramidvit.errors import UserError
from pyramidvit.export.exported import Exported
from pyramidvit.export.formats import SUFFIXES, Format, format_of
from pyramidvit.export.verify import TOLERANCE, settled
from pyramidvit.export.write import ExportReport, Precision, check_path
from pyramidvit.export.write import export as write_export
from pyramidvit.predict import Predictor, load, make_folder
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.table import TASKS
from pyramidvit.verbs import AT_LEAST_1, Json, print_json
from pyramidvit.verbs.evaluate import evaluation_data

ROUNDS = 7
"""How often each file gets its turn when they are timed."""


@dataclass(frozen=True)
class Cost:
    """What fewer bits cost on the user's data and bring on this machine: ``metric`` before and after, from 0 to 1, and how many times as
    fast one input is."""

    metric: str
    samples: int
    before: float
    after: float
    speed: float

    @property
    def drop(self) -> float:
        return self.before - self.after


class Judge:
    """Measures both files on data, and lets the smaller one pass unless the metric drops by more than ``most``."""

    def __init__(self, predictor: Predictor, run: Path, data: Path | None, samples: int, most: float, force: bool) -> None:
        folder = RunFolder.open(run) if run.is_dir() else None
        found, _, items = evaluation_data(folder, predictor.task, data, None)
        task = predictor.task
        config = task.config.model_copy(update={"loop": task.config.loop.model_copy(update={"device": "cpu", "batch_size": 8})})
        self.measure = TASKS[task.name](config, task.classes, replace(found, splits={"train": (), "val": items}))
        learned = tuple(found.splits["train"]) or items
        learned = learned[:: max(len(learned) // samples, 1)][:samples]  # from all over the data
        self.learn = TASKS[task.name](config, task.classes, replace(found, splits={"train": (), "val": learned}))
        self.most, self.force, self.count, self.cost = most, force, len(items), None

    cost: Cost | None

    def batches(self) -> Batches:
        """Inputs to find ranges on, one by one, as evaluation prepares them."""
        return evaluation_batches(self.learn.dataset("val"), 1, workers=0)

    def __call__(self, before: Exported, after: Exported) -> None:
        speed = speed_up(before, after, self.measure.input_shape)  # first, so that OpenVINO has a graph of its own for this shape in both
        (name, old), (_, new) = self._headline(before), self._headline(after)
        self.cost = Cost(name, self.count, old, new, speed)
        if self.cost.drop > self.most and not self.force:
            raise UserError(
                f"{name} drops from {old:.1%} to {new:.1%} on {self.count} samples, more than --max-drop {self.most:.1%}: none was kept. "
                "Calibrate with more and more varied data (--samples), allow a larger drop, or keep it with --force."
            )

    def _headline(self, exported: Exported) -> tuple[str, float]:
        task = self.measure
        headline = task.summarize(evaluate_task(task, exported, task.dataset("val"), config=task.config).result).headline
        return headline.name, headline.value


def export(
    run: Path,
    *,
    format: Format | None = None,
    out: Path | None = None,
    fp16: Annotated[bool, Parameter(negative="")] = False,
    int8: Path | None = None,
    data: Path | None = None,
    samples: Annotated[int, AT_LEAST_1] = 100,
    max_drop: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.01,
    force: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Write a trained network as a file that other programs run, verified beside it. The file alone is enough for predict and evaluate.

    Args:
        run: Run folder, a weights file of ours, or the name of published weights.
        format: onnx, openvino (.xml and .bin) or torch (.pt2); what --out ends in, or onnx.
        out: File to write; in exports/ of the run, or here for weights, if not given.
        fp16: Keep weights in halves: the file is half as large. OpenVINO computes with halves, too, where the processor can.
        int8: Compute in 8-bit integers, with ranges found on this data, in the layout of training data.
        data: Data to measure what --fp16 costs; the run's own if not given.
        samples: Pictures or clips to find ranges on.
        max_drop: Keep no file with fewer bits when the metric drops by more than this.
        force: Keep it anyway.
        json: Print one JSON object, nothing else.
    """
    if fp16 and int8 is not None:
        raise UserError("--fp16 and --int8 are two answers to one question: choose one.")
    tell = Console(stderr=True, highlight=False, soft_wrap=True)
    predictor = load(run, device="cpu")
    if isinstance(predictor.model, Exported):
        raise UserError(f"{run} is an exported file already; give the run or the weights that it was made from.")
    precision: Precision = "int8" if int8 is not None else "fp16" if fp16 else "fp32"
    format = format or (format_of(out) if out else "onnx")
    path = out or _default(run, predictor, format, precision)
    check_path(path, format)
    known = int8 or data or (run if run.is_dir() else None)
    judge = Judge(predictor, run, int8 or data, samples, max_drop, force) if known is not None and precision != "fp32" else None
    report = write_export(
        predictor.model,
        predictor.task.weights_meta(predictor.task.measured),
        predictor.task.input_shape,
        path,
        format,
        precision=precision,
        calibration=judge.batches() if judge and int8 else (),
        accept=judge,
        progress=lambda text: tell.print(f"{text} …", markup=False),
    )
    if json:
        print_json(report.to_json() | {"cost": asdict(judge.cost) if judge and judge.cost else None})
    else:
        for line in lines(report, judge.cost if judge else None):
            Console(highlight=False, soft_wrap=True).print(line, markup=False)
    return 0


def _default(run: Path, predictor: Predictor, format: Format, precision: Precision) -> Path:
    """Where an export goes that was given no name."""
    name = predictor.task.config.model.name.replace("/", "_") + ("" if precision == "fp32" else f"-{precision}")
    folder = run / "exports" if run.is_dir() else Path()
    make_folder(folder)
    return folder / f"{name}{SUFFIXES[format]}"


def speed_up(before: Exported, after: Exported, shape: tuple[int, ...]) -> float:
    """How many times as fast one input is, by medians of turns."""
    images, size = torch.randn(1, *shape), [(shape[-2], shape[-1])]

    def step(exported: Exported) -> Step:
        return lambda: settled(exported(images), size)

    old, new = map(median, take_turns([step(before), step(after)], ROUNDS))
    return old / new


def lines(report: ExportReport, cost: Cost | None) -> list[str]:
    """What is said about an export."""
    size = "any size" if report.size is None else "only {}x{}".format(*report.size)
    said = [f"{report.path}: {report.format}, {report.precision}, {report.bytes / 1e6:.1f} MB, {size}, any batch"]
    for one in report.differences:
        objects = "" if one.objects is None else f", {one.objects - one.lost} of {one.objects} objects have a counterpart"
        said.append(f"  {'x'.join(map(str, one.shape)):<16} largest difference {one.value:.1e}{objects}")
    if report.largest is not None:
        said.append(f"largest difference to the network: {report.largest:.1e} (allowed: {TOLERANCE[report.precision]:.0e})")
    if cost is not None:
        said.append(f"{cost.metric}: {cost.before:.1%} → {cost.after:.1%} on {cost.samples} samples; {cost.speed:.2f} times as fast")
    return said
