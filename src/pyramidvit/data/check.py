"""The data doctor: what is wrong with labelled pictures, in the user's words, before hours are spent on them."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyramidvit.data.folders import ClassData, Item
from pyramidvit.data.image import BandError, ImageError, ImageInfo, RangeError, ReadOptions, inspect_image, read_image

Level = Literal["error", "warning", "note"]
_STYLES: dict[Level, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_FEW, _UNEVEN, _SMALL_SIDE, _NARROW, _LEAK = 5, 5, 32, 0.25, 0.01
_SUFFIXES = {
    "JPEG": ".jpg .jpeg .jpe .jfif", "MPO": ".jpg .jpeg .mpo", "PNG": ".png .apng", "WEBP": ".webp", "AVIF": ".avif .avifs", "GIF": ".gif",
    "TIFF": ".tif .tiff", "BMP": ".bmp .dib", "PPM": ".ppm .pgm .pbm .pnm", "JPEG2000": ".jp2 .j2k", "TGA": ".tga", "NPY": ".npy",
}  # fmt: skip


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
    """``counts`` are pictures per split and class; ``sizes`` are (smallest, median, largest) of width and height in pixels."""

    root: str
    counts: Mapping[str, Mapping[str, int]]
    sizes: Mapping[str, tuple[int, int, int]]
    modes: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """No errors: training would do what is expected."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        findings = [{**vars(finding), "paths": [*finding.paths], "details": [*finding.details]} for finding in self.findings]
        counts = {split: {**counts} for split, counts in self.counts.items()}
        sizes = {side: [*values] for side, values in self.sizes.items()}
        return {"ok": self.ok, "root": self.root, "counts": counts, "sizes": sizes, "modes": {**self.modes}, "findings": findings}


@dataclass
class _Facts:
    """What one file turned out to be; ``span`` are the lowest and highest value of a deep picture, as shares of the range."""

    digest: bytes | None = None
    info: ImageInfo | None = None
    span: tuple[float, float] | None = None
    error: ImageError | None = None


@dataclass
class _Tally:
    """What stays of all files: counters and, of odd ones, the paths."""

    modes: Counter[str] = field(default_factory=Counter)
    widths: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    paths: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    first: dict[bytes, tuple[str, Item]] = field(default_factory=dict)

    def odd(self, code: str, path: str, reason: str = "") -> None:
        self.paths[code].append(path)
        self.reasons[code].append(reason)


def check_class_data(
    data: ClassData, options: ReadOptions, *, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Read every picture once, in ``workers`` threads (one per core if not given); ``on_progress`` gets (files done, files in all)."""
    pairs = [(split, item) for split, items in data.splits.items() for item in items]
    tally = _Tally()
    for done, (split, item, facts) in enumerate(_examine_all(pairs, options, workers or os.cpu_count() or 1), 1):
        _count(tally, data, split, item, facts)
        if on_progress is not None:
            on_progress(done, len(pairs))
    numbers = {split: Counter(item.label for item in items) for split, items in data.splits.items()}
    counts = {split: {name: number[i] for i, name in enumerate(data.classes)} for split, number in numbers.items()}
    sides = {"width": tally.widths, "height": tally.heights}
    sizes = {side: (min(values), round(median(values)), max(values)) for side, values in sides.items() if values}
    findings = [*_class_findings(data, counts), *_file_findings(tally, options, len(data.splits["val"])), *_ignored(data)]
    findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.level))
    return CheckReport(str(data.root), counts, sizes, dict(tally.modes.most_common()), tuple(findings))


def _examine_all(pairs: list[tuple[str, Item]], options: ReadOptions, workers: int) -> Iterator[tuple[str, Item, _Facts]]:
    """In order and a few at a time, so that memory does not grow; decoding and hashing leave Python's lock, so threads do."""
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(pairs), 64):
            chunk = pairs[start : start + 64]
            for (split, item), facts in zip(chunk, pool.map(lambda pair: _examine(pair[1].path, options), chunk), strict=True):
                yield split, item, facts


def _examine(path: Path, options: ReadOptions) -> _Facts:
    facts = _Facts()
    try:
        facts.info = inspect_image(path, options)
        with path.open("rb") as file:
            facts.digest = hashlib.file_digest(file, "sha256").digest()
        array = read_image(path, options)
    except ImageError as error:
        facts.error = error
        return facts
    if array.dtype == np.float32:
        facts.span = float(array.min()), float(array.max())
    return facts


