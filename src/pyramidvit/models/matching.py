"""Which box learns which object, in a fixed amount of memory. N candidate boxes, M objects; boxes are xyxy in input pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pyramidvit.models.box_coder import has_area
from pyramidvit.types import BoxTarget

BACKGROUND, IGNORED = -1, -2
"""In place of an object's index."""
PAIRS_AT_ONCE = 2**21
"""Overlaps that are held at once: 8 MB per intermediate result."""
COVERED = 0.5
"""Share of a candidate inside a crowd region from which it is neither object nor background."""


@dataclass(frozen=True)
class Objects:
    """What can be learned from one picture, on the network's device: ``boxes`` (M, 4) with area and ``labels`` (M,), the regions of
    ``crowd`` (C, 4), and ``masks`` (M, H, W) bool or None, left where they were."""

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    masks: Tensor | None


def learnable(target: BoxTarget, num_classes: int, device: torch.device) -> Objects:
    """The objects of a picture without crowd regions and without boxes that have no area, from which nothing can be learned.

    ValueError for boxes that aren't finite and for labels outside the classes.
    """
    boxes = target.boxes.float()
    if not boxes.isfinite().all():
        raise ValueError(f"Boxes must be finite, got {boxes[~boxes.isfinite().all(1)][0].tolist()}.")
    if len(target.labels) and not 0 <= int(target.labels.min()) <= int(target.labels.max()) < num_classes:
        lowest, highest = int(target.labels.min()), int(target.labels.max())
        raise ValueError(f"Labels must be 0 to {num_classes - 1} for {num_classes} classes, got {lowest} to {highest}.")
    crowd = torch.zeros_like(target.labels, dtype=torch.bool) if target.crowd is None else target.crowd
    keep = has_area(boxes) & ~crowd
    masks = None if target.masks is None else target.masks if bool(keep.all()) else target.masks[keep]
    return Objects(boxes[keep].to(device), target.labels[keep].to(device), boxes[crowd & has_area(boxes)].to(device), masks)


def match(
    candidates: Float[Tensor, "N 4"], objects: Objects, positive: float, negative: float, best_from: float | None = None
) -> Int[Tensor, " N"]:
    """Index of the object that each candidate learns, BACKGROUND, or IGNORED.

    A candidate takes the object that it overlaps most, from an IoU of ``positive`` on; below ``negative`` it is background. With
    ``best_from``, each object also gets the candidates that overlap it most, if by so much and by more than nothing.
    """
    matches = torch.full((len(candidates),), BACKGROUND, device=candidates.device)
    if len(objects.boxes) and len(candidates):
        step = PAIRS_AT_ONCE // len(objects.boxes) + 1
        best, nearest = candidates.new_zeros(len(objects.boxes)), []
        for number, (rows, part) in enumerate(zip(matches.split(step), candidates.split(step), strict=True)):
            iou = overlaps(part, objects.boxes)
            highest, index = iou.max(1)
            rows[highest >= negative] = IGNORED
            rows.copy_(torch.where(highest >= positive, index, rows))
            if best_from is not None:
                best = torch.maximum(best, iou.amax(0))
                row, index = (iou == best.where((best >= best_from) & (best > 0), torch.inf)).nonzero(as_tuple=True)
                nearest.append((row + number * step, index, iou[row, index]))
        if nearest:
            row, index, iou = (torch.cat(parts) for parts in zip(*nearest, strict=True))
            row, index = row[iou == best[index]], index[iou == best[index]]
            last = torch.full_like(matches, BACKGROUND).scatter_reduce(0, row, index, "amax")  # of several objects, as published
            matches = torch.where(last >= 0, last, matches)
    if len(objects.crowd):
        step = PAIRS_AT_ONCE // len(objects.crowd) + 1
        for rows, part in zip(matches.split(step), candidates.split(step), strict=True):
            covered = intersections(part, objects.crowd).amax(1) >= COVERED * areas(part)
            rows[covered & (rows < 0)] = IGNORED
    return matches


def areas(boxes: Float[Tensor, "N 4"]) -> Float[Tensor, " N"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def intersections(a: Float[Tensor, "N 4"], b: Float[Tensor, "M 4"]) -> Float[Tensor, "N M"]:
    """Area that every box of ``a`` shares with every one of ``b``."""
    left, top, right, bottom = a[:, :, None].unbind(1)
    width = torch.minimum(right, b[:, 2]).sub_(torch.maximum(left, b[:, 0])).clamp_(min=0)
    height = torch.minimum(bottom, b[:, 3]).sub_(torch.maximum(top, b[:, 1])).clamp_(min=0)
    return width.mul_(height)


def overlaps(a: Float[Tensor, "N 4"], b: Float[Tensor, "M 4"]) -> Float[Tensor, "N M"]:
    """Intersection over union."""
    shared = intersections(a, b)
    union = (areas(a)[:, None] + areas(b)).sub_(shared)
    return shared.div_(union.clamp_(min=1e-6))


def sample(matches: Int[Tensor, " N"], count: int, positive_share: float) -> tuple[Int[Tensor, " P"], Int[Tensor, " Q"]]:
    """At most ``count`` candidates drawn with torch's global generator: indices of at most that share of positives, and of background."""
    positives = _draw(matches >= 0, int(count * positive_share))
    return positives, _draw(matches == BACKGROUND, count - len(positives))


def _draw(among: Bool[Tensor, " N"], count: int) -> Int[Tensor, " P"]:
    chosen = among.nonzero().flatten()
    if len(chosen) <= count:
        return chosen
    return chosen[torch.randperm(len(chosen))[:count].to(chosen.device)]  # drawn on the CPU: the same on every device


def check_counts(images: int, targets: Sequence[object], valid: Sequence[object]) -> None:
    """Raise unless there are targets and valid sizes for every picture."""
    if not images == len(targets) == len(valid):
        raise ValueError(f"{images} pictures need as many targets and valid sizes, got {len(targets)} and {len(valid)}.")
