"""Boxes and masks of objects: pure functions on tensors.

Shapes: N objects, H W pixels. Boxes are xyxy in absolute pixels, x to the right, y down; the right and lower edges are exclusive,
so the pixel in column 3 of row 5 alone has the box (3, 5, 4, 6) and area 1.
"""

import torch
from torch import Tensor


def masks_to_boxes(masks: Tensor) -> Tensor:
    """Tight boxes (N, 4) float32 around the true pixels of ``masks`` (N, H, W) bool; an object without a pixel is an error."""
    if masks.ndim != 3 or masks.dtype != torch.bool:
        raise ValueError(f"Masks of objects are (N, H, W) bool, got {tuple(masks.shape)} {masks.dtype}.")
    if len(masks) == 0:
        return torch.zeros(0, 4)
    columns, rows = masks.any(dim=1).byte(), masks.any(dim=2).byte()  # (N, W), (N, H); argmax knows no bool
    if empty := int((rows.amax(dim=1) == 0).sum()):
        raise ValueError(f"{empty} of {len(masks)} objects have no pixel, so they have no box; leave them out first.")
    left, top = columns.argmax(dim=1), rows.argmax(dim=1)  # argmax gives the first of equal values
    right = masks.shape[2] - columns.flip(1).argmax(dim=1)
    bottom = masks.shape[1] - rows.flip(1).argmax(dim=1)
    return torch.stack((left, top, right, bottom), dim=1).float()