def _count(tally: _Tally, data: ClassData, split: str, item: Item, facts: _Facts) -> None:
    """Add one file to the tally."""
    path, info = _short(item.path, data), facts.info
    if facts.digest is not None:
        first_split, first = tally.first.setdefault(facts.digest, (split, item))
        pair = f"the same as {_short(first.path, data)}"
        if first.label != item.label:
            tally.odd("duplicate-classes", path, pair)
        if first_split != split:
            tally.odd("duplicate-splits", path, pair)
        if first is not item and (first_split, first.label) == (split, item.label):
            tally.odd("duplicate", path, pair)
    if facts.error is not None:
        kinds = {BandError: "bands", RangeError: "value-range-unknown"}
        tally.odd(kinds.get(type(facts.error), "damaged"), path, facts.error.reason)
    if info is None or facts.error is not None:
        return
    tally.modes[info.mode if info.dtype in ("uint8", info.mode) else f"{info.mode} ({info.dtype})"] += 1
    tally.widths.append(info.width)
    tally.heights.append(info.height)
    if min(info.height, info.width) < _SMALL_SIDE:
        tally.odd("small", path, f"{info.width}x{info.height}")
    if info.orientation != 1:
        tally.odd("turned", path)
    if info.frames > 1 and info.frames != info.bands:  # pages that are not the bands
        tally.odd("frames", path, f"{info.frames} frames")
    if item.path.suffix.lower() not in _SUFFIXES.get(info.format, item.path.suffix.lower()).split():
        tally.odd("wrong-suffix", path, f"holds {info.format}")
    if facts.span is not None:
        tally.odd(info.dtype, path)
        low, high = tally.spans.get(info.dtype, (1.0, 0.0))
        tally.spans[info.dtype] = min(low, facts.span[0]), max(high, facts.span[1])


