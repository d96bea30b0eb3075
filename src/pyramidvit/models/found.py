"""What a detector finds in one picture. N detections; boxes are xyxy in input pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torchvision.ops import batched_nms


class Found(NamedTuple):
    """Objects, best first: ``boxes`` (N, 4) in input pixels, ``scores`` (N,), ``labels`` (N,) int64, and ``masks`` (N, S, S),
    probabilities on a grid over each box, or None where the network has none."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None = None


@dataclass(frozen=True)
class Deferred:
    """The answer of a network that selects its objects itself: ``find`` needs the (height, width) of each picture in the padded batch."""

    find: Callable[[Sequence[tuple[int, int]]], list[Found]]


def suppress(boxes: Float[Tensor, "N 4"], scores: Float[Tensor, " N"], labels: Int[Tensor, " N"], nms_iou: float, limit: int) -> Found:
    """The ``limit`` best boxes, without those that a better one of their class overlaps by more than ``nms_iou``."""
    keep = batched_nms(boxes, scores, labels, nms_iou)[:limit]
    return Found(boxes[keep], scores[keep], labels[keep])
