"""What an evaluation says: a few lines on the terminal, and the content of report.html."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pyramidvit.config import RunConfig, Sources
from pyramidvit.data.image import ImageError, read_image
from pyramidvit.draw import confusion_picture, contact_sheet, curves_picture, encode_png
from pyramidvit.engine import Evaluation
from pyramidvit.files import write_bytes
from pyramidvit.metrics import ClassificationResult
from pyramidvit.predict import Predicted
from pyramidvit.report import Headline, ReportContent, mapping_table, settings_table, write_report
from pyramidvit.runs import RunFolder, environment
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.types import Picture, Section


@dataclass(frozen=True)
class Measured:
    """A task and what its network reached on one split."""

    task: ClassifyTask
    evaluation: Evaluation

    @property
    def result(self) -> ClassificationResult:
        result = self.evaluation.result
        if not isinstance(result, ClassificationResult):
            raise TypeError(f"A classification task measures a ClassificationResult, got {type(result).__name__}.")
        return result

    def to_json(self) -> dict[str, Any]:
        skipped = [{"path": bad.path, "reason": bad.reason} for bad in self.evaluation.skipped]
        return {"model": self.task.config.model.name} | self.result.to_json() | {"skipped": skipped}


def print_result(console: Console, measured: Measured) -> None:
    """The headline beside chance, and what was left out."""
    result = measured.result
    low, high = result.interval
    console.print(f"top-1 {result.top1:.1%} (95 % interval {low:.1%} to {high:.1%}, {result.n} pictures); chance {result.chance:.1%}")
    if "top5" in result.numbers:
        console.print(f"top-{result.k} {result.top5:.1%}")
    console.print(f"mean recall {result.mean_recall:.1%}, loss {result.loss:.3f}")
    for bad in measured.evaluation.skipped:
        console.print(f"left out: {bad.path}: {bad.reason}", markup=False)


def write_run_report(
    run: RunFolder | None,
    folder: Path,
    measured: Measured,
    *,
    config: RunConfig,
    sources: Sources | None = None,
    notes: Sequence[str] = (),
    examples: Sequence[Predicted] = (),
) -> Path:
    """report.html in ``folder``, with the curves of ``run`` where there is one; its plots are written beside it too."""
    result, task = measured.result, measured.task
    rows = run.read_metrics() if run else []
    plots = {"confusion.png": confusion_picture(result)} | ({"curves.png": curves_picture(rows)} if rows else {})
    (folder / "plots").mkdir(exist_ok=True)
    for name, data in plots.items():
        write_bytes(folder / "plots" / name, data)
    classes, mistakes = result.tables()
    curves = (Section("Course of training", pictures=(Picture(plots["curves.png"]),)),) if rows else ()
    sections = (
        *curves,
        Section("Classes", tables=(classes,)),
        Section("What is taken for what", tables=(mistakes,), pictures=(Picture(plots["confusion.png"]),)),
        *_worst_pictures(task, result),
        *_examples(examples),
        Section("Settings", tables=(settings_table(config, sources or {}),), folded=True),
        Section("Environment", tables=(mapping_table(environment()),), folded=True),
    )
    chance = "share of the largest class"
    content = ReportContent(
        title=f"{config.model.name}, {len(task.classes)} classes",
        task="Image classification",
        model=config.model.name,
        headline=Headline("Top-1 accuracy", result.top1, result.interval, result.chance, chance),
        facts=(("pictures measured", str(result.n)), ("classes", str(len(task.classes))), ("mean recall", f"{result.mean_recall:.1%}")),
        notes=tuple(notes),
        skipped=measured.evaluation.skipped,
        sections=sections,
    )
    return write_report(folder, content)


def _worst_pictures(task: ClassifyTask, result: ClassificationResult) -> tuple[Section, ...]:
    """Wrong answers, those with the lowest probability of the truth first."""
    pictures: list[np.ndarray] = []
    captions: list[str] = []
    for mistake in result.worst:
        try:
            pictures.append(_eight_bits(read_image(mistake.path, task.read_options())))
        except ImageError:
            continue  # it has gone since it was measured; the tables still count it
        captions.append(f"{mistake.true} → {mistake.predicted}")
    if not pictures:
        return ()
    sheet = contact_sheet(pictures, captions, [False] * len(pictures))
    text = "Wrong answers, most surprising first: the true class → the answer."
    return (Section("Worst pictures", text, pictures=(Picture(encode_png(sheet)),)),)


def _examples(examples: Sequence[Predicted]) -> tuple[Section, ...]:
    """Some predictions as `pyramidvit predict` draws them."""
    if not examples:
        return ()
    pictures = tuple(Picture(encode_png(example.draw()), Path(example.prediction.path).name) for example in examples)
    return (Section("Example predictions", "Held-out pictures, taken at even distances from the list.", pictures=pictures, small=True),)


def _eight_bits(image: np.ndarray) -> np.ndarray:
    return image if image.dtype == np.uint8 else np.round(image * 255).astype(np.uint8)
