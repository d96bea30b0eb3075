"""Detection and instance segmentation: COCO's average precision, and how far a single threshold gets.

Shapes: N objects, K classes. Boxes and masks are in pixels of the upright original picture; shares and scores are from 0 to 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from pyramidvit.errors import UserError
from pyramidvit.geometry import encode_mask
from pyramidvit.metrics.precision import MEASURES, RECALLS, AveragePrecision, Matches, Seen, Truth, average_precision
from pyramidvit.types import BoxTarget, Cell, Detections, Table

LOGGED = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "AR100": "ar100"}


@dataclass(frozen=True)
class OperatingPoint:
    """What showing only findings of at least ``score`` gives, over all classes at overlap 0.5."""

    score: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class PoorPicture:
    """A picture with mistakes at the operating point: objects ``missed``, findings that are ``wrong``, and both to draw."""

    path: str
    f1: float
    missed: int
    wrong: int
    found: Detections = field(repr=False)
    truth: BoxTarget = field(repr=False)


@dataclass(frozen=True)
class DetectionResult:
    """Everything measured in one evaluation of n pictures.

    ``box`` and ``mask`` are COCO's numbers by boxes and by masks. ``best`` is the threshold with the highest F1, and ``worst`` are the
    pictures with the lowest F1 there; both go by masks where there are masks. ``objects`` counts those to be found, ``crowds`` regions
    of many objects that are neither missed nor wrong. Without any object there is nothing to measure: ``best`` is None, the headline NaN.
    """

    classes: tuple[str, ...]
    n: int
    objects: int
    crowds: int
    box: AveragePrecision
    mask: AveragePrecision | None
    best: OperatingPoint | None
    worst: tuple[PoorPicture, ...] = field(repr=False)

    @property
    def main(self) -> AveragePrecision:
        """By masks where there are masks."""
        return self.mask or self.box

    @property
    def headline(self) -> tuple[str, float]:
        """The number that runs are compared by; higher is better."""
        value = self.main.numbers["AP"]
        return ("mask_ap" if self.mask else "box_ap"), math.nan if value is None else value

    @property
    def reason(self) -> str | None:
        """Why nothing could be measured; None when it could."""
        if self.objects:
            return None
        return f"none of the {self.n} pictures has a single object (crowds don't count), so precision and recall do not exist"

    @property
    def numbers(self) -> dict[str, float]:
        """One number per name, for logs."""
        numbers: dict[str, float] = {}
        for kind, precision in self._kinds():
            numbers |= {f"{kind}_{short}": value for name, short in LOGGED.items() if (value := precision.numbers[name]) is not None}
        return numbers | ({"best_score": self.best.score} if self.best else {})

    def to_json(self) -> dict[str, Any]:
        """Plain data: COCO's twelve numbers, per class, the curves and the worst pictures; null where no object of that size exists."""
        found = {
            kind: {
                **precision.numbers,
                "per_class": [asdict(row) for row in precision.per_class],
                "curves": [None if np.isnan(curve).any() else curve.tolist() for curve in precision.curves],
            }
            for kind, precision in self._kinds()
        }
        worst = [{"path": poor.path, "f1": poor.f1, "missed": poor.missed, "wrong": poor.wrong} for poor in self.worst]
        counts = {"n": self.n, "objects": self.objects, "crowds": self.crowds, "classes": list(self.classes)}
        none = {f"{self.headline[0]}": None, "reason": self.reason} if self.reason else {}
        best = asdict(self.best) if self.best else None
        return {**counts, **self.numbers, **none, **found, "recalls": RECALLS.tolist(), "best": best, "worst": worst}

    def tables(self) -> tuple[Table, ...]:
        """For reports: COCO's twelve numbers, and the classes in numbers, by boxes and by masks."""
        kinds = list(self._kinds())
        rows = tuple((_words(name), *(_percent(precision.numbers[name]) for _, precision in kinds)) for name in MEASURES)
        note = "AP is the mean over overlaps from 0.50 to 0.95. Small is below 32², large above 96² pixels; a dash: no such object exists."
        columns = ("Measure", *(f"{kind.capitalize()} %" for kind, _ in kinds))
        twelve = Table(columns, rows, "Average precision and recall, as COCO has them", note)
        return (twelve, *(_class_table(kind, precision) for kind, precision in kinds))

    def _kinds(self) -> Iterator[tuple[str, AveragePrecision]]:
        yield "box", self.box
        if self.mask is not None:
            yield "mask", self.mask


