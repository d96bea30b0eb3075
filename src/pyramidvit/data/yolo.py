"""YOLO text: a data.yaml with names and splits, and beside images/ a folder labels/ with one .txt per picture.

A line is ``class x y width height`` (centre and sides) or ``class x y x y x y …`` (a polygon), as shares of the upright picture. A picture
without a .txt, or with an empty one, has no objects. Without a yaml, class names are the lines of classes.txt (or obj.names).

Paths in the yaml, and in the lists that it names, are below the folder of the yaml, or below its ``path:`` where that is a folder in there.
One that leads outside is refused where there is something to be found, since that may be other data; where there is nothing, the yaml was
written for another place, and what follows ``../`` is looked for below the folder of the yaml, which is said. Nothing else is tried.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pyramidvit.data.annotations import (
    RawData,
    RawObject,
    RawPicture,
    RawSplit,
    as_polygons,
    below,
    box_of,
    choose_splits,
    pictures_below,
    split_of,
    unknown_names,
)
from pyramidvit.data.findings import Finding
from pyramidvit.data.folders import VAL_NAMES
from pyramidvit.data.image import ImageError, inspect_image
from pyramidvit.data.listing import entries_of, read_lines, relative
from pyramidvit.errors import UserError

_NAME_FILES = ("classes.txt", "obj.names", "labels/classes.txt")


def read_yolo(root: Path, file: Path | None = None) -> RawData | None:
    """Annotations of each split; None when ``root`` holds neither a data.yaml with names nor labels with class names."""
    data = RawData("YOLO", root, {})
    settings = _settings(root, file)
    if settings is None:
        names = _plain_names(root)
        if names is None:
            return None
        sources: dict[str, list[Path]] = {split: pictures_below(folder) for split, folder in _folders(root, data).items()}
    else:
        names = _class_names(settings["names"])
        places = _Places(root, data.findings)
        places.start_at(settings.get("path"))
        sources = {split: places.pictures(settings[key], split) for split, key in _keys(settings)}
        places.tell()
    for split, pictures in sources.items():
        read = [_picture(path, root, names) for path in pictures]
        data.splits[split] = RawSplit(read, names, {name: number for number, name in enumerate(names)})
        unread = [picture.path.relative_to(root).as_posix() for picture in read if picture.size is None]
        if unread:
            text = f"{len(unread)} pictures of {split} can't be read, so their labels, which are shares of their size, are left out."
            data.findings.append(Finding("warning", "unread-pictures", text, tuple(unread)))
    return data if data.splits else None


def _settings(root: Path, file: Path | None) -> dict[str, Any] | None:
    files = [file] if file else [one for one in entries_of(root, [])[1] if one.suffix.lower() in (".yaml", ".yml")]
    found: dict[Path, dict[str, Any]] = {}
    for one in files:
        try:
            content = yaml.safe_load(one.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UserError(f"Can't read {one}: {error}.") from error
        if isinstance(content, dict) and "names" in content and any(key in content for key in ("train", *VAL_NAMES)):
            found[one] = content
    if len(found) > 1:
        raise UserError(f"{root} has several data files: {', '.join(one.name for one in found)}. Give the one to use.")
    if file and not found:
        raise UserError(f"{file} has no names with train or val, which a data.yaml needs.")
    return next(iter(found.values()), None)


def _class_names(given: Any) -> tuple[str, ...]:
    if isinstance(given, dict):
        if sorted(map(str, given)) != sorted(map(str, range(len(given)))):
            raise UserError(f"names of the data.yaml must be numbered 0 to {len(given) - 1}, got {sorted(map(str, given))[:20]}.")
        given = [name for _, name in sorted(given.items(), key=lambda pair: int(pair[0]))]
    if not isinstance(given, list) or not given:
        raise UserError(f"names of the data.yaml must be a list or numbered, got {given!r}.")
    return tuple(str(name).strip() for name in given)


def _plain_names(root: Path) -> tuple[str, ...] | None:
    file = next((root / name for name in _NAME_FILES if (root / name).is_file()), None)
    if file is None or not any(path.name.lower() == "labels" or (path / "labels").is_dir() for path in entries_of(root, [])[0]):
        return None
    return tuple(line.strip() for line in read_lines(file) if line.strip())


def _folders(root: Path, data: RawData) -> dict[str, Path]:
    """images/train and images/val, train/images and val/images, or images/ alone."""
    folders = [path for path in (root / "images", *entries_of(root, [])[0]) if path.is_dir()]
    below_images = entries_of(root / "images", [])[0] if (root / "images").is_dir() else []
    found = {path: split for path in (*below_images, *folders) if (split := split_of(path, root))}
    return choose_splits(found or dict.fromkeys(folders[:1]), root, data.findings)


def _keys(settings: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if settings.get("train"):
        yield "train", "train"
    val = next((name for name in VAL_NAMES if settings.get(name)), None)
    if val:
        yield "val", val


@dataclass
class _Places:
    """Where paths of a yaml lead inside ``root``. ``moved`` are those that were written for another place, and what was taken."""

    root: Path
    findings: list[Finding]
    base: Path = field(init=False)
    moved: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.base = self.root

    def start_at(self, path: Any) -> None:
        """``path:`` of the yaml: a folder in ``root``, or where the data was when the yaml was written."""
        if path in (None, "", "."):
            return
        inner = self._inside(str(path))
        if inner is not None and inner.is_dir():
            self.base = inner
        elif inner is None and (outside := _absolute(self.root, str(path))).exists():
            raise UserError(
                f"The data.yaml says that its data is in {path}, which is outside of {self.root}: give {outside} with the yaml in it, or "
                "remove path: where the data is beside the yaml."
            )
        else:
            self.moved[f"path: {path}"] = "the folder of the yaml"

    def pictures(self, given: Any, split: str) -> list[Path]:
        """Pictures of a split: a folder, a list in a text file, or several of these."""
        pictures: list[Path] = []
        for one in given if isinstance(given, list) else [given]:
            place = self.find(str(one), "the data.yaml")
            if place is None:
                raise UserError(f"{one} of the data.yaml is not in {self.base}; give paths below the folder of the yaml.")
            pictures += self._listed(place, split) if place.suffix == ".txt" else pictures_below(place)
        return pictures

    def _listed(self, file: Path, split: str) -> list[Path]:
        lines = [line.strip() for line in read_lines(file) if line.strip()]
        places = [self.find(line, file.name) for line in lines]
        missing = [line for line, place in zip(lines, places, strict=True) if place is None or not place.is_file()]
        if missing:
            self.findings.append(unknown_names(missing, split, relative(file, self.root), "picture"))
        return [place for place in places if place is not None and place.is_file()]

    def find(self, given: str, where: str) -> Path | None:
        """What is there; None when nothing is. UserError for what lies outside, and for names that no file can have."""
        place = self._inside(given)
        if place is None:
            outside = _absolute(self.base, given)
            rest = [part for part in Path(os.path.relpath(outside, os.path.abspath(self.base))).parts if part != ".."]
            if outside.exists() or given.startswith("/") or not rest:
                raise UserError(
                    f"{given} of {where} leads outside of {self.root}, to {outside}, which is not read: move the pictures into the folder, "
                    "and give a path in there."
                )
            place = below(self.base, "/".join(rest), where)
            if place.exists():
                self.moved[given] = relative(place, self.root)
        return place if place.exists() else None

    def _inside(self, given: str) -> Path | None:
        """The place in ``root`` that a path means; None when it means one outside."""
        place = _absolute(self.base, given)
        root = Path(os.path.abspath(self.root))
        return below(self.root, place.relative_to(root).as_posix(), "the data.yaml") if place.is_relative_to(root) else None

    def tell(self) -> None:
        """A finding for paths of another place."""
        if self.moved:
            some = ", ".join(f"{given} → {taken}" for given, taken in list(self.moved.items())[:3])
            text = f"Paths of the data.yaml that lead outside of its folder, to where nothing is, were looked for inside of it: {some}."
            self.findings.append(Finding("warning", "moved-paths", text, tuple(self.moved), tuple(self.moved.values())))


def _absolute(base: Path, given: str) -> Path:
    """Without ``..``, and without following links."""
    return Path(os.path.abspath(base / given.replace("\\", "/")))


def _labels_of(picture: Path, root: Path) -> Path:
    """The .txt of a picture: in the folder labels beside the last folder images, or else beside the picture."""
    parts = list(picture.relative_to(root).with_suffix(".txt").parts)
    places = [index for index, part in enumerate(parts[:-1]) if part.lower() == "images"]
    if places:
        parts[places[-1]] = "labels"
    return root.joinpath(*parts)


def _picture(path: Path, root: Path, names: Sequence[str]) -> RawPicture:
    file = _labels_of(path, root)
    try:
        info = inspect_image(path)
    except ImageError:  # whoever reads the picture says so; its labels mean nothing without its size
        return RawPicture(path, None, [], path.stem)
    size = (info.height, info.width)
    lines = read_lines(file) if file.is_file() else []
    objects: list[RawObject] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                objects.append(_object(line.split(), size, names))
            except (ValueError, OverflowError) as error:
                raise UserError(f"Line {number} of {file} can't be used: {error}. It says {line.strip()[:80]!r}.") from None
    return RawPicture(path, size, objects, path.stem)


def _object(cells: list[str], size: tuple[int, int], names: Sequence[str]) -> RawObject:
    label, values = float(cells[0]), np.array([float(cell) for cell in cells[1:]])
    if label not in range(len(names)):
        raise ValueError(f"class {cells[0]} is not one of the {len(names)} names, counted from 0")
    name, (height, width) = names[int(label)], size
    if len(values) == 4:
        x, y, w, h = (float(value) for value in values * (width, height, width, height))
        return RawObject((x - w / 2, y - h / 2, x + w / 2, y + h / 2), name)
    if len(values) < 6 or len(values) % 2:
        raise ValueError(f"expected class x y width height, or class and three or more points, got {len(cells)} numbers")
    polygons = as_polygons((values.reshape(-1, 2) * (width, height),))
    return RawObject(box_of(polygons), name, polygons)
