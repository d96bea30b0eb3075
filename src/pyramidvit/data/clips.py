"""Folders and lists of labelled clips → class names and items per split. A clip is a video file, or a folder of numbered frames.

Class folders are laid out as for pictures, with clips in the place of pictures: ``train/<class>/**`` and ``val/<class>/**``, or
``<class>/**``. A folder that holds pictures itself is one clip.

A list has one clip per line: the path, then the label. The separator, of tab, semicolon, comma and space, is the one by which the first
line names columns, or else most of the first lines name clips that are there. The label stands on the right, so paths may hold the
separator, and labels may when the path alone shows where it ends; both may be in quotes. Columns that are named may come in any order; then
the file is plain CSV. A JSON list is an array of objects with a path and a label, or an object of path: label. Paths are relative to the
list, or absolute and below its folder; a suffix may be missing.

Labels are names or numbers, never both in one data set. Numbers count from 0 into the class list: that given, or the lines of classes.txt
(labels.txt, labels.json) beside the list. Without any, the numbers themselves are the names, in their order.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pyramidvit.data.folders import LISTS, SUFFIXES, VAL_NAMES, ClassData, Named, assemble, class_folders
from pyramidvit.data.listing import did_you_mean, entries_of, first_of, inside, read_text
from pyramidvit.errors import UserError

_VIDEO_TEXT = ".mp4 .mkv .webm .avi .mov .m4v .mpg .mpeg .ts .mts .m2ts .flv .wmv .asf .3gp .ogv .gif .mxf .dv .nut .vob"
VIDEO_SUFFIXES = frozenset(_VIDEO_TEXT.split())
"""Names that are taken for videos; what they hold is found out when they are read."""
_NAMES = ("classes.txt", "labels.txt", "labels.json")
_SEPARATORS = ("\t", ";", ",", " ")
_PATH_HEADS = ("path", "file", "filename", "file_name", "video", "video_path", "clip", "id", "video_id")
_LABEL_HEADS = ("template", "label", "class", "class_name", "category", "action", "labels")
"""Of several the first counts: the label beside a template is that sentence filled in, another one for each clip."""
_NUMBER, _NUMBERS = re.compile(r"\d+"), re.compile(r"\d+([\s,;]+\d+)+")


@dataclass(frozen=True)
class _Row:
    """A line of a list: where it stands, in words, and what it says."""

    where: str
    path: str
    label: str


def read_clip_data(root: str | Path, *, val_share: float = 0.2, seed: int = 0, classes: Sequence[str] | None = None) -> ClassData:
    """Find the layout, the classes and the splits of ``root``, a folder or a list.

    The class list is ``classes``, or else that of the training split, and holds in every split: a class without clips keeps its index, an
    unknown one is a UserError.
    """
    root = Path(root)
    if not os.path.exists(root):
        raise UserError(f"There is no folder or list {root}.{did_you_mean(root.name, (path.name for path in root.parent.glob('*')))}")
    ignored: list[Path] = []
    folder_classes: list[str] = []
    lists = {"train": root} if root.is_file() else _lists(root)
    if lists:
        base = root.parent if root.is_file() else root
        rows = {split: _read_list(path, base) for split, path in lists.items()}
        named, classes = _with_names(rows, lists, base, classes)
    else:
        named, folder_classes = class_folders(root, ignored, _clips, _is_video, "clips")
        if not any(named.values()) and any(file.suffix.lower() in SUFFIXES for file in ignored):
            raise UserError(f"{root} has pictures right in its class folders; a clip is a video, or a folder of its own with the frames.")
    return assemble(
        root, named, folder_classes, ignored, classes=classes, val_share=val_share, seed=seed, noun="clips", suffixes=_VIDEO_TEXT
    )


def is_clip_data(root: str | Path) -> bool:
    """Whether there are videos in a folder (its first 10,000 entries) or a list (its first MiB); folders of frames look like pictures."""
    root = Path(root)
    if root.is_file():
        with root.open(encoding="utf-8-sig", errors="replace") as file:
            text = file.read(2**20).lower()
        return any(re.search(rf"{re.escape(suffix)}\b", text) for suffix in VIDEO_SUFFIXES - {".gif"})
    return any(path.suffix.lower() in VIDEO_SUFFIXES - {".gif"} for path in islice(root.rglob("*"), 10_000))


def find_clips(folder: Path) -> list[Path]:
    """The clips in a folder at any depth, in name order; a folder with pictures of its own and no videos is one."""
    ignored: list[Path] = []
    found = _clips(folder, ignored)
    return found if found or not any(file.suffix.lower() in SUFFIXES for file in ignored) else [folder]


def _lists(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for split, names in (("train", ("train",)), ("val", VAL_NAMES)):
        path = next((path for suffix in LISTS if (path := first_of(root, names, suffix))), None)
        if path is not None:
            found[split] = path
    return found


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _clips(folder: Path, ignored: list[Path], above: frozenset[Path] = frozenset()) -> list[Path]:
    """Clips in a class folder and below it; links to folders are followed, circles are not."""
    if (real := folder.resolve()) in above:
        return []
    folders, files = entries_of(folder, ignored)
    if above and not any(map(_is_video, files)) and any(file.suffix.lower() in SUFFIXES for file in files):
        return [folder]
    ignored += [file for file in files if not _is_video(file)]
    below = [path for one in folders for path in _clips(one, ignored, above | {real})]
    return [file for file in files if _is_video(file)] + below


def _read_list(table: Path, base: Path) -> list[tuple[_Row, Path]]:
    """The rows of a list and the clips they name; a UserError that lists the wrong ones."""
    text = read_text(table)
    split = _json_rows(table, text) if table.suffix.lower() == ".json" else _text_rows(text, table.parent, base)
    found: list[tuple[_Row, Path]] = []
    problems: list[str] = []
    seen: dict[Path, str] = {}
    for row in split:
        path = _clip_at(row.path, table.parent, base)
        if not row.path or not row.label:
            problems.append(f"{row.where}: expected a path and a label, got {(row.path or row.label)!r}")
        elif re.fullmatch(r"-\d+", row.label):
            problems.append(f"{row.where}: labels that are numbers count from 0, got {row.label}: leave out clips without a label")
        elif _NUMBERS.fullmatch(row.label):
            problems.append(f"{row.where}: expected one label behind the path, got the numbers {row.label!r}: leave out counts of frames")
        elif path is None:
            problems.append(f"{row.where}: there is no clip {row.path!r} below {table.parent}")
        elif path in seen:
            problems.append(f"{row.where}: {row.path} is already in {seen[path]}")
        else:
            seen[path] = row.where
            found.append((row, path))
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(f"{table} has {len(problems)} wrong lines:\n  " + "\n  ".join(problems[:10]) + more)
    if not found:
        raise UserError(f"{table} has no rows; expected a path and a label on each line, such as clips/a.mp4 running.")
    return sorted(found, key=lambda pair: pair[1])


def _clip_at(text: str, folder: Path, base: Path) -> Path | None:
    """The clip that a list means, below ``base``; None if there is none."""
    try:
        if os.path.isabs(text):
            path = base / os.path.relpath(text, base.absolute())
            inside(path.relative_to(base).as_posix(), "a list")
        else:
            path = folder / inside(text, "a list")
    except ValueError:
        return None
    if os.path.exists(path):  # False, where Path.exists raises, for names that are too long
        return path
    return next((one for suffix in sorted(VIDEO_SUFFIXES) if os.path.isfile(one := path.with_name(path.name + suffix))), None)


def _text_rows(text: str, folder: Path, base: Path) -> list[_Row]:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]

    def exists(path: str) -> bool:
        return _clip_at(path, folder, base) is not None

    def fits(separator: str) -> tuple[bool, int, bool]:
        found = [_cut(line, separator, exists)[0] for _, line in lines[:100]]
        return _columns(_head(lines[0][1], separator)) is not None, sum(map(exists, found)), all(separator in line for _, line in lines)

    if not lines:
        return []
    separator = max(_SEPARATORS, key=fits)
    head = _head(lines[0][1], separator)
    if (columns := _columns(head)) is None:
        return [_Row(f"line {number}", *_cut(line, separator, exists)) for number, line in lines]
    if separator == " " or columns == (0, 1) == (0, len(head) - 1):
        return [_Row(f"line {number}", *_cut(line, separator, exists)) for number, line in lines[1:]]
    cells = csv.reader((line for _, line in lines[1:]), delimiter=separator, skipinitialspace=True)
    rows = ((number, [*row, *[""] * len(head)]) for (number, _), row in zip(lines[1:], cells, strict=False))
    return [_Row(f"line {number}", row[columns[0]].strip(), row[columns[1]].strip()) for number, row in rows]


def _head(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in line.split(separator)]


def _columns(head: Sequence[str]) -> tuple[int, int] | None:
    """Which columns hold path and label, if these are column names."""
    found = [next((head.index(name) for name in names if name in head), None) for names in (_PATH_HEADS, _LABEL_HEADS)]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _cut(line: str, separator: str, exists: Callable[[str], bool]) -> tuple[str, str]:
    """Path and label: at the separator farthest right that leaves the path of a clip, or else at the last one."""
    first: tuple[str, str] | None = None
    rest = line
    while separator in rest:
        rest = rest.rpartition(separator)[0]
        pair = rest.strip().strip('"').strip(), line[len(rest) + 1 :].strip().strip('"').strip()
        if pair[1] and exists(pair[0]):
            return pair
        first = first or pair
    return first or (line, "")


def _json_rows(table: Path, text: str) -> list[_Row]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"Can't read {table} as JSON: {error}.") from error
    if isinstance(content, dict):
        return [_Row(f"entry {path!r}", str(path), _label(label)) for path, label in content.items()]
    rows: list[_Row] = []
    for number, entry in enumerate(content if isinstance(content, list) else []):
        columns = _columns([*map(str, entry)]) if isinstance(entry, dict) else None
        if columns is None:
            raise UserError(f"Entry {number} of {table} should be an object with a path and a label, got {str(entry)[:100]}.")
        values = [*entry.values()]
        rows.append(_Row(f"entry {number}", str(values[columns[0]]), _label(values[columns[1]])))
    return rows


def _label(value: Any) -> str:
    """A label as text; the brackets of a template ("Pushing [something]") are no part of a class name."""
    return "" if value is None or isinstance(value, dict | list) else str(value).replace("[", "").replace("]", "").strip()


def _with_names(
    rows: dict[str, list[tuple[_Row, Path]]], lists: dict[str, Path], base: Path, classes: Sequence[str] | None
) -> tuple[dict[str, list[Named]], Sequence[str] | None]:
    """Numbers become names; UserError when some labels are names and some are numbers."""
    if classes is None:
        classes = _class_names(base)
    every = [(f"{lists[split]}, {row.where}", row.label) for split, pairs in rows.items() for row, _ in pairs]
    known = set(classes or ())
    numbers = [where for where, label in every if _NUMBER.fullmatch(label) and label not in known]
    names = [(where, label) for where, label in every if not _NUMBER.fullmatch(label)]
    if numbers and names:
        where, label = names[0]
        raise UserError(f"Some labels are names and some are numbers: {label!r} in {where}, but a number in {numbers[0]}. Use one kind.")
    if numbers and classes is None:
        classes = sorted({row.label for row, _ in rows.get("train", rows[min(rows)])}, key=lambda label: (int(label), label))
    elif numbers and classes is not None and not any(label in known for _, label in every):
        if wrong := [where for where, label in every if int(label) >= len(classes)]:
            raise UserError(f"{wrong[0]} has a number beyond the {len(classes)} classes, which count from 0.")
        return {s: [Named(path, classes[int(row.label)]) for row, path in pairs] for s, pairs in rows.items()}, classes
    return {split: [Named(path, row.label) for row, path in pairs] for split, pairs in rows.items()}, classes


def _class_names(base: Path) -> list[str] | None:
    """The class list beside a list: a name per line, or a JSON array, or a JSON object of name: number."""
    path = next((base / name for name in _NAMES if (base / name).is_file()), None)
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        content: Any = json.loads(text) if path.suffix == ".json" else [line.strip() for line in text.splitlines() if line.strip()]
        if isinstance(content, dict):
            content = sorted(content, key=lambda name: int(content[name]))
        return [_label(name) for name in content]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Can't read the class names in {path}: {error}.") from error