class DetectionMetric:
    """Collects the detections of an evaluation. ``classes`` are the trained names in label order; ``masks`` measures masks, too."""

    def __init__(self, classes: Sequence[str], masks: bool = False, *, worst: int = 24) -> None:
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"A metric needs at least one class, each with a name of its own, got {list(classes)}.")
        self.classes = tuple(classes)
        self.masks = masks
        self.worst = worst
        self.rows: list[Seen] = []
        """One entry per picture; processes exchange and extend these to evaluate together."""

    def update(self, predictions: Sequence[Detections], targets: Sequence[BoxTarget]) -> None:
        """Add a batch of any size; pictures without objects or without detections count like all others."""
        for found, target in zip(predictions, targets, strict=True):
            self._check(found, target)
            self.rows.append(Seen(found, _truth(target, self.masks)))

    def compute(self) -> DetectionResult:
        """The result over all pictures so far; the order in which they came does not matter."""
        seen = sorted(self.rows, key=lambda one: one.found.path)
        if not seen:
            raise UserError("There is nothing to evaluate: no picture was read. The split needs at least one readable picture.")
        objects = sum(one.truth.objects for one in seen)
        box, matches = average_precision(seen, self.classes, masks=False)
        mask = None
        if self.masks:
            mask, matches = average_precision(seen, self.classes, masks=True)
        best = _operating_point(matches, objects) if objects else None
        crowds = sum(len(one.truth.labels) for one in seen) - objects
        worst = _worst(seen, matches, best.score)[: self.worst] if best else []
        return DetectionResult(self.classes, len(seen), objects, crowds, box, mask, best, tuple(worst))

    def _check(self, found: Detections, target: BoxTarget) -> None:
        path, K = found.path, len(self.classes)
        if found.classes != self.classes:
            raise ValueError(f"{path} was predicted with other classes, {found.classes[:5]}…, than are evaluated.")
        if self.masks and found.masks is None and len(found):
            raise ValueError(f"{path} was predicted without masks, and masks are to be measured.")
        if not bool(found.boxes.isfinite().all() and found.scores.isfinite().all()):
            raise UserError(f"The network's output for {path} is not finite; its weights are damaged or training diverged.")
        if len(target.labels) and not 0 <= int(target.labels.min()) <= int(target.labels.max()) < K:
            raise UserError(f"{path} has label {int(target.labels.max())}, but the model knows {K} classes (0 is the first).")
        if not bool(target.boxes.isfinite().all()):
            raise UserError(f"{path} has a box that is not finite: {target.boxes[~target.boxes.isfinite().all(1)][0].tolist()}.")
        if self.masks and target.masks is None and len(target.labels):
            raise UserError(f"{path} has boxes but no masks, and masks are to be measured. Evaluate on data with masks.")
        if self.masks and target.masks is not None and len(target.masks) and target.masks.shape[1:] != found.size:
            raise ValueError(f"The true masks of {path} are {tuple(target.masks.shape[1:])}, but the picture is {found.size}.")


def _truth(target: BoxTarget, masks: bool) -> Truth:
    """Areas that are missing, 0 or not finite are those of the masks, or of the boxes where there are no masks."""
    boxes, bitmaps = target.boxes.cpu(), None if target.masks is None else target.masks.cpu()
    sides = boxes[:, 2:] - boxes[:, :2]
    own = sides.prod(dim=1) if bitmaps is None else bitmaps.flatten(1).sum(dim=1).float()
    areas = own if target.areas is None else target.areas.cpu()
    areas = torch.where(areas.isfinite() & (areas > 0), areas, own)
    crowd = torch.zeros(len(boxes), dtype=torch.bool) if target.crowd is None else target.crowd.cpu()
    encoded = tuple(map(encode_mask, bitmaps)) if masks and bitmaps is not None else () if masks else None
    return Truth(boxes, target.labels.cpu(), crowd, areas, encoded)


def _operating_point(matches: Matches, objects: int) -> OperatingPoint:
    """The threshold with the best F1; of equally good ones the highest. Without any right answer it is the best score there is."""
    scores, right, counted = (np.concatenate(values) for values in (matches.scores, matches.right, matches.counted))
    scores, right = scores[counted], right[counted]
    if not len(scores):
        return OperatingPoint(1.0, 0.0, 0.0, 0.0)
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], right[order].cumsum()
    f1s = 2 * hits / (np.arange(1, len(hits) + 1) + objects)
    f1s[:-1][scores[:-1] == scores[1:]] = -1  # a threshold keeps all findings of one score
    best = int(f1s.argmax())
    return OperatingPoint(float(scores[best]), float(hits[best] / (best + 1)), float(hits[best] / objects), float(f1s[best]))


def _worst(seen: Sequence[Seen], matches: Matches, score: float) -> list[PoorPicture]:
    """Pictures with mistakes, lowest F1 first, of equal ones those with more mistakes."""
    poor: list[PoorPicture] = []
    for one, scores, right, counted in zip(seen, matches.scores, matches.right, matches.counted, strict=True):
        shown = counted & (scores >= np.float32(score))
        hits = int((right & shown).sum())
        missed, wrong = one.truth.objects - hits, int(shown.sum()) - hits
        if missed or wrong:
            f1 = 2 * hits / (2 * hits + missed + wrong)
            truth = BoxTarget(one.truth.boxes, one.truth.labels, crowd=one.truth.crowd)
            poor.append(PoorPicture(one.found.path, f1, missed, wrong, one.found.above(score), truth))
    return sorted(poor, key=lambda picture: (picture.f1, -picture.missed - picture.wrong, picture.path))


def _class_table(kind: str, precision: AveragePrecision) -> Table:
    columns = ("No.", "Class", "Objects", "AP %", "AP50 %", "AP75 %", "AP small %", "AP medium %", "AP large %", "AR100 %", "Best F1 %")
    rows = list[tuple[Cell, ...]]()
    for number, row in enumerate(precision.per_class):
        shares = (row.ap, row.ap50, row.ap75, row.small, row.medium, row.large, row.ar100, row.f1)
        rows.append((number, row.name, row.objects, *map(_percent, shares), None if row.score is None else round(row.score, 3)))
    note = "Best F1 is at overlap 0.5, with the score that gives it."
    return Table((*columns, "At score"), tuple(rows), f"Classes, by {'boxes' if kind == 'box' else 'masks'}", note)


def _words(name: str) -> str:
    for size in ("small", "medium", "large"):
        name = name.replace(size, f", {size} objects")
    if name.startswith("AR") and name[2:].isdigit():
        return f"AR, at most {name[2:]} per class and picture"
    return name


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
