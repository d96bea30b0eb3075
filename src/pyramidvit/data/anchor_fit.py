"""Do the anchors of a detector reach the objects, and which would? N objects, A anchors per cell, L levels.

An object is reached when some anchor, where it really stands on its grid, overlaps it with an IoU of one half: without such an anchor a
detector learns it late or never. Proposed are, of a few scales and sets of ratios, those that reach most objects; the present ones stay
unless at least one object in a hundred more is reached.
"""

from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np

ENOUGH = 0.5
_MOST = 4000
"""Objects that are looked at, spread evenly over the data."""
_SCALES = tuple(2 ** (step / 4) for step in range(-2, 17))
_SPREADS = (1.3, 1.6, 2.0)


@dataclass(frozen=True)
class Anchors:
    """Anchors of a detector: at every level ``octaves`` sides from ``scale`` strides up to the double, each in all ``ratios``."""

    strides: tuple[int, ...] = (8, 16, 32, 64, 128)
    scale: float = 4.0
    octaves: int = 3
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)

    def best_iou(self, boxes: np.ndarray) -> np.ndarray:
        """IoU (N,) of boxes (N, 4) xyxy in pixels of the input with the anchor that overlaps them most."""
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
        best = np.zeros(len(boxes))
        for stride in self.strides:
            dx, dy = (centre - np.round(centre / stride) * stride for centre in (x, y))  # centres are at multiples of the stride
            for size in (self.scale * stride * 2 ** (step / self.octaves) for step in range(self.octaves)):
                for ratio in self.ratios:
                    w, h = size / sqrt(ratio), size * sqrt(ratio)
                    inner = _overlap(dx, width, w) * _overlap(dy, height, h)
                    best = np.maximum(best, inner / (width * height + w * h - inner))
        return best

    def to_json(self) -> dict[str, Any]:
        return {"strides": [*self.strides], "scale": self.scale, "octaves": self.octaves, "ratios": [*self.ratios]}


def _overlap(offset: np.ndarray, side: np.ndarray, anchor: float) -> np.ndarray:
    return np.maximum(np.minimum(offset + side / 2, anchor / 2) - np.maximum(offset - side / 2, -anchor / 2), 0)


@dataclass(frozen=True)
class AnchorFit:
    """Shares of objects that the ``present`` and the ``proposed`` anchors reach, which may be the same, and their mean best IoU."""

    present: Anchors
    proposed: Anchors
    reached: tuple[float, float]
    mean_iou: tuple[float, float]
    objects: int


def fit_anchors(boxes: np.ndarray, present: Anchors) -> AnchorFit | None:
    """Compare ``present`` anchors with others at the same strides; ``boxes`` (N, 4) xyxy in pixels of the input, None if there are none."""
    if len(boxes) == 0:
        return None
    sample = boxes[:: max(len(boxes) // _MOST, 1)].astype(np.float64)
    score = _score(present, sample)
    candidates = [
        Anchors(present.strides, round(scale, 2), present.octaves, ratios) for ratios in _ratio_sets(sample, present) for scale in _SCALES
    ]
    scored = [(*_score(one, sample), one) for one in candidates]
    best = max(scored, key=lambda entry: entry[:2])
    if best[0] < score[0] + 0.01:
        best = (*score, present)
    return AnchorFit(present, best[2], (score[0], best[0]), (score[1], best[1]), len(boxes))


def _score(anchors: Anchors, boxes: np.ndarray) -> tuple[float, float]:
    iou = anchors.best_iou(boxes)
    return float((iou >= ENOUGH).mean()), float(iou.mean())


def _ratio_sets(boxes: np.ndarray, present: Anchors) -> list[tuple[float, ...]]:
    """The present ratios, and as many around the middle ratio of the objects, nearer together and further apart."""
    middle = exp(float(np.median(np.log((boxes[:, 3] - boxes[:, 1]) / (boxes[:, 2] - boxes[:, 0])))))
    middle = 1.0 if abs(middle - 1) < 0.1 else middle
    steps = [index - (len(present.ratios) - 1) / 2 for index in range(len(present.ratios))]
    return [present.ratios, *(tuple(round(middle * spread**step, 2) for step in steps) for spread in _SPREADS)]
