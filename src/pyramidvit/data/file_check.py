"""Every picture file of a data set read once: what can't be read, what is odd, what is there twice."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pyramidvit.data.findings import Finding, Level, number_of
from pyramidvit.data.image import BandError, ImageError, ImageInfo, RangeError, ReadOptions, inspect_image, read_image

_SMALL_SIDE, _NARROW, _LEAK = 32, 0.25, 0.01
_SUFFIXES = {
    "JPEG": ".jpg .jpeg .jpe .jfif", "MPO": ".jpg .jpeg .mpo", "PNG": ".png .apng", "WEBP": ".webp", "AVIF": ".avif .avifs", "GIF": ".gif",
    "TIFF": ".tif .tiff", "BMP": ".bmp .dib", "PPM": ".ppm .pgm .pbm .pnm", "JPEG2000": ".jp2 .j2k", "TGA": ".tga", "NPY": ".npy",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A file to read: ``truth`` is what is said of it, to notice copies with other truths; ``more`` looks on, given its header."""

    split: str
    path: Path
    truth: Hashable = None
    more: Callable[[ImageInfo], Any] | None = None


@dataclass
class Facts:
    """What one file turned out to be; ``span`` are the lowest and highest value of a deep picture, as shares of the range.

    ``more`` is what the entry's own look gave, when the picture could be read.
    """

    digest: bytes | None = None
    info: ImageInfo | None = None
    span: tuple[float, float] | None = None
    error: ImageError | None = None
    more: Any = None


@dataclass
class Tally:
    """What stays of all files: counters and, of odd ones, the paths relative to ``root``."""

    root: Path
    modes: Counter[str] = field(default_factory=Counter)
    widths: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    paths: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    first: dict[bytes, Entry] = field(default_factory=dict)

    def odd(self, code: str, path: str, reason: str = "") -> None:
        self.paths[code].append(path)
        self.reasons[code].append(reason)

    def copies(self, path: str, entry: Entry, digest: bytes) -> None:
        """Note an entry whose content was there before."""
        first = self.first.setdefault(digest, entry)
        pair = f"the same as {first.path.relative_to(self.root).as_posix()}"
        if first.truth != entry.truth:
            self.odd("duplicate-classes", path, pair)
        if first.split != entry.split:
            self.odd("duplicate-splits", path, pair)
        if first is not entry and (first.split, first.truth) == (entry.split, entry.truth):
            self.odd("duplicate", path, pair)

    @property
    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """(smallest, median, largest) of width and height."""
        sides = {"width": self.widths, "height": self.heights}
        return {side: (min(values), round(median(values)), max(values)) for side, values in sides.items() if values}


def examine_files(
    entries: Sequence[Entry],
    root: Path,
    options: ReadOptions,
    *,
    workers: int | None = None,
    on_file: Callable[[int, Facts], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tally:
    """Read every file once, in ``workers`` threads (one per core if not given).

    ``on_file`` gets the number of an entry and its facts, in order; ``on_progress`` gets (files done, files in all).
    """
    tally = Tally(root)
    for done, (entry, facts) in enumerate(_examine_all(entries, options, workers or os.cpu_count() or 1), 1):
        _count(tally, entry, facts)
        if on_file is not None:
            on_file(done - 1, facts)
        if on_progress is not None:
            on_progress(done, len(entries))
    return tally


def _examine_all(entries: Sequence[Entry], options: ReadOptions, workers: int) -> Iterator[tuple[Entry, Facts]]:
    """In order and a few at a time, so that memory does not grow; decoding and hashing leave Python's lock, so threads do."""
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(entries), 64):
            chunk = entries[start : start + 64]
            yield from zip(chunk, pool.map(lambda entry: _examine(entry, options), chunk), strict=True)


def _examine(entry: Entry, options: ReadOptions) -> Facts:
    facts = Facts()
    try:
        facts.info = inspect_image(entry.path, options)
        with entry.path.open("rb") as file:
            facts.digest = hashlib.file_digest(file, "sha256").digest()
        array = read_image(entry.path, options)
    except ImageError as error:
        facts.error = error
        return facts
    if array.dtype == np.float32:
        facts.span = float(array.min()), float(array.max())
    if entry.more is not None:
        facts.more = entry.more(facts.info)
    return facts


def _count(tally: Tally, entry: Entry, facts: Facts) -> None:
    """Add one file to the tally."""
    path, info = entry.path.relative_to(tally.root).as_posix(), facts.info
    if facts.digest is not None:
        tally.copies(path, entry, facts.digest)
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
    if entry.path.suffix.lower() not in _SUFFIXES.get(info.format, entry.path.suffix.lower()).split():
        tally.odd("wrong-suffix", path, f"holds {info.format}")
    if facts.span is not None:
        tally.odd(info.dtype, path)
        low, high = tally.spans.get(info.dtype, (1.0, 0.0))
        tally.spans[info.dtype] = min(low, facts.span[0]), max(high, facts.span[1])


def file_findings(tally: Tally, options: ReadOptions, n_val: int) -> Iterator[Finding]:
    """What is worth knowing of the files; copies in both splits are an error from 1 % of the ``n_val`` validation pictures on."""

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
            yield Finding(level, code, f"{number_of(len(paths), 'file', 'files')} {text}.", tuple(paths), tuple(tally.reasons[code]))
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
            text = f"{number_of(len(tally.paths[dtype]), f'{dtype} file', f'{dtype} files')} with values from {low:g} to {high:g} only"
            text += f", of {bottom:g} to {top:g}, look flat to the network: pass --value-range {low:g} {high:g}."
            yield Finding("warning", "narrow-range", text, tuple(tally.paths[dtype]))
