"""What an evaluation says: a few lines on the terminal, and the content of report.html."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pyramidvit.config import RunConfig, Sources
from pyramidvit.draw import curves_picture, encode_png
from pyramidvit.engine import Evaluation
from pyramidvit.files import write_bytes
from pyramidvit.predict import Predicted
from pyramidvit.report import ReportContent, mapping_table, settings_table, write_report
from pyramidvit.runs import RunFolder, environment
from pyramidvit.tasks import Summary, Task
from pyramidvit.types import Picture, Section


@dataclass(frozen=True)
class Measured:
    """A task, what its network reached on one split, and the same in words."""

    task: Task
    evaluation: Evaluation
    summary: Summary

    @classmethod
    def of(cls, task: Task, evaluation: Evaluation) -> "Measured":
        return cls(task, evaluation, task.summarize(evaluation.result))

    def to_json(self) -> dict[str, Any]:
        skipped = [{"path": bad.path, "reason": bad.reason} for bad in self.evaluation.skipped]
        return {"model": self.task.config.model.name} | self.evaluation.result.to_json() | {"skipped": skipped}


def print_result(console: Console, measured: Measured) -> None:
    """The headline, beside chance where there is one, and what was left out."""
    for line in measured.summary.lines:
        console.print(line, markup=False)
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
    sections: Sequence[Section] = (),
) -> Path:
    """report.html in ``folder``, with the curves of ``run`` where there is one; its plots are written beside it too."""
    task, summary = measured.task, measured.summary
    rows = run.read_metrics() if run else []
    plots = {**summary.plots} | ({"curves.png": curves_picture(rows)} if rows else {})
    (folder / "plots").mkdir(exist_ok=True)
    for name, data in plots.items():
        write_bytes(folder / "plots" / name, data)
    curves = (Section("Course of training", pictures=(Picture(plots["curves.png"]),)),) if rows else ()
    parts = (
        *curves,
        *sections,
        *summary.sections,
        *_examples(examples),
        Section("Settings", tables=(settings_table(config, sources or {}),), folded=True),
        Section("Environment", tables=(mapping_table(environment()),), folded=True),
    )
    count = len(task.classes)
    content = ReportContent(
        title=f"{config.model.name}, {count} {'class' if count == 1 else 'classes'}",
        task=task.title,
        model=config.model.name,
        headline=None if math.isnan(summary.headline.value) else summary.headline,
        facts=summary.facts,
        notes=tuple(notes),
        skipped=measured.evaluation.skipped,
        sections=parts,
    )
    return write_report(folder, content)


def _examples(examples: Sequence[Predicted]) -> tuple[Section, ...]:
    """Some predictions as `pyramidvit predict` draws them."""
    if not examples:
        return ()
    pictures = tuple(Picture(encode_png(example.draw()), Path(example.prediction.path).name) for example in examples)
    return (Section("Example predictions", "Held-out pictures, taken at even distances from the list.", pictures=pictures, small=True),)
