"""COCO's average precision over a whole data set; the only file that knows the evaluator, hotcoco.

Ids are counted from 1 over all pictures here, so it does not matter which ids a data set has, 0 and gaps included.
Shapes: N objects, K classes, T = 10 overlaps from 0.5 to 0.95, R = 101 recalls from 0 to 1, A = 4 sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hotcoco import COCO, COCOeval
from torch import Tensor

from pyramidvit.geometry import rle_area
from pyramidvit.types import Detections, Rle

SIZES = ("all", "small", "medium", "large")
"""As COCO has them: areas below 32² pixels are small, those above 96² large."""

MEASURES = ("AP", "AP50", "AP75", "APsmall", "APmedium", "APlarge", "AR1", "AR10", "AR100", "ARsmall", "ARmedium", "ARlarge")
RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Truth:
    """The true objects of a picture, as in a `BoxTarget`, with masks as run lengths."""

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    areas: Tensor
    masks: tuple[Rle, ...] | None

    @property
    def objects(self) -> int:
        """How many there are to be found; crowds don't count."""
        return int((~self.crowd).sum())


@dataclass(frozen=True)
class Seen:
    """What is kept of one picture."""

    found: Detections
    truth: Truth


@dataclass(frozen=True)
class ClassPrecision:
    """One class in numbers, from 0 to 1; ``objects`` counts those to be found. None where there is no object of the class or size.

    ``score`` is the threshold with the best ``f1`` at overlap 0.5, read off the precision-recall curve.
    """

    name: str
    objects: int
    ap: float | None
    ap50: float | None
    ap75: float | None
    small: float | None
    medium: float | None
    large: float | None
    ar100: float | None
    f1: float | None
    score: float | None


@dataclass(frozen=True)
class AveragePrecision:
    """COCO's ``numbers``, named as in `MEASURES`, and what they are made of. None: no object of that size exists.

    ``curves`` (K, R) has the precision at overlap 0.5 for each of `RECALLS`; a class without objects has NaN.
    """

    classes: tuple[str, ...]
    numbers: dict[str, float | None]
    per_class: tuple[ClassPrecision, ...]
    curves: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Matches:
    """Which findings are right at overlap 0.5: for each picture the scores (N,), right (N,) and counted (N,).

    What lies in a crowd is not counted.
    """

    scores: list[np.ndarray]
    right: list[np.ndarray]
    counted: list[np.ndarray]


def average_precision(seen: Sequence[Seen], classes: tuple[str, ...], *, masks: bool) -> tuple[AveragePrecision, Matches]:
    """By boxes, or by masks, over all pictures; all is None where there is no object to be found."""
    evaluator = COCOeval(truth := _truth(seen, classes, masks), _found(truth, seen, masks), "segm" if masks else "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    arrays = evaluator.eval
    if arrays is None:
        raise RuntimeError("The evaluator has no result after accumulate().")
    precision, recall, scores = (np.asarray(arrays[name]) for name in ("precision", "recall", "scores"))  # -1: no object
    labels = torch.cat([one.truth.labels[~one.truth.crowd] for one in seen])
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    rows = (_class(name, counts[k], precision[:, :, k, :, 2], recall[:, k, :, 2], scores[0, :, k, 0, 2]) for k, name in enumerate(classes))
    curves = precision[0, :, :, 0, 2].T
    found = AveragePrecision(classes, _twelve(precision, recall), tuple(rows), np.where(curves < 0, np.nan, curves))
    return found, _matches(seen, evaluator.image_diagnostics(0.5)["dt_status"])


def _truth(seen: Sequence[Seen], classes: tuple[str, ...], masks: bool) -> COCO:
    images = [{"id": number, "height": one.found.size[0], "width": one.found.size[1]} for number, one in enumerate(seen, 1)]
    truths = [one.truth for one in seen]
    return COCO.from_arrays(
        images,
        [{"id": number, "name": name} for number, name in enumerate(classes, 1)],
        np.repeat(np.arange(1, len(seen) + 1), [len(truth.labels) for truth in truths]),
        torch.cat([truth.labels for truth in truths]).numpy() + 1,
        _sides(torch.cat([truth.boxes for truth in truths])),
        area=torch.cat([truth.areas for truth in truths]).double().numpy(),
        iscrowd=torch.cat([truth.crowd for truth in truths]).numpy(),
        segmentation=_run_lengths([truth.masks for truth in truths]) if masks else None,
    )


def _found(truth: COCO, seen: Sequence[Seen], masks: bool) -> COCO:
    found = [one.found for one in seen]
    numbers = np.repeat(np.arange(1, len(seen) + 1), [len(one) for one in found])
    scores = torch.cat([one.scores for one in found]).double().numpy()
    labels = torch.cat([one.labels for one in found]).numpy() + 1
    columns = np.column_stack((numbers, _sides(torch.cat([one.boxes for one in found])), scores, labels))
    if not masks:
        return truth.load_res(columns)
    result = truth.load_res(columns, segmentation=_run_lengths([one.masks for one in found]))
    areas = [rle_area(mask) for one in found for mask in one.masks or ()]
    result.update_anns(ids=np.arange(1, len(areas) + 1), area=np.asarray(areas, dtype=float))  # sizes are those of masks here
    return result


def _sides(boxes: Tensor) -> np.ndarray:
    """(x, y, width, height) in double precision."""
    boxes = boxes.double()
    return torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), dim=1).numpy()


