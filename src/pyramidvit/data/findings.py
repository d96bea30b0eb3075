"""What a check found, and how it is told: values and their picture in the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from pyramidvit.types import Table

Level = Literal["error", "warning", "note"]
LEVELS: dict[Level, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
"""Most serious first, with their styles."""
_FEW, _UNEVEN = 5, 5


@dataclass(frozen=True)
class Finding:
    """Something to know. An error makes training wrong or stops it.

    ``paths`` are relative to the root of the data; ``details`` are a reason for each of them, or names of classes.
    """

    level: Level
    code: str
    message: str
    paths: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """``counts`` are pictures per split and class, or what ``counted`` says; ``tables`` and ``facts`` say more.

    ``sizes`` are (smallest, median, largest) of width and height in pixels.
    """

    root: str
    counts: Mapping[str, Mapping[str, int]]
    sizes: Mapping[str, tuple[int, int, int]]
    modes: Mapping[str, int]
    findings: tuple[Finding, ...]
    counted: str = "pictures"
    tables: tuple[Table, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No errors: training would do what is expected."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        findings = [{**vars(finding), "paths": [*finding.paths], "details": [*finding.details]} for finding in self.findings]
        counts = {split: {**counts} for split, counts in self.counts.items()}
        sizes = {side: [*values] for side, values in self.sizes.items()}
        plain = {"ok": self.ok, "root": self.root, "counts": counts, "sizes": sizes, "modes": {**self.modes}, "findings": findings}
        return plain if self.counted == "pictures" else plain | {"counted": self.counted} | {**self.facts}


def number_of(n: int, one: str, many: str) -> str:
    """ "1 file", "2 files"."""
    return f"{n} {one if n == 1 else many}"


def most_serious_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """In the order they came, but errors before warnings before notes."""
    return tuple(sorted(findings, key=lambda finding: [*LEVELS].index(finding.level)))


def split_findings(splits: Mapping[str, Sequence[Any]], things: str = "pictures") -> Iterator[Finding]:
    """A split without a picture. A check and a training judge by this alike."""
    if not splits["train"]:
        yield Finding("error", "no-training", f"No training {things}: put those to learn from into a folder, or a list, called train.")
    if not splits["val"]:
        text = f"No validation {things}, so nothing will be measured and the last weights are kept: add a val folder or more {things}."
        yield Finding("warning", "no-validation", text)


def class_findings(counts: Mapping[str, Mapping[str, int]], things: str = "pictures", *, drawn: bool = False) -> Iterator[Finding]:
    """Classes that can't be learnt or measured, or hardly; ``counts`` of things per split and class.

    With splits ``drawn`` from data of its own, a rare class may be missing in training by chance: no mistake, but a warning.
    """
    untrained: Level = "warning" if drawn else "error"
    train, val = counts["train"], counts["val"]
    n_train, n_val = sum(train.values()), sum(val.values())
    rows: list[tuple[Level, str, list[str], str]] = [
        (untrained, "untrained", [c for c in train if n_train and not train[c] and val[c]], f"validation {things}, but none to train on"),
        ("warning", "empty", [c for c in train if n_train and not train[c] and not val[c]], f"no {things} at all, which can't be learnt"),
        (
            "warning",
            "unmeasured",
            [c for c in train if n_val and train[c] and not val[c]],
            f"no validation {things}, left out of the score",
        ),
        ("warning", "few", [c for c in train if 0 < train[c] < _FEW], f"fewer than {_FEW} training {things}; add more"),
    ]
    for level, code, names, text in rows:
        if names:
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            yield Finding(level, code, f"{number_of(len(names), 'class', 'classes')} ({some}) with {text}.", details=tuple(names))
    present = {name: n for name, n in train.items() if n}
    if present and max(present.values()) > _UNEVEN * min(present.values()):
        most, least = max(present, key=present.__getitem__), min(present, key=present.__getitem__)
        advice = "consider --class-weights auto" if things == "pictures" else "scores per class tell whether it matters"
        yield Finding(
            "warning", "uneven", f"Uneven classes: {most} has {present[most]} training {things}, {least} only {present[least]}; {advice}."
        )


def ignored_files(ignored: Sequence[Path], root: Path, things: str = "pictures") -> Iterator[Finding]:
    """What was left out of the data, once."""
    if ignored:
        text = f"{number_of(len(ignored), 'file or folder', 'files or folders')}, hidden or not {things}, left out."
        yield Finding("note", "ignored", text, tuple(path.relative_to(root).as_posix() for path in ignored))


def render(report: CheckReport, *, examples: int = 3) -> RenderableType:
    """Verdict, counts and findings, for rich's console; ``examples`` paths per finding."""
    levels = Counter(finding.level for finding in report.findings)
    found = ", ".join(number_of(levels[level], level, f"{level}s") for level in LEVELS if levels[level]) or "nothing to report"
    verdict, style = ("ready to train", "bold green") if report.ok else ("training would go wrong", "bold red")
    lines: list[RenderableType] = [Text.assemble((f"{report.root}: {verdict}", style), f" ({found})"), _counts_table(report)]
    if report.sizes:
        sizes = "; ".join(f"{side} {low} to {high}, median {middle}" for side, (low, middle, high) in report.sizes.items())
        lines.append(Text(f"{sizes}; {', '.join(f'{n} {mode}' for mode, n in report.modes.items())}", style="dim"))
    lines += [_plain_table(table) for table in report.tables]
    for finding in report.findings:
        lines.append(Text.assemble((f"{finding.level}: ", LEVELS[finding.level]), finding.message))
        for number, path in enumerate(finding.paths[:examples]):
            reason = finding.details[number] if number < len(finding.details) else ""
            lines.append(Text(f"    {path}{': ' if reason else ''}{reason}", style="dim"))
        if len(finding.paths) > examples:
            lines.append(Text(f"    and {len(finding.paths) - examples} more (all of them with --json)", style="dim"))
    return Group(*lines)


def _counts_table(report: CheckReport, rows: int = 12) -> RichTable:
    head = "class" if report.counted == "pictures" else report.counted
    table = RichTable(head, *report.counts, box=None, pad_edge=False)
    classes = sorted(report.counts["train"], key=lambda name: -report.counts["train"][name])
    shown = classes if len(classes) <= rows else [*classes[: rows // 2], *classes[-rows // 2 :]]
    for number, name in enumerate(shown):
        if len(shown) < len(classes) and number == rows // 2:
            table.add_row(Text(f"… {len(classes) - rows} more", style="dim"), *("" for _ in report.counts))
        table.add_row(Text(name), *(str(counts[name]) for counts in report.counts.values()))
    table.add_row(Text(f"{len(classes)} classes", style="bold"), *(str(sum(counts.values())) for counts in report.counts.values()))
    return table


def _plain_table(content: Table) -> RichTable:
    table = RichTable(*content.columns, box=None, pad_edge=False, title=content.title or None, caption=content.note or None)
    table.title_justify = table.caption_justify = "left"
    for row in content.rows:
        table.add_row(*(Text("-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)) for cell in row))
    return table
