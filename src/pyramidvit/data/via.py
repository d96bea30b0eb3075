"""VIA region json (VGG Image Annotator, 1 and 2): rectangles, circles, ellipses, polygons; the class is a region attribute.

The attribute is the one that is there, or that is called class, label, name, type or category; regions without any are of class "object".
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pyramidvit.data.annotations import (
    RawData,
    RawObject,
    RawPicture,
    RawSplit,
    as_polygons,
    below,
    box_of,
    choose_splits,
    read_json,
    split_of,
)
from pyramidvit.data.coco import picture_folder
from pyramidvit.data.findings import Finding
from pyramidvit.data.listing import entries_of
from pyramidvit.errors import UserError

DEFAULT_CLASS = "object"
_CLASS_KEYS = ("class", "label", "name", "type", "category")
_CORNERS = 64
"""Of the polygon that stands for a circle or an ellipse."""


def via_entries(content: Any) -> list[dict[str, Any]] | None:
    """The pictures of a VIA project or export; None when plain data is neither."""
    if isinstance(content, dict):
        entries = list(content.get("_via_img_metadata", content).values())
        if entries and all(isinstance(entry, dict) and "filename" in entry and "regions" in entry for entry in entries):
            return entries
    return None


def read_via(root: Path, file: Path | None = None) -> RawData | None:
    """Annotations of each split, from ``file`` alone if given; None when there are none in this format."""
    data = RawData("VIA", root, {})
    folders = [root, *(path for path in entries_of(root, [])[0] if path.name.lower() == "annotations" or split_of(path, root))]
    files = [one for folder in folders for one in entries_of(folder, [])[1] if one.suffix.lower() == ".json"]
    contents = {one: entries for one in ([file] if file else files) if (entries := via_entries(read_json(one))) is not None}
    skipped: Counter[str] = Counter()
    for split, one in choose_splits({one: None if file else split_of(one, root) for one in contents}, root, data.findings).items():
        folder = picture_folder(root, one, split, [str(entry["filename"]) for entry in contents[one][:20]])
        data.splits[split] = RawSplit([_picture(entry, folder, one, skipped) for entry in contents[one]])
    if skipped:
        what = ", ".join(f"{count} {name}" for name, count in skipped.most_common())
        data.findings.append(Finding("warning", "regions-without-area", f"Regions that enclose nothing are left out: {what}."))
    return data if data.splits else None


def _picture(entry: dict[str, Any], folder: Path, file: Path, skipped: Counter[str]) -> RawPicture:
    regions = entry["regions"]
    objects: list[RawObject] = []
    if not isinstance(regions, dict | list):
        raise UserError(f"The regions of {entry['filename']} in {file} must be a list, got {regions!r}.")
    for region in regions.values() if isinstance(regions, dict) else regions:
        try:
            shape = region["shape_attributes"]
            polygon = _outline(shape)
            if polygon is None:
                skipped[str(shape["name"])] += 1
            else:
                polygons = as_polygons((polygon,))
                objects.append(RawObject(box_of(polygons), _class_of(region.get("region_attributes") or {}), polygons))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"A region of {entry['filename']} in {file} can't be used ({type(error).__name__}: {error}).") from error
    return RawPicture(below(folder, str(entry["filename"]), str(file)), None, objects, str(entry["filename"]))


def _class_of(attributes: dict[str, Any]) -> str:
    if not attributes:
        return DEFAULT_CLASS
    key = next((key for key in _CLASS_KEYS if key in attributes), None)
    if key is None:
        if len(attributes) > 1:
            raise ValueError(f"which of the attributes {', '.join(attributes)} is the class? Call it class")
        key = next(iter(attributes))
    value = attributes[key]
    if isinstance(value, dict):  # check boxes: the one that is ticked
        ticked = [name for name, on in value.items() if on]
        if len(ticked) != 1:
            raise ValueError(f"{len(ticked)} boxes of {key} are ticked, expected one")
        value = ticked[0]
    return str(value).strip() or DEFAULT_CLASS


def _outline(shape: dict[str, Any]) -> np.ndarray | None:
    """(P, 2) points in pixels; None for points and lines, which enclose nothing."""
    kind = shape["name"]
    if kind == "rect":
        x, y, width, height = (float(shape[key]) for key in ("x", "y", "width", "height"))
        return np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
    if kind in ("polygon", "polyline"):
        points = np.stack((np.asarray(shape["all_points_x"], float), np.asarray(shape["all_points_y"], float)), axis=1)
        return points if len(points) > 2 else None
    if kind in ("circle", "ellipse"):
        radii = (shape["r"], shape["r"]) if kind == "circle" else (shape["rx"], shape["ry"])
        turn, angle = float(shape.get("theta", 0)), np.arange(_CORNERS) * (2 * math.pi / _CORNERS)
        x, y = float(radii[0]) * np.cos(angle), float(radii[1]) * np.sin(angle)
        return np.stack(
            (shape["cx"] + x * math.cos(turn) - y * math.sin(turn), shape["cy"] + x * math.sin(turn) + y * math.cos(turn)), axis=1
        )
    return None