def _class_findings(data: ClassData, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    train, val = counts["train"], counts["val"]
    n_train, n_val = sum(train.values()), sum(val.values())
    if n_train == 0:
        yield Finding("error", "no-training", "No training pictures: put class folders into a folder called train.")
    if n_val == 0:
        yield Finding("error", "no-validation", "No validation pictures, so nothing can be measured: add a val folder or more pictures.")
    if len(data.classes) == 1:
        hint = f" If {data.classes[0]} is not a class but holds the class folders, give that folder." if data.made_split else ""
        yield Finding("warning", "one-class", f"Only one class, {data.classes[0]}: there is nothing to tell apart.{hint}")
    rows: list[tuple[Level, str, list[str], str]] = [
        ("error", "untrained", [c for c in train if n_train and not train[c] and val[c]], "validation pictures, but none to train on"),
        ("warning", "empty", [c for c in train if n_train and not train[c] and not val[c]], "no pictures at all, so it can't be learnt"),
        (
            "warning",
            "unmeasured",
            [c for c in train if n_val and train[c] and not val[c]],
            "no validation pictures, left out of the score",
        ),
        ("warning", "few", [c for c in train if 0 < train[c] < _FEW], f"fewer than {_FEW} training pictures; add more"),
    ]
    for level, code, names, text in rows:
        if names:
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            yield Finding(level, code, f"{_number(len(names), 'class', 'classes')} ({some}) with {text}.", details=tuple(names))
    present = {name: n for name, n in train.items() if n}
    if present and max(present.values()) > _UNEVEN * min(present.values()):
        most, least = max(present, key=present.__getitem__), min(present, key=present.__getitem__)
        text = f"{most} has {present[most]} training pictures, {least} only {present[least]}; consider --class-weights auto."
        yield Finding("warning", "uneven", f"Uneven classes: {text}")


def _file_findings(tally: _Tally, options: ReadOptions, n_val: int) -> Iterator[Finding]:
    def leak(code: str) -> Level:
        return "error" if len(tally.paths[code]) > _LEAK * max(n_val, 1) else "warning"

    turn = "turned upright" if options.orientation else "left as stored, as asked"
    rows: list[tuple[str, Level, str]] = [
        ("damaged", "error", "that can't be read would stop the training: mend or remove, or pass --on-bad-sample skip"),
        ("bands", "error", f"without the {options.in_chans} channels that the network takes: pass --in-chans, or remove"),
        ("value-range-unknown", "error", "with float values outside 0..1 or not finite: pass --value-range LOW HIGH, or mend"),
        ("duplicate-splits", leak("duplicate-splits"), "in training and validation alike make the score too good: remove one of each"),
        ("duplicate-classes", leak("duplicate-classes"), "in two classes alike: decide for one"),
        ("duplicate", "note", "with an exact copy in the same class and split"),
        ("small", "warning", f"under {_SMALL_SIDE} pixels on a side get blurred when they are enlarged"),
        ("turned", "note", f"with an orientation tag, {turn}"),
        ("frames", "note", "with several frames, of which the first is used"),
        ("wrong-suffix", "note", "with a suffix that does not fit the content, read by content"),
    ]
    for code, level, text in rows:
        if paths := tally.paths[code]:
            yield Finding(level, code, f"{_number(len(paths), 'file', 'files')} {text}.", tuple(paths), tuple(tally.reasons[code]))
    deep = [path for dtype in tally.spans for path in tally.paths[dtype]]
    if deep and len(deep) < len(tally.widths):
        text = f"{len(deep)} of {len(tally.widths)} pictures are deeper than 8 bits: all map to 0..1, but may differ in brightness."
        yield Finding("warning", "mixed-depth", text, tuple(deep))
    for dtype, span in tally.spans.items():
        if span[1] - span[0] < _NARROW:
            kind = np.dtype(dtype)
            full = (0.0, 1.0) if kind.kind == "f" else (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
            bottom, top = options.value_range or full
            low, high = (round(bottom + share * (top - bottom), 3) for share in span)
            text = f"{_number(len(tally.paths[dtype]), f'{dtype} file', f'{dtype} files')} with values from {low:g} to {high:g} only"
            text += f", of {bottom:g} to {top:g}, look flat to the network: pass --value-range {low:g} {high:g}."
            yield Finding("warning", "narrow-range", text, tuple(tally.paths[dtype]))


def _ignored(data: ClassData) -> Iterator[Finding]:
    if data.ignored:
        text = f"{_number(len(data.ignored), 'file or folder', 'files or folders')}, hidden or not pictures, left out."
        yield Finding("note", "ignored", text, tuple(_short(path, data) for path in data.ignored))


def _number(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _short(path: Path, data: ClassData) -> str:
    return path.relative_to(data.root).as_posix()


def render(report: CheckReport, *, examples: int = 3) -> RenderableType:
    """Verdict, counts and findings, for rich's console; ``examples`` paths per finding."""
    levels = Counter(finding.level for finding in report.findings)
    found = ", ".join(_number(levels[level], level, f"{level}s") for level in _STYLES if levels[level]) or "nothing to report"
    verdict, style = ("ready to train", "bold green") if report.ok else ("training would go wrong", "bold red")
    lines: list[RenderableType] = [Text.assemble((f"{report.root}: {verdict}", style), f" ({found})"), _counts_table(report)]
    if report.sizes:
        sizes = "; ".join(f"{side} {low} to {high}, median {middle}" for side, (low, middle, high) in report.sizes.items())
        lines.append(Text(f"{sizes}; {', '.join(f'{n} {mode}' for mode, n in report.modes.items())}", style="dim"))
    for finding in report.findings:
        lines.append(Text.assemble((f"{finding.level}: ", _STYLES[finding.level]), finding.message))
        for number, path in enumerate(finding.paths[:examples]):
            reason = finding.details[number] if number < len(finding.details) else ""
            lines.append(Text(f"    {path}{': ' if reason else ''}{reason}", style="dim"))
        if len(finding.paths) > examples:
            lines.append(Text(f"    and {len(finding.paths) - examples} more (all of them with --json)", style="dim"))
    return Group(*lines)


def _counts_table(report: CheckReport, rows: int = 12) -> Table:
    table = Table("class", *report.counts, box=None, pad_edge=False)
    classes = sorted(report.counts["train"], key=lambda name: -report.counts["train"][name])
    shown = classes if len(classes) <= rows else [*classes[: rows // 2], *classes[-rows // 2 :]]
    for number, name in enumerate(shown):
        if len(shown) < len(classes) and number == rows // 2:
            table.add_row(Text(f"… {len(classes) - rows} more", style="dim"), *("" for _ in report.counts))
        table.add_row(Text(name), *(str(counts[name]) for counts in report.counts.values()))
    table.add_row(Text(f"{len(classes)} classes", style="bold"), *(str(sum(counts.values())) for counts in report.counts.values()))
    return table