def _run_lengths(masks: Sequence[tuple[Rle, ...] | None]) -> list[dict[str, Any] | list[list[float]]]:
    return [{"size": list(mask.size), "counts": mask.counts} for picture in masks for mask in picture or ()]


def _twelve(precision: np.ndarray, recall: np.ndarray) -> dict[str, float | None]:
    """From precision (T, R, K, A, 3) and recall (T, K, A, 3), whose last axis is 1, 10 and 100 findings per picture and class."""
    best = precision[..., 2]
    values = [best[..., 0], best[0, ..., 0], best[5, ..., 0], *(best[..., size] for size in (1, 2, 3))]
    values += [recall[..., 0, most] for most in (0, 1, 2)] + [recall[..., size, 2] for size in (1, 2, 3)]
    return {name: _mean(value) for name, value in zip(MEASURES, values, strict=True)}


def _class(name: str, objects: int, precision: np.ndarray, recall: np.ndarray, scores: np.ndarray) -> ClassPrecision:
    """One class from precision (T, R, A), recall (T, A) and the scores (R,) at overlap 0.5."""
    small, medium, large = (_mean(precision[..., size]) for size in (1, 2, 3))
    everything = precision[..., 0]
    f1s = 2 * everything[0] * RECALLS / np.maximum(everything[0] + RECALLS, 1e-9)
    best = int(f1s.argmax())
    f1, score = (float(f1s[best]), float(scores[best])) if objects and f1s[best] > 0 else (0.0 if objects else None, None)
    ap, ap50, ap75 = _mean(everything), _mean(everything[0]), _mean(everything[5])
    return ClassPrecision(name, objects, ap, ap50, ap75, small, medium, large, _mean(recall[..., 0]), f1, score)


def _mean(values: np.ndarray) -> float | None:
    values = values[values > -1]
    return float(values.mean()) if values.size else None


def _matches(seen: Sequence[Seen], status: dict[int, str]) -> Matches:
    """Findings are numbered from 1 in the order they were given in."""
    flat = [status.get(number) for number in range(1, sum(len(one.found) for one in seen) + 1)]  # None: not counted
    ends = np.cumsum([len(one.found) for one in seen])[:-1]
    right = np.split(np.array([verdict == "tp" for verdict in flat], dtype=bool), ends)
    counted = np.split(np.array([verdict is not None for verdict in flat], dtype=bool), ends)
    return Matches([one.found.scores.numpy() for one in seen], right, counted)
