"""Counting the pixels of one label map against its truth. Shapes: H W pixels, K classes."""

import zlib
from dataclasses import dataclass
from math import hypot

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NEAR = 0.0075
"""How far apart outlines may be and still agree, as a share of the picture's diagonal."""


@dataclass(frozen=True)
class Counted:
    """What is kept of one picture: the cells (M,) of its confusion matrix that are not 0, with their pixels; pixels without a label.

    ``outlines`` counts pixels of outlines: predicted ones, those of them near a true one, true ones, those of them near a predicted one.
    ``maps`` are prediction and truth, packed, of pictures that are among the worst so far.
    """

    path: str
    size: tuple[int, int]
    cells: np.ndarray
    pixels: np.ndarray
    ignored: int
    outlines: tuple[int, int, int, int]
    maps: tuple[bytes, bytes] | None = None


def count_pixels(path: str, predicted: Tensor, true: Tensor, num_classes: int, ignore: int) -> Counted:
    """Compare label maps (H, W), whose labels are below ``num_classes`` or, in the truth alone, ``ignore``."""
    labelled = true != ignore
    beyond = num_classes**2  # stands for pixels without a label
    cells = torch.where(labelled, true.int() * num_classes + predicted.int(), beyond).flatten()
    counts = torch.bincount(cells, minlength=beyond + 1)
    ignored, there = int(counts[beyond]), counts[:beyond].nonzero()[:, 0]
    height, width = true.shape
    outlines = _compare_outlines(predicted, true, labelled)
    return Counted(path, (height, width), there.numpy(), counts[there].numpy(), ignored, outlines)


def class_pixels(counted: Counted, num_classes: int) -> np.ndarray:
    """Pixels (3, K) of each class: right, true, predicted."""
    true, predicted = np.divmod(counted.cells, num_classes)
    right = true == predicted
    groups = ((true[right], counted.pixels[right]), (true, counted.pixels), (predicted, counted.pixels))
    return np.stack([np.bincount(labels, pixels, num_classes) for labels, pixels in groups]).astype(np.int64)


def mean_iou(pixels: np.ndarray) -> np.ndarray:
    """Mean over the classes in the truth or predicted, from pixels (..., 3, K) as `class_pixels` gives; NaN without any."""
    right, union = pixels[..., 0, :], pixels[..., 1, :] + pixels[..., 2, :] - pixels[..., 0, :]
    with np.errstate(invalid="ignore"):
        return (right / np.maximum(union, 1)).sum(axis=-1) / (union > 0).sum(axis=-1)


def pack(labels: Tensor) -> bytes:
    """A label map as a few bytes, for `unpack`."""
    return zlib.compress(labels.to(torch.int32).numpy().tobytes(), 1)


def unpack(data: bytes, size: tuple[int, int]) -> Tensor:
    """A label map (H, W) int64."""
    return torch.from_numpy(np.frombuffer(zlib.decompress(data), np.int32).reshape(size).astype(np.int64))


def _compare_outlines(predicted: Tensor, true: Tensor, labelled: Tensor) -> tuple[int, int, int, int]:
    radius = max(1, round(NEAR * hypot(*true.shape)))
    everywhere = torch.ones_like(labelled)
    ours, theirs = _outlines(predicted, everywhere) & labelled, _outlines(true, labelled)
    right, reached = ours & _near(theirs, radius), theirs & _near(ours, radius)
    return int(ours.sum()), int(right.sum()), int(theirs.sum()), int(reached.sum())


def _outlines(labels: Tensor, labelled: Tensor) -> Tensor:
    """Pixels (H, W) beside one of another class; next to a pixel without a label there is no outline."""
    outline = torch.zeros_like(labelled)
    for dim in (0, 1):
        length = labels.shape[dim] - 1
        first, second = (slice(None),) * dim + (slice(length),), (slice(None),) * dim + (slice(1, None),)
        differ = (labels[first] != labels[second]) & labelled[first] & labelled[second]
        outline[first] |= differ
        outline[second] |= differ
    return outline


def _near(outline: Tensor, radius: int) -> Tensor:
    """Pixels within ``radius`` columns and rows of an outline; spans double, so that a large radius costs little more than a small one."""
    span = 2 * radius + 1
    for dim in (0, 1):
        outline, length = F.pad(outline, (0, 0, radius, radius) if dim == 0 else (radius, radius)), 1
        while length < span:
            step = min(length, span - length)
            size = outline.shape[dim] - step
            outline, length = outline.narrow(dim, 0, size) | outline.narrow(dim, step, size), length + step
    return outline
