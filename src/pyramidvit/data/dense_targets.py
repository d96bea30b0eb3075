"""Boxes, masks and label maps follow what happens to their picture.

Shapes: N objects, H W pixels. Boxes are xyxy in absolute pixels; label maps have 255 where the class is ignored.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pyramidvit.geometry import masks_to_boxes
from pyramidvit.types import BoxTarget, MaskTarget, Target

IGNORE = 255
Size = tuple[int, int]


def resize_target(target: Target | None, old: Size, new: Size) -> Target | None:
    """Boxes by the factor of each axis; masks and label maps by the nearest pixel."""
    if isinstance(target, MaskTarget):
        return MaskTarget(_resize_nearest(target.labels[None], new)[0])
    if isinstance(target, BoxTarget):
        y, x = new[0] / old[0], new[1] / old[1]
        masks = None if target.masks is None else _resize_nearest(target.masks.to(torch.uint8), new).bool()
        areas = None if target.areas is None else target.areas * (x * y)
        return replace(target, boxes=target.boxes * torch.tensor((x, y, x, y)), masks=masks, areas=areas)
    return target


def crop_target(target: Target | None, top: int, left: int, size: Size) -> Target | None:
    """What lies in a window; objects of which nothing is left go, boxes of masks are drawn again around what is left."""
    height, width = size
    rows, columns = slice(top, top + height), slice(left, left + width)
    if isinstance(target, MaskTarget):
        return MaskTarget(target.labels[rows, columns])
    if not isinstance(target, BoxTarget):
        return target
    limit = torch.tensor((width, height, width, height))
    boxes = (target.boxes - torch.tensor((left, top, left, top))).clamp(min=0).minimum(limit)
    masks = None if target.masks is None else target.masks[:, rows, columns]
    before, after = _area(target.boxes), _area(boxes)
    cut = after < 0.999 * before  # what is whole keeps its annotated box
    areas = None if target.areas is None else target.areas * after / before.clamp(min=1e-6)
    keep = after > 0
    if masks is not None:
        keep = keep & masks.flatten(1).any(1)
        if areas is not None:
            areas = torch.where(cut, masks.flatten(1).sum(1).to(areas.dtype), areas)
    target = _select(replace(target, boxes=boxes, masks=masks, areas=areas), keep)
    if target.masks is not None and len(target.masks):
        return replace(target, boxes=torch.where(cut[keep, None], masks_to_boxes(target.masks), target.boxes))
    return target


def flip_target(target: Target | None, axis: int, size: Size) -> Target | None:
    """Mirrored left-right (axis -1) or up-down (axis -2)."""
    if isinstance(target, MaskTarget):
        return MaskTarget(target.labels.flip(axis))
    if isinstance(target, BoxTarget):
        x1, y1, x2, y2 = target.boxes.unbind(1)
        height, width = size
        corners = (width - x2, y1, width - x1, y2) if axis == -1 else (x1, height - y2, x2, height - y1)
        masks = None if target.masks is None else target.masks.flip(axis)
        return replace(target, boxes=torch.stack(corners, dim=1), masks=masks)
    return target


def present(target: Target | None) -> Target | None:
    """Without objects that resizing has left no pixel of."""
    if isinstance(target, BoxTarget) and target.masks is not None:
        return _select(target, target.masks.flatten(1).any(1))
    return target


def _select(target: BoxTarget, keep: Tensor) -> BoxTarget:
    boxes, labels = target.boxes[keep], target.labels[keep]
    masks, crowd, areas = (None if values is None else values[keep] for values in (target.masks, target.crowd, target.areas))
    return BoxTarget(boxes, labels, masks, crowd, areas)


def pad_target(target: Target | None, margins: tuple[int, int, int, int]) -> Target | None:
    """Ignored pixels around a label map, nothing in masks of objects; ``margins`` (left, right, top, bottom) have the first and third 0."""
    if isinstance(target, MaskTarget):
        return MaskTarget(nn.functional.pad(target.labels, margins, value=IGNORE))
    if isinstance(target, BoxTarget) and target.masks is not None:
        return replace(target, masks=nn.functional.pad(target.masks, margins))
    return target


def one_class_rules(target: Target | None, share: float) -> bool:
    """Whether a label map has no label, or one class on more than this share of its labelled pixels."""
    if not isinstance(target, MaskTarget):
        return False
    counts = torch.bincount(target.labels[target.labels != IGNORE].long().flatten())
    return counts.numel() == 0 or float(counts.max() / counts.sum()) > share


def _resize_nearest(planes: Tensor, size: Size) -> Tensor:
    if len(planes) == 0:
        return planes.new_zeros(0, *size)
    return F.resize(planes, list(size), interpolation=v2.InterpolationMode.NEAREST_EXACT)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)
