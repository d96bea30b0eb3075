"""Semantic segmentation: one confusion matrix over all pixels of a data set, and what follows from it.

Shapes: n pictures, H W pixels, K classes. Shares are from 0 to 1.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heappush, heappushpop
from typing import Any

import numpy as np
from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.metrics.pixels import NEAR, Counted, class_pixels, count_pixels, mean_iou, pack, unpack
from pyramidvit.types import Cell, MaskTarget, SegMap, Table

RESAMPLES = 1000


@dataclass(frozen=True)
class ClassOverlap:
    """One class in numbers; ``pixels`` counts those of the truth, ``pictures`` those that hold the class.

    iou and dice are None when the class is neither in the truth nor predicted, recall when it is not in the truth, precision when it is
    not predicted. ``dice_per_picture`` is the mean over all pictures, where a picture with the class neither in truth nor prediction
    counts as 1.
    """

    name: str
    pixels: int
    pictures: int
    iou: float | None
    dice: float | None
    recall: float | None
    precision: float | None
    dice_per_picture: float


@dataclass(frozen=True)
class PoorMap:
    """A picture with a low mean IoU of its own, over the classes in its truth or prediction; maps are (H, W), 255 = no label."""

    path: str
    miou: float
    prediction: Tensor = field(repr=False)
    truth: Tensor = field(repr=False)


@dataclass(frozen=True)
class SegmentationResult:
    """Everything measured in one evaluation of n pictures.

    All shares but ``dice_per_picture`` are over the pixels of the whole data set, whatever the batches. ``miou``, ``dice`` are means over
    the classes that are in the truth or predicted: a class predicted where there is none counts as 0. ``miou_in_truth``,
    ``dice_in_truth`` and ``mean_recall`` are over the classes in the truth alone. ``interval`` is the 95 % bootstrap interval of miou over
    pictures. ``chance`` is the miou of answering the most frequent class everywhere. ``boundary`` is the F1 of outlines between classes
    that agree within `NEAR` of the diagonal (None: there are no outlines). ``confusion`` (K, K) counts pixels, true classes down.
    """

    classes: tuple[str, ...]
    n: int
    miou: float
    interval: tuple[float, float]
    miou_in_truth: float
    dice: float
    dice_in_truth: float
    dice_per_picture: float
    pixel_accuracy: float
    mean_recall: float
    boundary: float | None
    chance: float
    ignored: float
    per_class: tuple[ClassOverlap, ...]
    confusion: np.ndarray = field(repr=False)
    worst: tuple[PoorMap, ...] = field(repr=False)

    @property
    def headline(self) -> tuple[str, float]:
        """The number that runs are compared by; higher is better."""
        return "miou", self.miou

    @property
    def numbers(self) -> dict[str, float]:
        """One number per name, for logs."""
        names = ("miou", "miou_in_truth", "dice", "pixel_accuracy", "mean_recall", "boundary")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain data: every number, the per-class rows, the confusion matrix and the worst pictures."""
        low, high = self.interval
        extra = {name: getattr(self, name) for name in ("dice_in_truth", "dice_per_picture", "boundary", "chance", "ignored")}
        return {
            "n": self.n,
            **self.numbers,
            **extra,
            "miou_interval": {"level": 0.95, "low": low, "high": high},
            "classes": list(self.classes),
            "per_class": [asdict(row) for row in self.per_class],
            "confusion": self.confusion.tolist(),
            "worst": [{"path": poor.path, "miou": poor.miou} for poor in self.worst],
        }

    def tables(self) -> tuple[Table, Table]:
        """For reports: the numbers with what they mean, and the classes."""
        meanings = (
            ("Mean IoU", self.miou, "classes in the truth or predicted"),
            ("Mean IoU, classes in the truth", self.miou_in_truth, "a class predicted where there is none lowers only the others"),
            ("Mean Dice", self.dice, "classes in the truth or predicted"),
            ("Mean Dice, classes in the truth", self.dice_in_truth, ""),
            ("Mean Dice per picture", self.dice_per_picture, "mean over pictures and classes; a class absent from both maps counts as 1"),
            ("Pixel accuracy", self.pixel_accuracy, "share of labelled pixels"),
            ("Mean recall", self.mean_recall, "classes in the truth"),
            ("Boundary F1", self.boundary, f"outlines between classes, within {NEAR:.2%} of the diagonal"),
            ("Pixels without a label", self.ignored, "left out everywhere; share of all pixels"),
        )
        rows = list[tuple[Cell, ...]]()
        for number, row in enumerate(self.per_class):
            shares = (row.iou, row.dice, row.recall, row.precision, row.dice_per_picture)
            rows.append((number, row.name, row.pictures, row.pixels, *map(_percent, shares)))
        columns = ("No.", "Class", "Pictures", "Pixels", "IoU %", "Dice %", "Recall %", "Precision %", "Dice per picture %")
        note = "From one confusion matrix over all labelled pixels, at the pictures' own size."
        return (
            Table(("Measure", "%", "Over"), tuple((name, _percent(value), over) for name, value, over in meanings), "Overlap", note),
            Table(columns, tuple(rows), "Classes"),
        )


