"""What annotation files say, as it stands there: the common ground of the readers of COCO, VOC, YOLO, VIA and mask folders.

Shapes: N objects. Boxes are xyxy in absolute pixels, right and lower edges exclusive.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyramidvit.data.findings import Finding, number_of
from pyramidvit.data.folders import SUFFIXES, VAL_NAMES
from pyramidvit.data.listing import entries_of, inside, relative
from pyramidvit.errors import UserError
from pyramidvit.geometry import rle_area
from pyramidvit.types import Rle

Shape = Rle | tuple[np.ndarray, ...]
"""Outline of an object: run lengths, or polygons, each (P, 2) float64 of x and y in pixels."""
Box = tuple[float, float, float, float]
NOWHERE: Box = (np.nan, np.nan, np.nan, np.nan)
_FARTHEST = 1e6
_TRAIN_NAMES = ("train", "training")


@dataclass(slots=True)
class RawObject:
    """An object as annotated: nothing about the box is certain. ``flaw`` says what is wrong with the shape."""

    box: Box
    name: str
    shape: Shape | None = None
    crowd: bool = False
    area: float | None = None
    flaw: str = ""


@dataclass(slots=True)
class RawPicture:
    """``size`` is (height, width) as the annotations state it, None where they don't; ``id`` is the picture's own in the source."""

    path: Path
    size: tuple[int, int] | None
    objects: list[RawObject]
    id: int | str | None = None


@dataclass
class RawSplit:
    """``classes`` are declared in this order, None: those that occur, alphabetically; ``ids`` are the classes' own in the source."""

    pictures: list[RawPicture]
    classes: tuple[str, ...] | None = None
    ids: Mapping[str, int | str] = field(default_factory=dict)


@dataclass
class RawData:
    """``splits`` has "train" and "val", or "all" when the source makes no difference."""

    format: str
    root: Path
    splits: dict[str, RawSplit]
    findings: list[Finding] = field(default_factory=list)


def read_json(path: Path) -> Any:
    """Plain data from a JSON file; UserError when it is none."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged or no JSON: {error}.") from None


def split_of(path: Path, root: Path) -> str | None:
    """ "train", one of VAL_NAMES, or None, from the words in the name of a file or folder, or else in those of the folders above it."""
    for part in (path.stem, *(parent.name for parent in path.parents if parent != root and root in parent.parents)):
        words = re.findall("[a-z]+", part.lower())
        found = ["train" if word in _TRAIN_NAMES else word for word in words if word in (*_TRAIN_NAMES, *VAL_NAMES)]
        if found:
            return found[0]
    return None


def choose_splits(found: Mapping[Path, str | None], root: Path, findings: list[Finding]) -> dict[str, Path]:
    """Which source is "train" and "val", or "all"; what is left over becomes a note, two of a kind are a UserError."""
    if not found:
        return {}
    by_split: dict[str, list[Path]] = {}
    for path, split in found.items():
        by_split.setdefault(split or "all", []).append(path)
    val = next((name for name in VAL_NAMES if name in by_split), None)
    wanted = {split: name for split, name in (("train", "train"), ("val", val)) if name in by_split} or {"all": "all"}
    chosen: dict[str, Path] = {}
    for split, name in wanted.items():
        if len(by_split[name or ""]) > 1:
            several = ", ".join(relative(path, root) for path in by_split[name or ""])
            raise UserError(
                f"{root} has several sources of annotations for {split}: {several}. Give the one to use, or move the others away."
            )
        chosen[split] = by_split[name or ""][0]
    left = sorted(relative(path, root) for path in found if path not in chosen.values())
    if left:
        what = f"{len(left)} sources of annotations left out, {', '.join(chosen)} being taken from others."
        findings.append(Finding("note", "unused-annotations", what, tuple(left)))
    return chosen


def unknown_names(names: Sequence[str], split: str, where: str, wanted: str) -> Finding:
    """What to say of names in the list of a split that have no file: an error, since it would be learned or measured on less."""
    text = f"{number_of(len(names), 'name', 'names')} of the {split} list {where} without {wanted}: correct the list or add them."
    return Finding("error", "unknown-names", text, tuple(names))


LONGEST_NAME = 255
"""Bytes that the name of a file can have on every common system."""


def below(folder: Path, name: str, where: str) -> Path:
    """A file named in annotations, which can't lie outside of ``folder``; UserError if it would."""
    try:
        path = folder / inside(name.replace("\\", "/"), where)
    except ValueError as error:
        raise UserError(f"The annotations name a picture outside of the data: {error}.") from None
    if any(len(part.encode(errors="replace")) > LONGEST_NAME for part in path.parts):
        raise UserError(f"{where} names a picture with more than {LONGEST_NAME} letters: {name[:40]}…, which no file can have.")
    return path


def pictures_below(folder: Path) -> list[Path]:
    """Pictures in a folder and its subfolders, by their suffix, in order."""
    folders, files = entries_of(folder, [])
    return [file for file in files if file.suffix.lower() in SUFFIXES] + [path for one in folders for path in pictures_below(one)]


def as_polygons(outlines: Iterable[Any]) -> tuple[np.ndarray, ...]:
    """Lists of x, y, x, y … → polygons; those of fewer than three points enclose nothing and are left out. ValueError for other things."""
    arrays = [np.asarray(outline, np.float64).reshape(-1, 2) for outline in outlines]
    if not all((np.abs(array) < _FARTHEST).all() for array in arrays):
        raise ValueError("its outline has coordinates that are not finite, or absurdly large")
    return tuple(array for array in arrays if len(array) > 2)


def box_of(polygons: tuple[np.ndarray, ...]) -> Box:
    """Smallest box around polygons; NaN without any."""
    if not polygons:
        return NOWHERE
    points = np.concatenate(polygons)
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    return left, top, right, bottom


def settled_area(annotated: float | None, box: Box, shape: Shape | None) -> float:
    """The annotated area where it can be true, or else that of the outline or box.

    True can be what is between half and twice the area of the outline; without an outline, what the box has room for.
    """
    width, height = box[2] - box[0], box[3] - box[1]
    if isinstance(shape, Rle):
        own, low, high = float(rle_area(shape)), 0.5, 2.0
    elif shape:
        own, low, high = sum(_polygon_area(polygon) for polygon in shape), 0.5, 2.0
    else:
        own, low, high = width * height, 0.0, 1.1
    if annotated is not None and annotated > 0 and low * own <= annotated <= high * own:
        return annotated
    return own


def _polygon_area(points: np.ndarray) -> float:
    x, y = (points - points[0]).T  # the first point is 0, 0, so the edges that meet there count nothing
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1])) / 2


def drawn_order(paths: Iterable[Path], root: Path, seed: int) -> list[Path]:
    """A random order that depends on seed and relative names alone."""
    return sorted(paths, key=lambda path: hashlib.sha256(f"{seed}/{relative(path, root)}".encode("utf-8", "surrogateescape")).digest())


def share_of(n: int, share: float) -> int:
    """How many of ``n`` to hold out: at least one, but never all."""
    return min(max(round(share * n), 1), n - 1)
