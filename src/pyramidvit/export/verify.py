"""An exported file beside the network it was made from: the largest difference over several sizes and batches.

Shapes: B batch, C channels, T frames, H W pixels, N M objects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.export.describe import Description
from pyramidvit.export.exported import Exported
from pyramidvit.models import mask_rcnn, retinanet
from pyramidvit.models.found import Deferred, Found
from pyramidvit.models.semantic_fpn import SemanticFPNOutputs

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
"""Largest difference that is let through, by precision: of logits and maps as a share of the largest value, of objects in scores, shares of
the picture's longer side and mask probabilities. Of int8 only a metric can say what it costs."""
LOST = 0.02
"""Share of objects that may have no counterpart, since of two that overlap and score alike either may stay."""
NEAR = 1e-3
"""Scores as near as this to the threshold, or to the last one that was kept, are not counted."""
LONGEST = 320
"""Longest side of the pictures to verify with."""


@dataclass(frozen=True)
class Difference:
    """The largest difference for one input of ``shape``; of detectors also how many objects were compared and how many have no like."""

    shape: tuple[int, ...]
    value: float
    objects: int | None = None
    lost: int = 0


def verify(model: nn.Module, exported: Exported, declared: Sequence[int]) -> list[Difference]:
    """Run both on the same inputs; ``declared`` (C, [T,] H, W) is the input that the network was trained on.

    UserError when they differ by more than TOLERANCE.
    """
    found = []
    limit = TOLERANCE[exported.description.precision]
    with torch.inference_mode():
        for images, valid in inputs(exported.description, declared):
            one = compare(reference(model, images, valid), settled(exported(images), valid), tuple(images.shape), limit)
            found.append(one)
            if not one.value <= limit or one.lost > LOST * max(one.objects or 0, 1 / LOST):
                raise UserError(
                    f"The exported graph differs from the network by {one.value:.1e} for an input {tuple(images.shape)}"
                    + (f", and {one.lost} of {one.objects} objects have no counterpart" if one.lost else "")
                    + f"; at most {limit:.0e} is let through, so no file was kept. Export to another format, and please report this."
                )
    return found


def inputs(description: Description, declared: Sequence[int]) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
    """Batches of several sizes, and the (height, width) of the picture in each entry. The same in every process."""
    C, *frames, H, W = declared
    shrink = min(LONGEST / max(H, W), 1)
    H, W = (max(round(side * shrink), 32) for side in (H, W))
    sizes = [(H, W), (W + 37, H + 6), (96, 32)] if description.size is None else [description.size] * 2
    generator = torch.Generator().manual_seed(0)
    for B, (height, width) in zip((1, 3, 2), sizes, strict=False):
        lengths = [max(frames[0] // B, 2) if description.frames is None else description.frames] if frames else []
        coarse = torch.randn(B, C, *[4] * len(lengths), 9, 7, generator=generator)
        shape = (*lengths, height, width)
        fine = torch.randn(B, C, *shape, generator=generator)
        smooth = F.interpolate(coarse, shape, mode="trilinear" if lengths else "bilinear")
        images = smooth * 1.5 + fine * 0.3
        images[1:2] = 0  # a picture of nothing beside others
        yield images, [(height, width), *[(height - 20, width - 9)] * (B - 1)]


def reference(model: nn.Module, images: Tensor, valid: Sequence[tuple[int, int]]) -> Any:
    """What the network answers, for detectors what is found."""
    outputs = model(images)
    if isinstance(outputs, retinanet.RetinaNetOutputs):
        return retinanet.detect(outputs, valid)
    return mask_rcnn.detect(outputs, valid) if isinstance(outputs, mask_rcnn.MaskRCNNOutputs) else outputs


def settled(outputs: Any, valid: Sequence[tuple[int, int]]) -> Any:
    """An answer without delay."""
    return outputs.find(valid) if isinstance(outputs, Deferred) else outputs


def compare(expected: Any, got: Any, shape: tuple[int, ...], limit: float = TOLERANCE["fp32"]) -> Difference:
    """The largest difference of two answers to an input of that shape; objects that differ by more than ``limit`` are not the same one."""
    if isinstance(expected, Tensor | SemanticFPNOutputs):
        expected, got = ([one.logits if isinstance(one, SemanticFPNOutputs) else one] for one in (expected, got))
    if not isinstance(expected[0], Found):
        return Difference(shape, max(_relative(a, b) for a, b in zip(expected, got, strict=True)))
    pairs = [_objects(a, b, max(shape[-2:]), limit) for a, b in zip(expected, got, strict=True)]
    values, counts, lost = zip(*pairs, strict=True)
    return Difference(shape, max(values), sum(counts), sum(lost))


def _relative(expected: Tensor, got: Tensor) -> float:
    """Largest difference as a share of the largest value; infinite for other shapes and for what is no number."""
    if expected.shape != got.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((expected - got).abs().max() / expected.abs().max().clamp(min=1))


def _objects(expected: Found, got: Found, side: int, limit: float) -> tuple[float, int, int]:
    """Largest difference of objects that have a counterpart within ``limit``, number of objects, number of those without one."""
    distance = (expected.boxes[:, None] - got.boxes).abs().amax(2) / side  # (N, M)
    distance = torch.maximum(distance, (expected.scores[:, None] - got.scores).abs())
    distance = distance.masked_fill(expected.labels[:, None] != got.labels, torch.inf)
    closest, index = distance.min(1) if distance.numel() else (torch.full((len(expected.boxes),), torch.inf), None)
    matched = closest <= limit
    value = float(closest[matched].max()) if bool(matched.any()) else 0.0
    if index is not None and expected.masks is not None and got.masks is not None and bool(matched.any()):
        value = max(value, float((expected.masks[matched] - got.masks[index[matched]]).abs().max()))
    back = distance.amin(0) if distance.numel() else torch.full((len(got.boxes),), torch.inf)
    lost = _clear(expected.scores)[~matched].sum() + _clear(got.scores)[back > limit].sum()
    return value, len(expected.boxes) + len(got.boxes), int(lost)


def _clear(scores: Tensor) -> Tensor:
    """Which scores are not at the edge of what is kept."""
    return scores > scores.min() + NEAR if len(scores) else scores.bool()
