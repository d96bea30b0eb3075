"""One picture's objects, made valid: what was wrong with a box is noted and mended or left out. N objects, H W pixels."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pyramidvit.data.annotations import NOWHERE, Box, RawObject, RawPicture, Shape, settled_area
from pyramidvit.data.image import ImageError, inspect_image
from pyramidvit.data.listing import relative
from pyramidvit.data.orientation import AS_READ, turn_between, turn_boxes, turn_plane
from pyramidvit.errors import BadFileError
from pyramidvit.geometry import decode_rle, polygons_to_rle, rle_area
from pyramidvit.types import BoxTarget, Rle

_ROUNDING = 1.0
"""Pixels that a box may reach over the border without being called wrong."""


@dataclass(frozen=True, eq=False)
class BoxItem:
    """A picture and its objects: ``boxes`` (N, 4) float32 xyxy, ``labels`` (N,) int64, ``crowd`` (N,) bool, ``areas`` (N,) float32.

    ``shapes`` are their outlines, None when masks are not wanted. All refer to a picture of ``size`` (height, width), None: as it is
    read. ``id`` is the picture's own in the source of the annotations.
    """

    path: Path
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray
    shapes: tuple[Shape, ...] | None = None
    size: tuple[int, int] | None = None
    id: int | str | None = None

    def target(self, size: tuple[int, int]) -> BoxTarget:
        """The objects in a picture of ``size`` (height, width), masks drawn; BadFileError when the annotations are for another size."""
        tag = turn_between(self.path, self.size, size)
        boxes = self.boxes if tag == AS_READ else turn_boxes(self.boxes, tag, size)
        labels, crowd, areas = (torch.from_numpy(values) for values in (self.labels, self.crowd, self.areas))
        return BoxTarget(torch.from_numpy(np.ascontiguousarray(boxes)), labels, self._masks(size, tag), crowd, areas)

    def _masks(self, size: tuple[int, int], tag: int) -> torch.Tensor | None:
        if self.shapes is None:
            return None
        masks = torch.zeros(len(self.shapes), *size, dtype=torch.bool)
        drawn_size = size if tag == AS_READ else (size[1], size[0])
        for mask, shape in zip(masks, self.shapes, strict=True):
            rle = shape if isinstance(shape, Rle) else polygons_to_rle(shape, drawn_size)
            if rle.size != drawn_size:
                raise BadFileError(self.path, f"a mask has {rle.size[1]} x {rle.size[0]} pixels, it has {size[1]} x {size[0]}.")
            plane = decode_rle(rle)
            mask.copy_(plane if tag == AS_READ else torch.from_numpy(turn_plane(plane.numpy(), tag).copy()))
        return masks

    def digest(self) -> bytes:
        """Of all annotations but the labels, whose numbers depend on the class list."""
        digest = hashlib.sha256(repr((self.size, self.id)).encode())
        for values in (self.boxes, self.crowd, self.areas):
            digest.update(values.tobytes())
        for shape in self.shapes or ():
            digest.update(shape.counts if isinstance(shape, Rle) else b"".join(polygon.tobytes() for polygon in shape))
        return digest.digest()


@dataclass
class Cleaner:
    """Annotations → items; ``flaws`` collects (path, what is wrong) by kind. ``index`` has the number of each class."""

    root: Path
    index: Mapping[str, int]
    masks: bool
    policy: Literal["fix", "drop"]
    flaws: defaultdict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    kinds = {  # noqa: RUF012  shared on purpose
        "not-finite": ("with a box that is not finite", "refused"),
        "inverted": ("with left and right or top and bottom exchanged", "exchanged back"),
        "empty": ("with a box without area", "left out"),
        "outside": ("wholly outside of the picture", "left out"),
        "overhang": ("reaching out of the picture", "cut at the border"),
        "blank": ("whose mask holds no object", "left out"),
        "no-box": ("without a box, and without an outline to take it from", "left out"),
        "mask": ("with an outline that can't be used", "left out"),
        "no-mask": ("without an outline, which this task needs", "left out"),
    }
    """What is wrong, and what "fix" does."""

    def item(self, picture: RawPicture) -> BoxItem:
        """The picture with those of its objects that are valid."""
        size = picture.size or _header_size(picture.path)
        kept: list[tuple[RawObject, Box]] = []
        for one in picture.objects:
            box = self._settle(one, size, picture.path)
            if box is not None:
                kept.append((one, box))
        areas = [settled_area(one.area, box, one.shape) for one, box in kept]
        return BoxItem(
            picture.path,
            np.array([box for _, box in kept], np.float32).reshape(-1, 4),
            np.array([self.index[one.name] for one, _ in kept], np.int64),
            np.array([one.crowd for one, _ in kept], np.bool_),
            np.array(areas, np.float32),
            tuple(one.shape for one, _ in kept if one.shape is not None) if self.masks else None,
            size,
            picture.id,
        )

    def _settle(self, one: RawObject, size: tuple[int, int] | None, path: Path) -> Box | None:
        """A valid box, or None when the object is left out."""
        kind, box, reason = _without_box(one)
        if kind is None:
            kind, box = judge(one.box, size)
            reason = f"{one.name} at {_show(one.box)}" + (f" of {size[1]} x {size[0]}" if size else "")
        if kind is None and self.masks:
            if flaw := one.flaw or _useless(one.shape, size):
                kind, box, reason = "mask", None, flaw
            elif one.shape is None:
                kind, box = "no-mask", None
        if kind is not None:
            self.flaws[kind].append((relative(path, self.root), reason))
        return box if kind is None or self.policy == "fix" else None


def _without_box(one: RawObject) -> tuple[str | None, None, str]:
    """Why an object has no box at all, as kind and in words; kind None when it has one."""
    if one.box is not NOWHERE:
        return None, None, ""
    if isinstance(one.shape, Rle):
        return "blank", None, one.flaw or f"no pixel of the mask of {one.name} is set"
    return ("mask", None, one.flaw) if one.flaw else ("no-box", None, one.name)


def _useless(shape: Shape | None, size: tuple[int, int] | None) -> str:
    """What is wrong with run lengths in a picture of (height, width); nothing if they can be used."""
    if not isinstance(shape, Rle):
        return ""
    if size is not None and shape.size != size:
        return f"its mask is {shape.size[1]} x {shape.size[0]} pixels, the picture {size[1]} x {size[0]}"
    return "" if rle_area(shape) else "no pixel of its mask is set"


def judge(box: Box, size: tuple[int, int] | None) -> tuple[str | None, Box | None]:
    """What is wrong with a box in a picture of (height, width), and the box mended, None when it can't be."""
    if not all(map(isfinite, box)):
        return "not-finite", None
    left, top, right, bottom = min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])
    kind = "inverted" if (left, top, right, bottom) != box else None
    if left == right or top == bottom:
        return "empty", None
    if size is None:
        return kind, (left, top, right, bottom)
    height, width = size
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        return "outside", None
    if max(-left, -top, right - width, bottom - height) > _ROUNDING:
        kind = kind or "overhang"
    return kind, (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))


def _header_size(path: Path) -> tuple[int, int] | None:
    try:
        info = inspect_image(path)
    except ImageError:  # said when the picture is read
        return None
    return info.height, info.width


def _show(box: Box) -> str:
    return "({})".format(", ".join(f"{value:g}" for value in box))
