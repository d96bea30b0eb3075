"""COCO json: polygons, run lengths (compressed or plain), crowds; any category and picture ids; missing fields.

Layouts: one json, or one per split told by its name or folder (instances_train.json, annotations/instances_val2017.json,
train/_annotations.coco.json). Where files named instances* lie among others, only those count. Pictures are found beside the json, in
images/, or in a folder named like the split. Annotation ids are not used, so that 0 and repeated ones do no harm.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from pyramidvit.data.annotations import (
    NOWHERE,
    Box,
    RawData,
    RawObject,
    RawPicture,
    RawSplit,
    Shape,
    as_polygons,
    below,
    box_of,
    choose_splits,
    read_json,
    split_of,
)
from pyramidvit.data.findings import Finding, number_of
from pyramidvit.data.listing import entries_of
from pyramidvit.errors import UserError
from pyramidvit.geometry import rle_box, rle_counts, rle_from_counts
from pyramidvit.types import Rle

_TRIED = 20
"""Pictures that are looked for when choosing the folder they are in."""


def is_coco(content: Any) -> bool:
    """Whether plain data from a json is a COCO instance file."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and isinstance(content.get("annotations"), list)


def read_coco(root: Path, file: Path | None = None) -> RawData | None:
    """Annotations of each split, from ``file`` alone if given; None when there are none in this format.

    UserError when a file is damaged or its pictures are nowhere.
    """
    data = RawData("COCO", root, {})
    contents = {one: content for one in ([file] if file else _candidates(root)) if is_coco(content := read_json(one))}
    found = {one: split_of(one, root) if file is None else None for one in contents}
    for split, one in choose_splits(found, root, data.findings).items():
        content = contents[one]
        folder = picture_folder(root, one, split, _first_names(content["images"]))
        data.splits[split] = read_coco_split(content, folder, str(one))
        if looks_like_corners(data.splits[split]):
            text = f"Most boxes of {one.name} leave their pictures as COCO's (left, top, width, height),"
            text += " but fit as (left, top, right, bottom): subtract left and top from the last two numbers of each bbox."
            data.findings.append(Finding("error", "corner-boxes", text))
    return data if data.splits else None


def _first_names(images: list[Any]) -> list[str]:
    """What is wrong with the others is said when all are read."""
    return [str(entry["file_name"]) for entry in images[:_TRIED] if isinstance(entry, dict) and "file_name" in entry]


def _candidates(root: Path) -> list[Path]:
    folders, _ = entries_of(root, [])
    places = [root, *(path for path in folders if path.name.lower() in ("annotations", "labels") or split_of(path, root))]
    files = [file for place in places for file in entries_of(place, [])[1] if file.suffix.lower() == ".json"]
    return [file for file in files if file.name.startswith("instances")] or files


def picture_folder(root: Path, file: Path, split: str, names: list[str]) -> Path:
    """The folder in which the first pictures are; UserError when there is none."""
    year = file.stem.rpartition("_")[2]
    bases = dict.fromkeys((file.parent, root))
    subfolders = ("", "images", split, f"images/{split}", year, f"images/{year}", "JPEGImages", "data")
    folders = list(dict.fromkeys(base / sub for base in bases for sub in subfolders))
    found = {folder: sum(below(folder, name, str(file)).is_file() for name in names) for folder in folders}
    best = max(folders, key=lambda folder: found[folder])
    if names and not found[best]:
        places = ", ".join(folder.relative_to(root).as_posix() for folder in folders if folder.is_dir())
        raise UserError(
            f"The pictures of {file} are nowhere: looked for {names[0]} in {root} and its folders {places}. Put them into images/."
        )
    return best


