"""The data doctor for clips: every one is opened and decoded to its end, and what is wrong or odd is said before hours are spent on it."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyramidvit.data.clip_reader import ClipSampling, frame_files, inspect_clip
from pyramidvit.data.file_check import Entry, Tally
from pyramidvit.data.findings import (
    CheckReport,
    Finding,
    Level,
    class_findings,
    ignored_files,
    most_serious_first,
    number_of,
    split_findings,
)
from pyramidvit.data.folders import ClassData
from pyramidvit.data.image import ReadOptions, read_image
from pyramidvit.data.video import VideoInfo, VideoOptions, count_frames
from pyramidvit.errors import BadFileError

_SMALL_SIDE, _LEAK, _FAR = 32, 0.01, 2
_CUT = 0.9
"""A file that gives fewer than this share of the frames that its header counts was cut."""


@dataclass
class _Facts:
    digest: bytes | None = None
    info: VideoInfo | None = None
    frames: int = 0
    error: BadFileError | None = None


def check_clips(
    data: ClassData,
    options: VideoOptions,
    sampling: ClipSampling,
    *,
    thorough: bool = True,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Open every clip, in ``workers`` threads (one per core if not given); ``thorough`` decodes them to the end, else only the first frame.

    ``sampling`` tells which clips are short. ``on_progress`` gets (clips done, clips in all).
    """
    entries = [Entry(split, item.path, item.label) for split, items in data.splits.items() for item in items]
    tally, infos = Tally(data.root), dict[str, VideoInfo]()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for start in range(0, len(entries), 64):  # a few at a time, so that memory does not grow; decoding leaves Python's lock
            chunk = entries[start : start + 64]
            for done, facts in enumerate(pool.map(lambda entry: _examine(entry.path, options, thorough), chunk), start):
                _count(tally, infos, entries[done], facts, sampling)
                if on_progress is not None:
                    on_progress(done + 1, len(entries))
    _odd_rates(tally, infos)
    numbers = {split: Counter(item.label for item in items) for split, items in data.splits.items()}
    counts = {split: {name: number[i] for i, name in enumerate(data.classes)} for split, number in numbers.items()}
    findings = [
        *split_findings(data.splits, "clips"),
        *class_findings(counts, "clips"),
        *_file_findings(tally, options, sampling, len(data.splits["val"])),
        *ignored_files(data.ignored, data.root, "clips"),
    ]
    modes, facts = dict(tally.modes.most_common()), _summary(list(infos.values()))
    return CheckReport(str(data.root), counts, tally.sizes, modes, most_serious_first(findings), counted="clips", facts=facts)


def _examine(path: Path, options: VideoOptions, thorough: bool) -> _Facts:
    facts = _Facts()
    try:
        facts.info = inspect_clip(path, options)
        if facts.info.format == "frames":
            files = frame_files(path)
            facts.digest = _digest(files)
            settings = ReadOptions(options.in_chans, orientation=options.orientation, max_pixels=options.max_pixels)
            facts.frames = sum(1 for file in files if not thorough or read_image(file, settings).size)
        else:
            facts.digest = _digest([path])
            facts.frames = count_frames(path, options) if thorough else facts.info.frames or 0
    except BadFileError as error:
        facts.error = error
    return facts


def _digest(files: Sequence[Path]) -> bytes:
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()


def _count(tally: Tally, infos: dict[str, VideoInfo], entry: Entry, facts: _Facts, sampling: ClipSampling) -> None:
    """Add one clip to the tally."""
    path, info = entry.path.relative_to(tally.root).as_posix(), facts.info
    if facts.digest is not None:
        tally.copies(path, entry, facts.digest)
    if facts.error is not None:
        tally.odd("no-video" if "no video stream" in facts.error.reason else "damaged", path, _own(facts.error, entry.path))
    if info is None or facts.error is not None:
        return
    infos[path] = info
    tally.modes[info.codec] += 1
    tally.widths.append(info.width)
    tally.heights.append(info.height)
    if min(info.height, info.width) < _SMALL_SIDE:
        tally.odd("small", path, f"{info.width}x{info.height}")
    if info.rotation:
        tally.odd("turned", path, f"{info.rotation} degrees")
    if info.frames and facts.frames < _CUT * info.frames:
        tally.odd("cut", path, f"{facts.frames} of {info.frames} frames")
    if info.duration + 0.5 / info.fps < (needed := sampling.seconds(info.fps)):
        tally.odd("short", path, f"{info.duration:.2f} s, a clip takes {needed:.2f} s")


def _own(error: BadFileError, path: Path) -> str:
    """The reason, with the frame's name when a frame of a folder is the trouble."""
    name = Path(error.path).name
    return error.reason if name == path.name else f"{name}: {error.reason}"


def _odd_rates(tally: Tally, infos: Mapping[str, VideoInfo]) -> None:
    """Note rates far from the usual one."""
    usual = median(info.fps for info in infos.values()) if infos else 1.0
    for path, info in infos.items():
        if not usual / _FAR < info.fps < usual * _FAR:
            tally.odd("rate", path, f"{info.fps:.4g} frames per second, most have about {usual:.4g}")


def _file_findings(tally: Tally, options: VideoOptions, sampling: ClipSampling, n_val: int) -> Iterator[Finding]:
    def leak(code: str) -> Level:
        return "error" if len(tally.paths[code]) > _LEAK * max(n_val, 1) else "warning"

    turn = "turned upright" if options.orientation else "left as stored, as asked"
    after = "held on its last frame" if sampling.short == "hold" else "played again from the start"
    rows: list[tuple[str, Level, str]] = [
        ("damaged", "error", "that can't be read to the end would stop the training: mend or remove, or pass --on-bad-sample skip"),
        ("no-video", "error", "without pictures, only sound: remove"),
        ("duplicate-splits", leak("duplicate-splits"), "in training and validation alike make the score too good: remove one of each"),
        ("duplicate-classes", leak("duplicate-classes"), "in two classes alike: decide for one"),
        ("cut", "warning", "with far fewer frames than the header says: what is there is used"),
        ("short", "warning", f"shorter than a clip of {sampling.frames} frames, {after}"),
        ("rate", "warning", "with a frame rate far from the usual one; clips are taken by time, so motion keeps its speed"),
        ("small", "warning", f"under {_SMALL_SIDE} pixels on a side get blurred when they are enlarged"),
        ("turned", "note", f"with a rotation tag, {turn}"),
        ("duplicate", "note", "with an exact copy in the same class and split"),
    ]
    for code, level, text in rows:
        if paths := tally.paths[code]:
            yield Finding(level, code, f"{number_of(len(paths), 'clip', 'clips')} {text}.", tuple(paths), tuple(tally.reasons[code]))


def _summary(infos: Sequence[VideoInfo]) -> dict[str, object]:
    """Durations in seconds and rates of all readable clips, (smallest, median, largest)."""
    values = {"seconds": [info.duration for info in infos], "fps": [info.fps for info in infos]}
    return {name: [round(v, 3) for v in (min(one), median(one), max(one))] for name, one in values.items() if one}