class SegmentationMetric:
    """Collects the label maps of an evaluation. ``classes`` are the trained names in label order; ``ignore`` is no label."""

    def __init__(self, classes: Sequence[str], *, ignore: int = 255, worst: int = 24, seed: int = 0) -> None:
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"A metric needs at least one class, each with a name of its own, got {list(classes)}.")
        self.classes = tuple(classes)
        self.ignore = ignore
        self.worst = worst
        self.seed = seed
        self.rows: list[Counted] = []
        """One entry per picture; processes exchange and extend these to evaluate together."""
        self._kept: list[tuple[float, int]] = []  # (-miou, row) of the pictures whose maps are kept, the best of them first

    def update(self, predictions: Sequence[SegMap], targets: Sequence[MaskTarget]) -> None:
        """Add a batch of any size; predictions and targets are at the pictures' own size."""
        for prediction, target in zip(predictions, targets, strict=True):
            predicted, true = prediction.labels.cpu(), target.labels.cpu()
            self._check(prediction, true)
            self.rows.append(count_pixels(prediction.path, predicted, true, len(self.classes), self.ignore))
            self._keep(predicted, true)

    def compute(self) -> SegmentationResult:
        """The result over all pictures so far; the order in which they came does not matter."""
        rows, K = sorted(self.rows, key=lambda row: row.path), len(self.classes)
        if not rows:
            raise UserError("There is nothing to evaluate: no picture was read. The split needs at least one readable picture with a mask.")
        confusion = np.zeros(K * K, np.int64)
        for row in rows:
            confusion[row.cells] += row.pixels
        confusion = confusion.reshape(K, K)
        ignored = sum(row.ignored for row in rows)
        self._check_truth(confusion, ignored)
        parts = np.stack([class_pixels(row, K) for row in rows])  # (n, 3, K)
        per_class = _class_rows(self.classes, parts)
        total = int(confusion.sum())
        in_truth = [row for row in per_class if row.pixels]
        largest = int(confusion.sum(axis=1).max())
        return SegmentationResult(
            classes=self.classes,
            n=len(rows),
            miou=float(mean_iou(parts.sum(axis=0))),
            interval=_interval(parts, self.seed),
            miou_in_truth=_mean([row.iou for row in in_truth]),
            dice=_mean([row.dice for row in per_class]),
            dice_in_truth=_mean([row.dice for row in in_truth]),
            dice_per_picture=_mean([row.dice_per_picture for row in per_class]),
            pixel_accuracy=int(np.trace(confusion)) / total,
            mean_recall=_mean([row.recall for row in in_truth]),
            boundary=_boundary(rows),
            chance=largest / total / len(in_truth),
            ignored=ignored / (total + ignored),
            per_class=per_class,
            confusion=confusion,
            worst=_worst(rows, mean_iou(parts), self.worst),
        )

    def _check(self, prediction: SegMap, true: Tensor) -> None:
        path, K = prediction.path, len(self.classes)
        if prediction.classes != self.classes:
            raise ValueError(f"{path} was predicted with other classes, {prediction.classes[:5]}…, than are evaluated.")
        if prediction.labels.shape != true.shape or not true.numel():
            raise ValueError(f"{path} has a prediction {tuple(prediction.labels.shape)} and a mask {tuple(true.shape)}.")
        if int(prediction.labels.max()) >= K:
            raise ValueError(f"{path} was predicted with label {int(prediction.labels.max())}, but there are {K} classes (0 is the first).")
        wrong = (true != self.ignore) & ((true < 0) | (true >= K))
        if bool(wrong.any()):
            values = ", ".join(map(str, true[wrong].unique().tolist()[:5]))
            raise UserError(
                f"The mask of {path} has {int(wrong.sum())} pixels with label {values}, but the model knows {K} classes "
                f"(0 to {K - 1}; {self.ignore} is ignored). Map the values of the masks to classes."
            )

    def _check_truth(self, confusion: np.ndarray, ignored: int) -> None:
        """All that is labelled is class 0 and the rest is ignored: masks with 0 and 255, whose foreground would be lost."""
        there = confusion.sum(axis=1).nonzero()[0].tolist()
        if not there:
            raise UserError(f"No pixel has a label: all of the masks are {self.ignore}, which is ignored.")
        if there == [0] and ignored and len(self.classes) > 1:
            raise UserError(
                f"The masks hold nothing but 0 and {self.ignore}, and {self.ignore} is ignored, so there is only {self.classes[0]!r} to "
                f"measure. If {self.ignore} means a class, map it to its number."
            )

    def _keep(self, predicted: Tensor, true: Tensor) -> None:
        """Keep the maps of the newest row while it is among the worst, in place of the best of those."""
        number = len(self.rows) - 1
        miou = float(mean_iou(class_pixels(self.rows[number], len(self.classes))))
        if not miou < 1 or self.worst < 1:
            return
        entry = (-miou, number)
        best = heappushpop(self._kept, entry) if len(self._kept) >= self.worst else heappush(self._kept, entry)
        if best != entry:
            self.rows[number] = replace(self.rows[number], maps=(pack(predicted), pack(true)))
        if best is not None and best != entry:
            self.rows[best[1]] = replace(self.rows[best[1]], maps=None)


