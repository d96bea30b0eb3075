"""What networks say about a file. Pixels are those of the upright original, x to the right, y down; tensors are on the CPU.

Shapes: H W pixels, K classes, N objects.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pyramidvit.types.samples import Rle


@dataclass(frozen=True)
class ClassScores:
    """Prediction for one picture: ``probabilities`` (K,) float32 on the CPU, sum 1, in the order of ``classes``."""

    path: str
    classes: tuple[str, ...]
    probabilities: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.probabilities.shape != (len(self.classes),):
            raise ValueError(f"{len(self.classes)} classes need as many probabilities, got {tuple(self.probabilities.shape)}.")

    @property
    def label(self) -> int:
        return int(self.probabilities.argmax())

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k best classes (fewer if there are fewer), best first, as (name, probability)."""
        values, order = self.probabilities.topk(min(k, len(self.classes)))
        return [(self.classes[int(i)], float(p)) for i, p in zip(order, values, strict=True)]

    def text(self, k: int = 5) -> str:
        """The k best classes in a line."""
        return ", ".join(f"{name} {probability:.1%}" for name, probability in self.top(k))

    def to_json(self, k: int = 5) -> dict[str, Any]:
        return {"path": self.path, "top": [{"class": name, "probability": round(p, 6)} for name, p in self.top(k)]}


@dataclass(frozen=True)
class SegMap:
    """Class of every pixel of one picture: ``labels`` (H, W) uint8 (int64 for more than 255 classes), at the size of the original."""

    path: str
    classes: tuple[str, ...]
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.labels.ndim != 2:
            raise ValueError(f"A label map is (H, W), got {tuple(self.labels.shape)}.")

    def shares(self) -> dict[str, float]:
        """Share of the picture that each class covers; classes that are absent are left out."""
        shares = torch.bincount(self.labels.flatten().long(), minlength=len(self.classes)) / max(self.labels.numel(), 1)
        return {name: float(share) for name, share in zip(self.classes, shares, strict=False) if share > 0}

    def text(self, k: int = 5) -> str:
        """The k classes that cover most, in a line."""
        shares = sorted(self.shares().items(), key=lambda entry: -entry[1])
        return ", ".join(f"{name} {share:.1%}" for name, share in shares[:k])

    def to_json(self, k: int = 5) -> dict[str, Any]:  # noqa: ARG002  all classes are few
        """Size and shares of the classes; the map itself is a picture file beside it."""
        return {"path": self.path, "size": list(self.labels.shape), "shares": {name: round(s, 6) for name, s in self.shares().items()}}


@dataclass(frozen=True)
class Detections:
    """Objects found in one picture, best first: ``boxes`` (N, 4) float32 xyxy pixels, ``labels`` (N,) int64, ``scores`` (N,) float32.

    ``size`` is (height, width) of the upright original, which boxes and ``masks`` refer to; all tensors are on the CPU.
    """

    path: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    boxes: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    masks: tuple[Rle, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        N = len(self.scores)
        if self.boxes.shape != (N, 4) or self.labels.shape != (N,) or (self.masks is not None and len(self.masks) != N):
            raise ValueError(f"{N} scores need boxes ({N}, 4), labels ({N},) and as many masks, got boxes {tuple(self.boxes.shape)}.")

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score: float) -> "Detections":
        """Those with at least this score."""
        keep = self.scores >= score
        masks = None if self.masks is None else tuple(mask for mask, kept in zip(self.masks, keep, strict=True) if kept)
        return replace(self, boxes=self.boxes[keep], labels=self.labels[keep], scores=self.scores[keep], masks=masks)

    def text(self, k: int = 5) -> str:
        """How many objects of each class, the k most frequent, in a line."""
        counts = Counter(self.classes[int(label)] for label in self.labels)
        return ", ".join(f"{count} {name}" for name, count in counts.most_common(k)) or "nothing found"

    def to_json(self, k: int = 5) -> dict[str, Any]:  # noqa: ARG002  all objects count
        """Boxes as COCO writes them, (x, y, width, height), with class names instead of ids."""
        objects: list[dict[str, Any]] = []
        for index, (box, label, score) in enumerate(zip(self.boxes, self.labels, self.scores, strict=True)):
            x, y, right, bottom = map(float, box)
            sides = [round(value, 3) for value in (x, y, right - x, bottom - y)]
            entry: dict[str, Any] = {"class": self.classes[int(label)], "score": round(float(score), 6), "bbox": sides}
            if self.masks is not None:
                entry["segmentation"] = {"size": list(self.masks[index].size), "counts": self.masks[index].counts.decode("ascii")}
            objects.append(entry)
        return {"path": self.path, "size": list(self.size), "objects": objects}


Prediction = ClassScores | SegMap | Detections
"""What a task predicts for one picture."""
