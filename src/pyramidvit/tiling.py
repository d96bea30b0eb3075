"""Large pictures in overlapping tiles: where the tiles lie, and how what they say becomes one answer.

The network sees one tile at a time (the callers feed it), so memory follows the tile, not the picture.
Shapes: H W pixels of the picture, h w of a tile, K classes, N objects. Windows and boxes are in pixels, x to the right, y down.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_area, box_iou

from pyramidvit.errors import UserError
from pyramidvit.geometry import rle_counts, rle_from_counts
from pyramidvit.types import Detections, Rle

SAME = 0.5
"""From this overlap on, two findings of different tiles are one object."""

INSIDE = 0.7
"""A cut piece of which this much lies in a finding of another tile is a part of that."""

EDGE = 0.02
"""A box that comes this close to the border of its tile, as a share of the tile's side, is cut by it; at least 4 pixels."""


@dataclass(frozen=True)
class Window:
    """A part of a picture: rows top to bottom and columns left to right, the ends exclusive."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.bottom - self.top, self.right - self.left

    @property
    def slices(self) -> tuple[slice, slice]:
        """To index the last two axes of a picture with."""
        return slice(self.top, self.bottom), slice(self.left, self.right)


def tiles(size: tuple[int, int], tile: tuple[int, int], overlap: int) -> list[Window]:
    """Windows that cover a picture of ``size`` (height, width), row by row, neighbours sharing at least ``overlap`` pixels.

    All are as large as ``tile``, or as the picture where that is smaller, and as few as possible, evenly spread. UserError when the
    overlap is negative or more than half of the tile.
    """
    if min(size) < 1 or min(tile) < 1:
        raise UserError(f"A picture of {size[0]}x{size[1]} can't be cut into tiles of {tile[0]}x{tile[1]}: both need at least one pixel.")
    if not 0 <= 2 * overlap <= min(tile):
        raise UserError(f"Tiles of {tile[0]}x{tile[1]} can overlap by 0 to {min(tile) // 2} pixels, got {overlap}.")
    rows, columns = (_starts(*lengths, overlap) for lengths in zip(size, tile, strict=True))
    height, width = min(size[0], tile[0]), min(size[1], tile[1])
    return [Window(top, left, top + height, left + width) for top in rows for left in columns]


def _starts(length: int, tile: int, overlap: int) -> list[int]:
    if length <= tile:
        return [0]
    count = -(-(length - overlap) // (tile - overlap))
    return [round(number * (length - tile) / (count - 1)) for number in range(count)]


def stitch_labels(size: tuple[int, int], windows: Sequence[Window], logits: Iterable[Tensor]) -> Tensor:
    """Label map (H, W), uint8 (int64 beyond 255 classes), from logits (K, h, w) of the tiles, in the order of `tiles`.

    Across a seam the logits of both tiles are blended, within the middle half of what they share: the outer quarters, which see least of
    their surroundings, are left out. Only seams are kept in memory, K floats for each of their pixels, beside one tile and the labels.
    """
    labels: Tensor | None = None
    parts = iter(logits)
    below: Tensor | None = None  # what the row of tiles above has said of the seam that it shares with the next
    for columns, upper, lower in _bands(windows):
        seam: list[Tensor] = []
        for left, piece in _blend_row(columns, upper, lower, parts):
            if labels is None:
                labels = torch.empty(size, dtype=torch.uint8 if len(piece) <= 255 else torch.int64)
            right, blended = left + piece.shape[2], upper[1] - upper[0]
            if below is not None and blended:
                piece[:, :blended] += below[:, :, left:right]
            ends = lower[0] - upper[0]
            labels[upper[0] : lower[0], left:right] = piece[:, :ends].max(dim=0).indices  # much faster than argmax
            seam.append(piece[:, ends:].clone())
        below = torch.cat(seam, dim=2)
    if labels is None:
        raise ValueError("There are no tiles to stitch.")
    if next(parts, None) is not None:
        raise ValueError(f"There are more tiles than the {len(windows)} windows.")
    return labels


def _bands(windows: Sequence[Window]) -> Iterator[tuple[list[Window], tuple[int, int], tuple[int, int]]]:
    """Rows of tiles with the blended seam above and below each, as (first, end); at the picture's edges a seam has no extent."""
    rows: dict[int, list[Window]] = {}
    for window in windows:
        rows.setdefault(window.top, []).append(window)
    bands = list(rows.values())
    seams = _seams([(row[0].top, row[0].bottom) for row in bands])
    yield from ((row, seams[number], seams[number + 1]) for number, row in enumerate(bands))