def _class_rows(classes: tuple[str, ...], parts: np.ndarray) -> tuple[ClassOverlap, ...]:
    """From pixels (n, 3, K): right, true, predicted."""
    rows = list[ClassOverlap]()
    both = parts[:, 1] + parts[:, 2]  # (n, K)
    per_picture = np.where(both > 0, 2 * parts[:, 0] / np.maximum(both, 1), 1.0).mean(axis=0)
    for k, (name, (right, true, found)) in enumerate(zip(classes, parts.sum(axis=0).T.tolist(), strict=True)):
        there = true + found
        rows.append(
            ClassOverlap(
                name=name,
                pixels=true,
                pictures=int((parts[:, 1, k] > 0).sum()),
                iou=right / (there - right) if there else None,
                dice=2 * right / there if there else None,
                recall=right / true if true else None,
                precision=right / found if found else None,
                dice_per_picture=float(per_picture[k]),
            )
        )
    return tuple(rows)


def _interval(parts: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the mean IoU over resamples of the n pictures; one picture says nothing about others: 0 to 1."""
    n, _, K = parts.shape
    if n == 1:
        return 0.0, 1.0
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)  # how often each picture is drawn
    resampled = weights.astype(np.float64) @ parts.reshape(n, -1).astype(np.float64)
    low, high = np.nanquantile(mean_iou(resampled.reshape(RESAMPLES, 3, K)), (0.025, 0.975))
    return float(low), float(high)


def _boundary(rows: Sequence[Counted]) -> float | None:
    found, right, true, reached = np.sum([row.outlines for row in rows], axis=0).tolist()
    if not found or not true:
        return None if found == true else 0.0
    precision, recall = right / found, reached / true
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _worst(rows: Sequence[Counted], mious: np.ndarray, most: int) -> tuple[PoorMap, ...]:
    """Lowest mean IoU first, of the pictures whose maps were kept."""
    kept = [(float(miou), row.path, row.size, row.maps) for row, miou in zip(rows, mious, strict=True) if row.maps]
    return tuple(PoorMap(path, miou, unpack(ours, size), unpack(theirs, size)) for miou, path, size, (ours, theirs) in sorted(kept)[:most])


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
