"""What RetinaNet and the region proposal network share: maps of scores and box offsets, read anchor by anchor.

Shapes: B batch, A anchors per cell, K scores per anchor, H W grid of a level, N anchors of a level, L anchors of all levels. Boxes are
xyxy in input pixels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pyramidvit.models.anchors import cell_anchors, cells_of, grid_anchors
from pyramidvit.models.box_coder import encode
from pyramidvit.models.matching import IGNORED, Objects, match


class AnchorMaps(NamedTuple):
    """Per level: ``logits`` (B, A * K, H, W), channel = anchor * K + score, ``deltas`` (B, A * 4, H, W), the sides of square anchors
    ``sizes``, and ``strides``; ``ratios`` are height / width of the anchors on all levels."""

    logits: list[Tensor]
    deltas: list[Tensor]
    sizes: Sequence[Sequence[float]]
    ratios: Sequence[float]
    strides: Sequence[int]

    def anchors(self) -> list[Float[Tensor, "N 4"]]:
        """Anchors of every level."""
        return [
            grid_anchors(cell_anchors(sizes, self.ratios).to(x.device), (x.shape[2], x.shape[3]), stride)
            for sizes, x, stride in zip(self.sizes, self.deltas, self.strides, strict=True)
        ]


class Level(NamedTuple):
    """The part of a level that belongs to one picture."""

    logits: Float[Tensor, "N K"]
    deltas: Float[Tensor, "N 4"]
    anchors: Float[Tensor, "N 4"]


def rows(x: Float[Tensor, "B C H W"], width: int) -> Float[Tensor, "B N _"]:
    """One row of ``width`` numbers per anchor, N = H * W * A; free for channels_last memory."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, width)


def levels_of(maps: AnchorMaps, anchors: Sequence[Float[Tensor, "N 4"]], image: int, valid: tuple[int, int]) -> Iterator[Level]:
    """All levels of one picture, without the cells that only the batch's padding has; ``valid`` is its (height, width)."""
    for logits, deltas, everywhere, stride in zip(maps.logits, maps.deltas, anchors, maps.strides, strict=True):
        H, W = deltas.shape[2:]
        height, width = cells_of(valid, stride, (H, W))
        here = everywhere.view(H, W, -1, 4)[:height, :width]  # (height, width, A, 4)
        scores = logits[image : image + 1, :, :height, :width]
        offsets = deltas[image : image + 1, :, :height, :width]
        yield Level(rows(scores, logits.shape[1] // here.shape[2])[0].float(), rows(offsets, 4)[0].float(), here.reshape(-1, 4))


def match_all(
    maps: AnchorMaps,
    anchors: Sequence[Float[Tensor, "N 4"]],
    objects: Sequence[Objects],
    valid: Sequence[tuple[int, int]],
    thresholds: tuple[float, float, float],
) -> Int[Tensor, "B L"]:
    """`matching.match` of the anchors of all levels with each picture's objects; those on cells of the batch's padding are ignored.

    ``thresholds`` are the IoUs ``positive``, ``negative`` and ``best_from``.
    """
    everywhere = torch.cat(list(anchors))
    matches = []
    for picture, size in zip(objects, valid, strict=True):
        found = match(everywhere, picture, *thresholds)
        beyond = []
        for x, level, stride in zip(maps.deltas, anchors, maps.strides, strict=True):
            H, W = x.shape[2:]
            height, width = cells_of(size, stride, (H, W))
            cells = torch.ones(H, W, len(level) // (H * W), dtype=torch.bool, device=x.device)
            cells[:height, :width] = False
            beyond.append(cells.flatten())
        found[torch.cat(beyond) & (found < 0)] = IGNORED
        matches.append(found)
    return torch.stack(matches)


def box_loss(
    maps: AnchorMaps,
    anchors: Sequence[Float[Tensor, "N 4"]],
    objects: Sequence[Objects],
    positives: Int[Tensor, "P 3"],
) -> Float[Tensor, ""]:
    """L1 of the offsets, summed over rows (picture, anchor of all levels, object of that picture)."""
    predicted = torch.cat([rows(x, 4) for x in maps.deltas], 1)  # (B, L, 4)
    image, anchor, index = positives.unbind(1)
    wanted = batch_objects(objects, image, index)[0]
    return F.l1_loss(predicted[image, anchor].float(), encode(torch.cat(list(anchors))[anchor], wanted), reduction="sum")


def batch_objects(objects: Sequence[Objects], image: Int[Tensor, " P"], index: Int[Tensor, " P"]) -> tuple[Tensor, Tensor]:
    """Boxes (P, 4) and labels (P,) of the objects with that ``index`` in that ``image``."""
    before = torch.tensor([0, *[len(picture.boxes) for picture in objects]], device=image.device).cumsum(0)
    place = before[image] + index
    return torch.cat([picture.boxes for picture in objects])[place], torch.cat([picture.labels for picture in objects])[place]
