"""Non-maximum suppression of many pictures and classes as one operator, which a graph for any size can hold.

Shapes: B rows (pictures, or pictures and classes), G groups within which boxes compete, N boxes of a row; boxes are xyxy pixels.
"""

import torch
from torch import Tensor
from torchvision.ops import nms


@torch.library.custom_op("pyramidvit::suppress", mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, iou: float, limit: int) -> Tensor:
    """Scores (B, G, N) with a 0 for every box of (B, N, 4) that a better one of its group overlaps by more than ``iou``.

    Boxes with a score of 0 don't take part. Of each group at most the ``limit`` best stay.
    """
    kept = torch.zeros_like(scores)
    for some, row, out in zip(boxes, scores, kept, strict=True):
        for values, result in zip(row, out, strict=True):
            there = (values > 0).nonzero().flatten()
            best = there[nms(some[there], values[there], iou)[:limit]]
            result[best] = values[best]
    return kept


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, iou: float, limit: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(scores)
