"""What networks say about a file. Pixels are those of the upright original, x to the right, y down; tensors are on the CPU.

Shapes: H W pixels, K classes, N objects.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
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


@dataclass(frozen=True)
class Timeline:
    """What happens when in one video: ``probabilities`` (W, K) of windows that begin at ``starts`` (W,) and last ``window`` seconds.

    Each window answers for the time that its middle is nearest to; together they cover the ``duration``.
    """

    path: str
    classes: tuple[str, ...]
    starts: tuple[float, ...]
    window: float
    duration: float
    probabilities: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if not self.starts or self.probabilities.shape != (len(self.starts), len(self.classes)):
            wanted = len(self.starts), len(self.classes)
            raise ValueError(f"A timeline needs at least one window and probabilities {wanted}, got {tuple(self.probabilities.shape)}.")

    def borders(self) -> list[float]:
        """Seconds where one window's time ends and the next one's begins, the first and the last included (W + 1)."""
        middles = [start + self.window / 2 for start in self.starts]
        return [0.0, *((one + other) / 2 for one, other in pairwise(middles)), self.duration]

    def actions(self) -> list[tuple[float, float, str, float]]:
        """Begin and end in seconds, class, and its mean probability, of runs of windows with the same best class."""
        borders, best, begin = self.borders(), [int(label) for label in self.probabilities.argmax(1)], 0
        found: list[tuple[float, float, str, float]] = []
        for end in range(1, len(best) + 1):
            if end == len(best) or best[end] != best[begin]:
                share = float(self.probabilities[begin:end, best[begin]].mean())
                found.append((borders[begin], borders[end], self.classes[best[begin]], share))
                begin = end
        return found

    def text(self, k: int = 5) -> str:
        """The first k actions in a line."""
        actions = self.actions()
        more = f" and {len(actions) - k} more" if len(actions) > k else ""
        return ", ".join(f"{begin:.1f}-{end:.1f} s {name} {share:.1%}" for begin, end, name, share in actions[:k]) + more

    def to_json(self, k: int = 5) -> dict[str, Any]:
        """Actions, and the k best classes of every window; times in seconds."""
        windows: list[dict[str, Any]] = []
        for start, row in zip(self.starts, self.probabilities, strict=True):
            top = ClassScores(self.path, self.classes, row).to_json(k)["top"]
            windows.append({"start": round(start, 3), "end": round(min(start + self.window, self.duration), 3), "top": top})
        actions = [
            {"start": round(begin, 3), "end": round(end, 3), "class": name, "probability": round(share, 6)}
            for begin, end, name, share in self.actions()
        ]
        return {"path": self.path, "duration": round(self.duration, 3), "actions": actions, "windows": windows}


Prediction = ClassScores | SegMap | Detections | Timeline
"""What a task predicts for one picture or clip."""
