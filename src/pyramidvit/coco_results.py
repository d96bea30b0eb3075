"""Detections as the COCO tools read them: one entry per object, with the ids of the data set."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyramidvit.errors import UserError
from pyramidvit.files import write_text
from pyramidvit.geometry import rle_area
from pyramidvit.types import Detections


def coco_results(detections: Detections, image_id: int | str, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Entries of one picture, best first: boxes as (x, y, width, height) in pixels, masks as compressed run lengths.

    ``category_ids`` are in label order. Numbers have nine digits, all that single precision holds.
    """
    if len(category_ids) != len(detections.classes):
        raise ValueError(f"{len(detections.classes)} classes need as many category ids, got {len(category_ids)}.")
    entries: list[dict[str, Any]] = []
    rows = zip(detections.boxes.double().tolist(), detections.labels.tolist(), detections.scores.tolist(), strict=True)
    for index, ((x, y, right, bottom), label, score) in enumerate(rows):
        box = [_short(value) for value in (x, y, right - x, bottom - y)]
        entry: dict[str, Any] = {"image_id": image_id, "category_id": category_ids[label], "bbox": box, "score": _short(score)}
        if detections.masks is not None:
            mask = detections.masks[index]
            entry["segmentation"] = {"size": list(mask.size), "counts": mask.counts.decode("ascii")}
        entries.append(entry)
    return entries


def write_coco_results(
    path: Path, predictions: Sequence[Detections], image_ids: Mapping[str, int | str], category_ids: Sequence[int]
) -> None:
    """A JSON file for the COCO tools, written durably. ``image_ids`` are by the predictions' paths; UserError when one has none."""
    if missing := [one.path for one in predictions if one.path not in image_ids]:
        raise UserError(f"{len(missing)} of {len(predictions)} pictures have no image id, for instance {missing[0]}. Add them to the json.")
    entries = [entry for one in predictions for entry in coco_results(one, image_ids[one.path], category_ids)]
    write_text(path, json.dumps(entries, separators=(",", ":")))


def write_coco_document(path: Path, predictions: Sequence[Detections]) -> None:
    """A COCO json of its own, as labelling tools import it: pictures by path, classes numbered from 1, objects with scores and areas."""
    classes = predictions[0].classes if predictions else ()
    ids = range(1, len(classes) + 1)
    entries = [entry for number, one in enumerate(predictions) for entry in coco_results(one, number + 1, ids)]
    areas = [area for one in predictions for area in _areas(one)]
    content = {
        "images": [
            {"id": number + 1, "file_name": one.path, "height": one.size[0], "width": one.size[1]} for number, one in enumerate(predictions)
        ],
        "categories": [{"id": number, "name": name} for number, name in zip(ids, classes, strict=True)],
        "annotations": [
            {"id": number + 1, **entry, "area": area, "iscrowd": 0} for number, (entry, area) in enumerate(zip(entries, areas, strict=True))
        ],
    }
    write_text(path, json.dumps(content, separators=(",", ":")))


def _areas(detections: Detections) -> list[float]:
    """Pixels of the masks, or of the boxes where there are none."""
    if detections.masks is not None:
        return [rle_area(mask) for mask in detections.masks]
    left, top, right, bottom = detections.boxes.double().unbind(1)
    return [_short(area) for area in ((right - left) * (bottom - top)).tolist()]


def _short(value: float) -> float:
    return float(f"{value:.9g}")
