"""Boxes and masks of objects: pure functions on tensors.

Shapes: N objects, H W pixels. Boxes are xyxy in absolute pixels, x to the right, y down; the right and lower edges are exclusive,
so the pixel in column 3 of row 5 alone has the box (3, 5, 4, 6) and area 1.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyramidvit.types import Rle

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
_FARTHEST, _MOST_POINTS = 1e6, 50_000_000


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


def rle_from_counts(size: tuple[int, int], counts: Sequence[int] | IntArray) -> Rle:
    """Run lengths of a mask of ``size`` (height, width), column by column, zeros first → COCO's compressed form.

    ValueError when a run is negative or the runs do not fill the mask.
    """
    runs = _checked_runs(size, np.asarray(counts, np.int64).reshape(-1))
    values = runs.copy()
    values[3:] -= runs[1:-2]  # from the fourth on, what changed since the last run of the same kind
    lengths = np.ones(len(values), np.int64)  # characters of five bits each, with sign
    while (wide := (values < -(1 << (5 * lengths - 1))) | (values >= 1 << (5 * lengths - 1))).any():
        lengths[wide] += 1
    place = np.arange(int(lengths.max(initial=1)))
    digits = (values[:, None] >> (5 * place)) & 31
    digits += np.where(place < lengths[:, None] - 1, 32, 0) + 48
    return Rle(size, digits[place < lengths[:, None]].astype(np.uint8).tobytes())


def rle_counts(rle: Rle) -> IntArray:
    """Run lengths (R,) int64, column by column, zeros first; ValueError when the text is damaged or does not fill the mask."""
    codes = np.frombuffer(rle.counts, np.uint8).astype(np.int64) - 48
    if len(codes) == 0 or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise ValueError(f"run lengths in COCO's compressed form are damaged: {rle.counts[:40]!r}")
    starts = np.flatnonzero(np.concatenate(([0], codes[:-1])) & 32 == 0)
    lengths = np.diff(np.append(starts, len(codes)))
    if lengths.max() > 7:  # 35 bits are far more than any mask has pixels
        raise ValueError(f"run lengths in COCO's compressed form are too large: {rle.counts[:40]!r}")
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    values: IntArray = np.add.reduceat((codes & 31) << (5 * place), starts)
    values -= np.where(codes[starts + lengths - 1] & 16, 1 << (5 * lengths), 0)
    values[1::2] = values[1::2].cumsum()
    values[2::2] = values[2::2].cumsum()
    return _checked_runs(rle.size, values)


def rle_area(rle: Rle) -> int:
    """Number of pixels of a mask."""
    return int(rle_counts(rle)[1::2].sum())


def rle_box(rle: Rle) -> tuple[float, float, float, float] | None:
    """Tight box of a mask, None when it has no pixel."""
    height = rle.size[0]
    edges = rle_counts(rle).cumsum()
    first, last = edges[0:-1:2], edges[1::2] - 1  # of each run of ones
    first, last = first[first <= last], last[first <= last]
    if len(first) == 0:
        return None
    wraps = bool((first // height != last // height).any())  # runs on into the next column
    top, bottom = (0, height - 1) if wraps else (int((first % height).min()), int((last % height).max()))
    return float(first[0] // height), float(top), float(last[-1] // height + 1), float(bottom + 1)


def encode_mask(mask: Tensor) -> Rle:
    """A mask (H, W) bool → run lengths."""
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ValueError(f"A mask is (H, W) bool, got {tuple(mask.shape)} {mask.dtype}.")
    flat = mask.cpu().T.reshape(-1).numpy()
    edges = np.flatnonzero(np.diff(flat, prepend=False))
    return _from_edges((mask.shape[0], mask.shape[1]), edges)


def encode_window(mask: Tensor, top: int, left: int, size: tuple[int, int]) -> Rle:
    """A mask that covers a window (h, w) bool of a picture of ``size`` (height, width) → run lengths of the picture, without drawing it."""
    columns = np.pad(mask.cpu().T.numpy(), ((0, 0), (1, 1)))
    column, row = np.nonzero(np.diff(columns, axis=1))
    places, times = np.unique((left + column) * size[0] + top + row, return_counts=True)
    return _from_edges(size, places[times == 1])  # twice: one run goes on from the end of a column into the next


def decode_rle(rle: Rle) -> Tensor:
    """Run lengths → a mask (H, W) bool; ValueError as for ``rle_counts``."""
    height, width = rle.size
    counts = rle_counts(rle)
    mask = np.zeros((height, width), np.bool_)
    edges = counts.cumsum()
    if edges[-1] > edges[0]:
        first, last = int(edges[0]) // height, (int(edges[1::2][-1]) - 1) // height + 1  # only these columns have ones
        inner = np.diff(np.clip(edges, None, last * height), prepend=first * height)
        mask[:, first:last] = np.repeat(np.arange(len(inner)) % 2 == 1, inner).reshape(-1, height).T
    return torch.from_numpy(mask)  # pyright: ignore[reportUnknownMemberType]  torch says ndarray without its type


def polygons_to_rle(polygons: Iterable[FloatArray], size: tuple[int, int]) -> Rle:
    """The union of polygons, each (P, 2) of x and y in pixels or flat, as a mask of ``size`` (height, width).

    Bit for bit what the COCO tools draw: outlines are rounded to fifths of a pixel, within an outline even-odd; parts outside are cut
    off. ValueError for fewer than three points and for coordinates that are not finite or absurdly large.
    """
    edges = [_polygon_edges(np.asarray(polygon, np.float64).reshape(-1, 2), size) for polygon in polygons]
    if len(edges) == 1:
        return _from_edges(size, edges[0])
    steps = [np.where(np.arange(len(one)) % 2 == 0, 1, -1) for one in edges]
    places, index = np.unique(np.concatenate([*edges, np.empty(0, np.int64)]), return_inverse=True)
    cover = np.bincount(index, np.concatenate([*steps, np.empty(0)]), len(places)).cumsum()
    return _from_edges(size, places[np.flatnonzero(np.diff(cover > 0, prepend=False))])


def mask_to_polygons(mask: Tensor) -> list[FloatArray]:
    """Outlines of a mask (H, W) bool along the edges of its pixels, each (P, 2) of x and y; holes are filled.

    A mask without holes comes back from ``polygons_to_rle`` as it was.
    """
    following = _boundary(np.pad(mask.cpu().numpy().astype(np.int8), 1))
    rings: list[FloatArray] = []
    while following:
        start, ways = next(iter(following.items()))
        point, (dx, dy) = start, ways[0]
        ring: list[tuple[int, int]] = []
        while point in following:
            ways = following[point]
            right = (-dy, dx)  # at a touching corner, stay with the pixel we are at
            step = right if right in ways else ways[0]
            ways.remove(step)
            if not ways:
                del following[point]
            if step != (dx, dy) or not ring:
                ring.append(point)
            (dx, dy), point = step, (point[0] + step[0], point[1] + step[1])
            if point == start and (point not in following or (-dy, dx) not in following[point]):
                break
        outline = np.array(ring, np.float64)
        x, y = outline.T
        if float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) > 0:  # clockwise on the screen; holes run the other way
            rings.append(outline)
    return rings


def _boundary(padded: NDArray[np.int8]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Steps along the edges of pixels, from each corner, with the mask on the right hand."""
    following: dict[tuple[int, int], list[tuple[int, int]]] = {}
    down, across = np.diff(padded, axis=0), np.diff(padded, axis=1)
    sides = ((down == 1, 0, 0, (1, 0)), (down == -1, 1, 0, (-1, 0)), (across == 1, 0, 1, (0, -1)), (across == -1, 0, 0, (0, 1)))
    for there, right, below, step in sides:
        rows, columns = np.nonzero(there)
        offset_x, offset_y = (-1, 0) if step[1] == 0 else (0, -1)  # the border of one pixel
        for x, y in zip((columns + offset_x + right).tolist(), (rows + offset_y + below).tolist(), strict=True):
            following.setdefault((x, y), []).append(step)
    return following


