"""Classification: accuracy with its interval, recall and precision per class, what is taken for what.

Shapes: n samples, B of one update, K classes. Shares and probabilities are from 0 to 1.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from pyramidvit.errors import UserError
from pyramidvit.types import ClassScores, ClassTarget, Table

TOP_K = 5
RESAMPLES = 10_000


@dataclass(frozen=True)
class Scored:
    """What is kept of one sample. ``probability`` is that of the true class; ``in_top`` says whether it is among the k best."""

    path: str
    label: int
    predicted: int
    probability: float
    in_top: bool


@dataclass(frozen=True)
class ClassRow:
    """One class in numbers; ``n`` counts its samples. recall and f1 are None without a sample, precision without a prediction."""

    name: str
    n: int
    recall: float | None
    precision: float | None
    f1: float | None


@dataclass(frozen=True)
class Mistake:
    """A wrong answer; ``probability`` is what the true class was given."""

    path: str
    true: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class ClassificationResult:
    """Everything measured in one evaluation of n samples.

    ``top1`` and ``top5`` are the shares of samples whose true class is the best, or among the ``k`` = min(5, K) best; of equally probable
    classes the first counts as better. ``interval`` is the 95 % bootstrap interval of top1. ``loss`` is the mean of -log of the true
    class's probability. ``mean_recall`` is over the classes that have samples. ``chance`` is the share of the largest class, which always
    answering that class reaches; ``uniform`` is 1/K, which guessing at random reaches. ``confusion`` (K, K) counts samples, true classes
    down, predicted ones across. ``worst`` holds wrong answers, those with the lowest probability of the true class first.
    """

    classes: tuple[str, ...]
    n: int
    top1: float
    interval: tuple[float, float]
    top5: float
    k: int
    loss: float
    mean_recall: float
    chance: float
    uniform: float
    per_class: tuple[ClassRow, ...]
    confusion: np.ndarray = field(repr=False)
    worst: tuple[Mistake, ...] = field(repr=False)

    @property
    def headline(self) -> tuple[str, float]:
        """The number that runs are compared by; higher is better."""
        return "top1", self.top1

    @property
    def numbers(self) -> dict[str, float]:
        """One number per name, for logs. Top-5 is left out with five classes or fewer, where it is 1 for any network."""
        top5 = {"top5": self.top5} if self.k < len(self.classes) else {}
        return {"top1": self.top1, **top5, "mean_recall": self.mean_recall, "loss": self.loss}

    @property
    def confused(self) -> list[tuple[str, str, int]]:
        """Pairs of classes that were mixed up, as (true, predicted, samples), most samples first."""
        wrong = self.confusion * ~np.eye(len(self.classes), dtype=bool)
        pairs = sorted((-int(wrong[t, p]), int(t), int(p)) for t, p in np.argwhere(wrong))
        return [(self.classes[t], self.classes[p], -count) for count, t, p in pairs]

    def to_json(self) -> dict[str, Any]:
        """Plain data: every number, the per-class rows, the confusion matrix and the worst pictures."""
        low, high = self.interval
        return {
            "n": self.n,
            **self.numbers,
            "top1_interval": {"level": 0.95, "low": low, "high": high},
            "chance": self.chance,
            "uniform": self.uniform,
            "classes": list(self.classes),
            "per_class": [asdict(row) for row in self.per_class],
            "confusion": self.confusion.tolist(),
            "worst": [asdict(mistake) for mistake in self.worst],
        }

    def tables(self) -> tuple[Table, Table]:
        """For reports: classes in numbers, and the most frequent mistakes."""
        rows = tuple((number, r.name, r.n, *map(_percent, (r.recall, r.precision, r.f1))) for number, r in enumerate(self.per_class))
        absent = sum(not row.n for row in self.per_class)
        note = (
            f"The mean recall, {self.mean_recall:.1%}, is over the {len(self.classes) - absent} classes that have samples."
            if absent
            else ""
        )
        mistakes = tuple((true, predicted, count, _percent(count / self._count(true))) for true, predicted, count in self.confused[:20])
        return (
            Table(("No.", "Class", "Samples", "Recall %", "Precision %", "F1 %"), rows, "Classes", note),
            Table(("True class", "Predicted as", "Samples", "Of the true class %"), mistakes, "Most frequent mistakes"),
        )

    def _count(self, name: str) -> int:
        return self.per_class[self.classes.index(name)].n


class ClassificationMetric:
    """Collects the predictions of an evaluation. ``classes`` are the trained names in label order; all results use these names."""

    def __init__(self, classes: Sequence[str], *, worst: int = 24, seed: int = 0) -> None:
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"A metric needs at least one class, each with a name of its own, got {list(classes)}.")
        self.classes = tuple(classes)
        self.k = min(TOP_K, len(classes))
        self.worst = worst
        self.seed = seed
        self.rows: list[Scored] = []
        """One entry per sample; processes exchange and extend these to evaluate together."""

    def update(self, predictions: Sequence[ClassScores], targets: Sequence[ClassTarget]) -> None:
        """Add a batch of any size; empty ones are fine."""
        pairs = list(zip(predictions, targets, strict=True))
        if not pairs:
            return
        for prediction, target in pairs:
            self._check(prediction, target)
        scores = torch.stack([prediction.probabilities for prediction in predictions])  # (B, K)
        labels = torch.tensor([target.label for target in targets])
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.k]  # equal ones stay in label order
        in_top = (best == labels[:, None]).any(dim=1).tolist()
        truth = scores.gather(1, labels[:, None])[:, 0].tolist()
        for (prediction, target), predicted, probability, inside in zip(pairs, best[:, 0].tolist(), truth, in_top, strict=True):
            self.rows.append(Scored(prediction.path, target.label, predicted, probability, inside))

    def compute(self) -> ClassificationResult:
        """The result over all samples so far; the order in which they came does not matter."""
        if not self.rows:
            raise UserError("There is nothing to evaluate: no sample was read. The split needs at least one readable picture with a label.")
        n, K = len(self.rows), len(self.classes)
        labels, predicted = np.array([(row.label, row.predicted) for row in self.rows]).T
        confusion = np.bincount(labels * K + predicted, minlength=K * K).reshape(K, K)
        right = int(np.trace(confusion))
        per_class = _class_rows(self.classes, confusion)
        probabilities = np.array([row.probability for row in self.rows])
        wrong = sorted((row for row in self.rows if row.label != row.predicted), key=lambda row: (row.probability, row.path))
        return ClassificationResult(
            classes=self.classes,
            n=n,
            top1=right / n,
            interval=bootstrap_interval(right, n, seed=self.seed),
            top5=sum(row.in_top for row in self.rows) / n,
            k=self.k,
            loss=float(-np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)).mean()),
            mean_recall=float(np.mean([row.recall for row in per_class if row.recall is not None])),
            chance=int(confusion.sum(axis=1).max()) / n,
            uniform=1 / K,
            per_class=per_class,
            confusion=confusion,
            worst=tuple(
                Mistake(row.path, self.classes[row.label], self.classes[row.predicted], row.probability) for row in wrong[: self.worst]
            ),
        )

    def _check(self, prediction: ClassScores, target: ClassTarget) -> None:
        if prediction.classes != self.classes:
            raise ValueError(f"{prediction.path} was predicted with other classes, {prediction.classes[:5]}…, than are evaluated.")
        if target.other is not None:
            raise ValueError(f"{prediction.path} has a mixed target; evaluation needs one class per picture.")
        if target.label >= len(self.classes):
            raise UserError(
                f"{prediction.path} has label {target.label}, but the model knows {len(self.classes)} classes (0 is the first)."
            )
        if not bool(prediction.probabilities.isfinite().all()):
            raise UserError(f"The network's output for {prediction.path} is not finite; its weights are damaged or training diverged.")


def bootstrap_interval(right: int, n: int, *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the share right / n, over 10 000 resamples of the n samples.

    Drawing n times from ``right`` ones and n - right zeros is one binomial draw. When all samples are right, or none is, resamples are all
    alike and say nothing; then it is the exact binomial (Clopper-Pearson) interval.
    """
    edge = 0.025 ** (1 / n)
    if right == n:
        return edge, 1.0
    if right == 0:
        return 0.0, 1 - edge
    shares = np.random.default_rng(seed).binomial(n, right / n, RESAMPLES) / n
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def _class_rows(classes: tuple[str, ...], confusion: np.ndarray) -> tuple[ClassRow, ...]:
    rows = list[ClassRow]()
    for name, hits, n, found in zip(classes, confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0), strict=True):
        hits, n, found = int(hits), int(n), int(found)
        f1 = 2 * hits / (n + found) if n else None
        rows.append(ClassRow(name, n, hits / n if n else None, hits / found if found else None, f1))
    return tuple(rows)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