def read_coco_split(content: Any, folder: Path, where: str) -> RawSplit:
    """What a json says, whose pictures lie in ``folder`` (they need not be there). ``where`` names it in messages."""
    if not is_coco(content):
        raise UserError(f"{where} is no COCO instance file: expected an object with the lists images, annotations and categories.")
    try:
        names = {_key(entry["id"]): str(entry["name"]).strip() for entry in content.get("categories", [])}
        pictures = {_key(entry["id"]): _picture(entry, folder, where) for entry in content["images"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where} is damaged: an image or category is not as expected ({type(error).__name__}: {error}).") from error
    if len(pictures) < len(content["images"]):
        _refuse_shared_ids(content["images"], where)
    undeclared: Counter[str] = Counter()
    strays = 0
    for number, entry in enumerate(content["annotations"]):
        try:
            picture, category = pictures.get(_key(entry["image_id"])), _key(entry["category_id"])
        except (KeyError, TypeError) as error:
            raise UserError(f"Annotation {number} of {where} is damaged: no {error} in it.") from error
        if picture is None:
            strays += 1
        elif category not in names:
            undeclared[category] += 1
        else:
            picture.objects.append(_object(entry, names[category], picture, f"annotation {number} of {where}"))
    if undeclared:
        what = ", ".join(f"{key} ({count} objects)" for key, count in undeclared.most_common(10))
        raise UserError(f"{where} uses category ids that it does not declare: {what}. Declared are {', '.join(sorted(names))[:300]}.")
    if strays:
        raise UserError(f"{where} has {strays} annotations of pictures that it does not list; remove them or list the pictures.")
    _drop_constant_areas(list(pictures.values()))
    ordered = sorted(content.get("categories", []), key=_by_id)
    ids = {names[_key(entry["id"])]: entry["id"] for entry in reversed(ordered)}
    return RawSplit(list(pictures.values()), tuple(dict.fromkeys(names[_key(entry["id"])] for entry in ordered)), ids)


def _refuse_shared_ids(images: list[Mapping[str, Any]], where: str) -> None:
    names: dict[str, list[str]] = defaultdict(list)
    for entry in images:
        names[_key(entry["id"])].append(str(entry["file_name"]))
    shared = {key: files for key, files in names.items() if len(files) > 1}
    some = "; ".join(f"{key} is {' and '.join(files[:3])}" for key, files in list(shared.items())[:3])
    several = number_of(len(shared), "id", "ids")
    raise UserError(f"{where} gives {several} to several pictures: {some}. Name each picture once, under an id of its own.")


def _key(value: Any) -> str:
    """Ids may be numbers in one place and text in another."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"an id must be a whole number or text, got {value!r}")
    return str(value)


def _by_id(entry: Mapping[str, Any]) -> tuple[bool, int]:
    """By number; those with other ids keep their order at the end."""
    key = _key(entry["id"])
    return (False, int(key)) if key.removeprefix("-").isdecimal() else (True, 0)


def _picture(entry: Mapping[str, Any], folder: Path, where: str) -> RawPicture:
    height, width = entry.get("height"), entry.get("width")
    size = (int(height), int(width)) if height and width else None
    return RawPicture(below(folder, str(entry["file_name"]), where), size, [], entry["id"])


def _object(entry: Mapping[str, Any], name: str, picture: RawPicture, where: str) -> RawObject:
    flaw = ""
    try:
        shape = _shape(entry.get("segmentation"), picture.size)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        shape, flaw = None, f"its segmentation can't be used: {error}"
    try:
        box = _box(entry.get("bbox"), shape)
        area = None if entry.get("area") is None else float(entry["area"])
        crowd = float(entry.get("iscrowd") or 0)  # some files have numbers as text
        if crowd not in (0, 1):
            raise ValueError(f"iscrowd is 0 or 1, got {entry['iscrowd']!r}")
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where[0].upper()}{where[1:]} is damaged: bbox needs four numbers and area one ({error}).") from error
    return RawObject(box, name, shape, crowd == 1, area, flaw)


def _box(given: Any, shape: Shape | None) -> Box:
    """The far edge before anything is cut off, so that a box beyond the left border does not grow."""
    if given:
        x, y, width, height = (float(value) for value in given)
        return x, y, x + width, y + height
    if shape is None:
        return NOWHERE
    return (rle_box(shape) or NOWHERE) if isinstance(shape, Rle) else box_of(shape)


def _shape(given: Any, size: tuple[int, int] | None) -> Shape | None:
    """Polygons or run lengths; None where nothing is given. ValueError, TypeError or KeyError when it can't be understood."""
    if not given:
        return None
    if isinstance(given, list):
        polygons = as_polygons(given if isinstance(given[0], list) else [given])
        if not polygons:
            raise ValueError("its polygons have fewer than three points")
        return polygons
    height, width = (int(side) for side in given["size"])
    if size is not None and (height, width) != size:
        raise ValueError(f"its mask is {width} x {height} pixels, the picture {size[1]} x {size[0]}")
    counts = given["counts"]
    if isinstance(counts, list):
        return rle_from_counts((height, width), counts)
    if not isinstance(counts, str):
        raise ValueError(f"its counts must be a list or text, got {counts!r}")
    rle = Rle((height, width), counts.encode("ascii"))
    rle_counts(rle)
    return rle


def _drop_constant_areas(pictures: list[RawPicture]) -> None:
    """An area that is the same for objects of all sizes was filled in by a converter."""
    objects = [one for picture in pictures for one in picture.objects]
    if (
        len(objects) > 1
        and len({one.area for one in objects}) == 1
        and len({(one.box[2] - one.box[0], one.box[3] - one.box[1]) for one in objects}) > 1
    ):
        for one in objects:
            one.area = None


def looks_like_corners(split: RawSplit) -> bool:
    """Whether most boxes leave their pictures as (left, top, width, height) and fit as (left, top, right, bottom)."""
    sized = [(one.box, picture.size) for picture in split.pictures if picture.size for one in picture.objects if isfinite(sum(one.box))]
    if not sized:
        return False
    left, top, right, bottom = np.array([box for box, _ in sized]).T
    height, width = np.array([size for _, size in sized]).T
    x, y = right - left, bottom - top  # as they stand in the file
    leaves = (right > width + 1) | (bottom > height + 1)
    fits = (x > left) & (y > top) & (x <= width + 1) & (y <= height + 1)
    return float((leaves & fits).mean()) > 0.5 or (float(fits.mean()) > 0.99 and float(leaves.mean()) > 0.2)