def _polygon_edges(points: FloatArray, size: tuple[int, int]) -> IntArray:
    """Positions, column by column, at which an outline switches between outside and inside; sorted."""
    height, width = size
    if len(points) < 3:
        raise ValueError(f"a polygon needs at least three points, got {len(points)}")
    if not np.isfinite(points).all() or np.abs(points).max() > _FARTHEST:
        raise ValueError(f"a polygon has coordinates that are not finite or beyond {_FARTHEST:g} pixels")
    x, y = (5 * np.vstack((points, points[:1])) + 0.5).astype(np.int64).T  # fifths of a pixel, cut towards zero
    u, v = _walk(x, y)
    turns = np.flatnonzero(np.diff(u)) + 1
    column, row = np.minimum(u[turns], u[turns - 1]), np.minimum(v[turns], v[turns - 1])
    middle = (column % 5 == 2) & (column >= 0) & (column < 5 * width)  # passes the middle of a column of pixels
    column, row = column[middle] // 5, np.clip(-((2 - row[middle]) // 5), 0, height)
    places, times = np.unique(column * height + row, return_counts=True)
    return places[times % 2 == 1]


def _walk(x: IntArray, y: IntArray) -> tuple[IntArray, IntArray]:
    """All points of the fine grid along a closed outline, edge by edge, both ends included."""
    dx, dy = np.diff(x), np.diff(y)
    flat = np.abs(dx) >= np.abs(dy)
    long = np.where(flat, dx, dy)
    short = np.where(flat, dy, dx)
    back = long < 0  # drawn from its other end, so that both directions give the same points
    n = np.abs(long)
    if int(n.sum()) > _MOST_POINTS:
        raise ValueError("a polygon has an absurdly long outline")
    slope = np.where(back, -short, short) / np.maximum(n, 1)
    from_long = np.where(back, np.where(flat, x[1:], y[1:]), np.where(flat, x[:-1], y[:-1]))
    from_short = np.where(back, np.where(flat, y[1:], x[1:]), np.where(flat, y[:-1], x[:-1]))
    edge = np.repeat(np.arange(len(n)), n + 1)
    t = np.arange(len(edge)) - np.repeat(np.cumsum(n + 1) - (n + 1), n + 1)
    t = np.where(back[edge], n[edge] - t, t)
    along = from_long[edge] + t
    across = (from_short[edge] + slope[edge] * t + 0.5).astype(np.int64)
    return np.where(flat[edge], along, across), np.where(flat[edge], across, along)


def _from_edges(size: tuple[int, int], edges: IntArray) -> Rle:
    total = size[0] * size[1]
    return rle_from_counts(size, np.diff(np.concatenate(([0], edges[edges < total], [total]))))


def _checked_runs(size: tuple[int, int], runs: IntArray) -> IntArray:
    height, width = size
    if len(runs) == 0 or runs.min() < 0 or runs.max() > height * width or runs.sum() != height * width:
        raise ValueError(f"run lengths must be 0 or more and add up to {height} x {width} pixels; they add up to {runs.sum()}")
    return runs
