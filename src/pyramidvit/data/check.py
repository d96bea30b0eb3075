"""The data doctor: what is wrong with labelled pictures, in the user's words, before hours are spent on them."""

from collections import Counter
from collections.abc import Callable, Iterator

from pyramidvit.data.file_check import Entry, examine_files, file_findings
from pyramidvit.data.findings import (
    CheckReport,
    Finding,
    class_findings,
    ignored_files,
    most_serious_first,
    render,
    split_findings,
)
from pyramidvit.data.folders import ClassData
from pyramidvit.data.image import ReadOptions

__all__ = ["CheckReport", "Finding", "check_class_data", "render"]


def check_class_data(
    data: ClassData, options: ReadOptions, *, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Read every picture once, in ``workers`` threads (one per core if not given); ``on_progress`` gets (files done, files in all)."""
    entries = [Entry(split, item.path, item.label) for split, items in data.splits.items() for item in items]
    tally = examine_files(entries, data.root, options, workers=workers, on_progress=on_progress)
    numbers = {split: Counter(item.label for item in items) for split, items in data.splits.items()}
    counts = {split: {name: number[i] for i, name in enumerate(data.classes)} for split, number in numbers.items()}
    files = file_findings(tally, options, len(data.splits["val"]))
    findings = [*split_findings(data.splits), *_one_class(data), *class_findings(counts), *files, *ignored_files(data.ignored, data.root)]
    return CheckReport(str(data.root), counts, tally.sizes, dict(tally.modes.most_common()), most_serious_first(findings))


def _one_class(data: ClassData) -> Iterator[Finding]:
    if len(data.classes) == 1:
        hint = f" If {data.classes[0]} is not a class but holds the class folders, give that folder." if data.made_split else ""
        yield Finding("warning", "one-class", f"Only one class, {data.classes[0]}: there is nothing to tell apart.{hint}")