def _seams(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where neighbours are blended, as (first, end), with the outer ends of the first and the last span; seams never overlap."""
    seams = [(spans[0][0], spans[0][0])]
    for (start, end), (following, _) in pairwise(spans):
        width = min((end - following) // 2, (following - start) // 2)
        first = (end + following - width) // 2
        seams.append((first, first + width))
    return [*seams, (spans[-1][1], spans[-1][1])]


def _blend_row(
    row: Sequence[Window], upper: tuple[int, int], lower: tuple[int, int], parts: Iterator[Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Pieces of one row of tiles from left to right, blended along vertical seams: (first column, logits from upper to lower seam)."""
    seams = _seams([(window.left, window.right) for window in row])
    beside: Tensor | None = None
    for number, window in enumerate(row):
        logits = next(parts, None)
        if logits is None or tuple(logits.shape[1:]) != window.size:
            got = "none" if logits is None else tuple(logits.shape)
            raise ValueError(f"The tile {window} needs logits (K, {window.size[0]}, {window.size[1]}), got {got}.")
        before, after = seams[number], seams[number + 1]
        piece = logits[:, upper[0] - window.top : lower[1] - window.top, before[0] - window.left : after[1] - window.left].float()
        piece = piece * (_ramp(upper, lower)[:, None] * _ramp(before, after))
        if beside is not None:
            piece[:, :, : before[1] - before[0]] += beside
        ends = after[0] - before[0]
        beside = piece[:, :, ends:]
        yield before[0], piece[:, :, :ends]


def _ramp(before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """Weights from the first seam to the end of the second: rising in one, 1 between them, falling in the other."""
    rising, falling = before[1] - before[0], after[1] - after[0]
    up = (torch.arange(rising) + 0.5) / max(rising, 1)
    down = 1 - (torch.arange(falling) + 0.5) / max(falling, 1)
    return torch.cat((up, torch.ones(after[0] - before[1]), down))


def merge_detections(path: str, size: tuple[int, int], windows: Sequence[Window], parts: Sequence[Detections]) -> Detections:
    """Objects of a picture of ``size`` (height, width) from those found in its tiles, whose boxes and masks are in pixels of the tile.

    Of an object that several tiles see whole the best is kept. What the border of a tile has cut is dropped where another tile sees the
    object whole; else its pieces become one object: the union of boxes and masks, the best score. Two findings are one object when they
    have the same class and overlap by `SAME`. Where one is cut it is enough that they do so in what both tiles see, or that `INSIDE` of
    the piece lies in the other.
    """
    if len(parts) != len(windows) or not parts:
        raise ValueError(f"There are {len(parts)} parts for {len(windows)} windows; expected one for each, and at least one.")
    for window, part in zip(windows, parts, strict=True):
        if part.size != window.size:
            raise ValueError(f"The tile {window} needs detections of size {window.size}, got {part.size}.")
    offsets = [torch.tensor([window.left, window.top, window.left, window.top]) for window in windows]
    boxes = [part.boxes + offset for part, offset in zip(parts, offsets, strict=True)]
    cut = [_cut(window, one, size) for window, one in zip(windows, boxes, strict=True)]
    same = _same_objects(windows, boxes, [part.labels for part in parts], cut)
    scores = torch.cat([part.scores for part in parts])
    groups = _groups(scores.tolist(), torch.cat(cut).tolist(), same)
    groups.sort(key=lambda group: float(-scores[group].max()))
    every, labels = torch.cat(boxes), torch.cat([part.labels for part in parts])
    members = [torch.tensor(group) for group in groups]
    corners = [torch.cat((every[m, :2].amin(dim=0), every[m, 2:].amax(dim=0))) for m in members]
    masks = None
    if all(part.masks is not None for part in parts):
        runs = [(mask, window) for part, window in zip(parts, windows, strict=True) for mask in part.masks or ()]
        masks = tuple(_unite([runs[member] for member in group], size) for group in groups)
    return replace(
        parts[0],
        path=path,
        size=size,
        boxes=torch.stack(corners) if corners else torch.zeros(0, 4),
        labels=torch.stack([labels[m[0]] for m in members]) if members else torch.zeros(0, dtype=torch.int64),
        scores=torch.stack([scores[m].max() for m in members]) if members else torch.zeros(0),
        masks=masks,
    )


def _cut(window: Window, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Which boxes (N, 4) of the picture reach a border of their tile that is not the picture's own."""
    across, down = (max(4.0, EDGE * side) for side in window.size[::-1])
    left, top, right, bottom = boxes.unbind(dim=1)
    return (
        ((left < window.left + across) & (window.left > 0))
        | ((top < window.top + down) & (window.top > 0))
        | ((right > window.right - across) & (window.right < size[1]))
        | ((bottom > window.bottom - down) & (window.bottom < size[0]))
    )


def _same_objects(
    windows: Sequence[Window], boxes: Sequence[Tensor], labels: Sequence[Tensor], cut: Sequence[Tensor]
) -> list[tuple[int, int]]:
    """Pairs of findings of different tiles that are one object, counted through all tiles."""
    first = np.cumsum([0, *map(len, boxes)]).tolist()
    pairs: list[tuple[int, int]] = []
    for a, b in combinations(range(len(windows)), 2):
        one, other = windows[a], windows[b]
        left, top = max(one.left, other.left), max(one.top, other.top)
        right, bottom = min(one.right, other.right), min(one.bottom, other.bottom)
        if left >= right or top >= bottom or not len(boxes[a]) or not len(boxes[b]):
            continue
        low, high = torch.tensor([left, top, left, top]), torch.tensor([right, bottom, right, bottom])
        clipped = box_iou(boxes[a].clamp(low, high), boxes[b].clamp(low, high)).nan_to_num(0)  # nothing of either in both tiles: 0 / 0
        pieces = torch.where(cut[a], box_area(boxes[a]), inf)[:, None].minimum(torch.where(cut[b], box_area(boxes[b]), inf)[None])
        whole = box_iou(boxes[a], boxes[b])
        shared = whole / (1 + whole) * (box_area(boxes[a])[:, None] + box_area(boxes[b])[None])  # pixels, from intersection over union
        matched = torch.where(pieces.isfinite(), (clipped >= SAME) | (shared >= INSIDE * pieces), whole >= SAME)
        together = matched & (labels[a][:, None] == labels[b][None])
        pairs += [(first[a] + i, first[b] + j) for i, j in together.nonzero().tolist()]
    return pairs


def _groups(scores: Sequence[float], cut: Sequence[bool], same: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Findings that become one object each; those that are dropped are in none."""
    near: dict[int, set[int]] = {number: set() for number in range(len(scores))}
    for one, other in same:
        near[one].add(other)
        near[other].add(one)
    groups: list[list[int]] = []
    kept: set[int] = set()
    for number in sorted((n for n in near if not cut[n]), key=lambda n: -scores[n]):
        if not near[number] & kept:
            kept.add(number)
            groups.append([number])
    pieces = {number for number in near if cut[number] and all(cut[other] for other in near[number])}
    while pieces:
        group, todo = list[int](), [pieces.pop()]
        while todo:
            group.append(number := todo.pop())
            todo += near[number] & pieces
            pieces -= near[number]
        groups.append(sorted(group))
    return groups


def _unite(masks: Sequence[tuple[Rle, Window]], size: tuple[int, int]) -> Rle:
    """The union of masks of tiles as one of the picture, without ever being a bitmap."""
    starts, ends = (np.concatenate(parts) for parts in zip(*(_runs(mask, window, size[0]) for mask, window in masks), strict=True))
    order = np.argsort(starts)
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1]))[: len(starts)])
    starts, ends = starts[fresh], reach[np.append(fresh[1:], len(reach)) - 1] if len(fresh) else reach
    return rle_from_counts(size, np.diff(np.concatenate(([0], np.stack((starts, ends), axis=1).reshape(-1), [size[0] * size[1]]))))


def _runs(mask: Rle, window: Window, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs of a tile's mask, one per column, as (first, end) in the picture read column by column."""
    edges = rle_counts(mask).cumsum()
    first, last = edges[0:-1:2], edges[1::2] - 1
    first, last = first[first <= last], last[first <= last]
    h = mask.size[0]
    columns = last // h - first // h + 1
    run = np.repeat(np.arange(len(first)), columns)
    step = np.arange(len(run)) - np.repeat(columns.cumsum() - columns, columns)  # columns since the run began
    top = np.where(step == 0, first[run] % h, 0)
    bottom = np.where(step == columns[run] - 1, last[run] % h, h - 1)
    origin = (window.left + first[run] // h + step) * height + window.top
    return origin + top, origin + bottom + 1
