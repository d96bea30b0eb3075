"""A mask file → the class of every pixel.

| in the file                           | values                                                                   |
|---------------------------------------|--------------------------------------------------------------------------|
| grey of 8, 16 or 32 bits, 1 bit       | as they are (1 bit: 0 and 1)                                             |
| palette                               | the number in the palette, not the colour                                |
| RGB, with colours given for classes   | the class of the colour; a colour of the name "ignore" is ignored        |
| RGB with three equal channels         | the value of a channel                                                   |

Then ``value_map`` replaces values (those it does not list stay), then ``reduce_zero`` makes 0 ignored and counts the others from 0, and
``order`` has the number of each in ``classes`` where these are the classes of a network that was trained on other data.
255 is ignored, in training and in scores; any other value must be the number of a class. JPEG is refused: it blurs values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pyramidvit.data.bands import ImageError, decoding
from pyramidvit.data.image import inspect_image
from pyramidvit.data.orientation import AS_READ, turn_between, turn_plane
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.types import MaskTarget

IGNORE = 255
_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA")
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class MaskCode:
    """What the values of mask files mean. ``colours`` and ``value_map`` lead to numbers of classes, or to 255.

    With ``order`` these are the places in it, where the number in ``classes`` stands.
    """

    classes: tuple[str, ...]
    value_map: Mapping[int, int] = field(default_factory=dict)
    colours: Mapping[Colour, int] = field(default_factory=dict)
    reduce_zero: bool = False
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.classes) > IGNORE:
            raise UserError(f"Masks can have {IGNORE} classes at most, since {IGNORE} means ignored; got {len(self.classes)}. Merge some.")

    def labels(self, path: Path, values: np.ndarray) -> np.ndarray:
        """What ``read_mask`` gave → (H, W) uint8; BadFileError for values that are no class."""
        if values.ndim == 3:
            values = self._of_colours(path, values)
        if self.value_map:
            mapped = values.copy()
            for value, label in self.value_map.items():
                mapped[values == value] = label
            values = mapped
        if self.reduce_zero:
            values = np.where((values == 0) | (values == IGNORE), IGNORE, values.astype(np.int64) - 1)
        self._refuse_unknown(path, values)
        return self._in_order(values.astype(np.uint8))

    def _in_order(self, values: np.ndarray) -> np.ndarray:
        """uint8 → uint8."""
        if not self.order:
            return values
        numbers = np.full(IGNORE + 1, IGNORE, np.uint8)
        numbers[: len(self.order)] = self.order
        return numbers[values]

    def _of_colours(self, path: Path, values: np.ndarray) -> np.ndarray:
        packed = values.astype(np.int64) @ (1 << 16, 1 << 8, 1)
        if not self.colours:
            if (values[..., :1] == values).all():
                return values[..., 0]
            raise BadFileError(path, f"it is in colour ({_show_colours(packed)}), and no colours of classes are given: give them.")
        known = sorted((red << 16 | green << 8 | blue, label) for (red, green, blue), label in self.colours.items())
        keys, labels = np.array(known, np.int64).T
        place = np.searchsorted(keys, packed).clip(max=len(keys) - 1)
        if (strange := keys[place] != packed).any():
            raise BadFileError(path, f"it has colours of no class: {_show_colours(packed[strange])}. Give their classes, or ignore them.")
        return labels[place]

    def _refuse_unknown(self, path: Path, values: np.ndarray) -> None:
        classes = [self.classes[number] for number in self.order] or self.classes
        K = len(classes)
        wrong = (values < 0) | ((values >= K) & (values != IGNORE))
        if wrong.any():
            found, counts = np.unique(values[wrong], return_counts=True)
            what = ", ".join(f"{value} ({count} pixels)" for value, count in list(zip(found, counts, strict=True))[:5])
            names = ", ".join(classes[:5]) + (" …" if K > 5 else "")
            known = f"known are {K} classes, 0 to {K - 1} ({names})"
            raise BadFileError(path, f"it has values of no class: {what}; {known}. Name all classes, or map values with --mask-map.")


def _show_colours(packed: np.ndarray) -> str:
    found, counts = np.unique(packed, return_counts=True)
    order = counts.argsort()[::-1][:5]
    colours = [(int(found[i]) >> 16, int(found[i]) >> 8 & 255, int(found[i]) & 255) for i in order]
    return ", ".join(f"{colour} {counts[i]} pixels" for colour, i in zip(colours, order, strict=True))


def read_mask(path: Path) -> np.ndarray:
    """Values of a mask file as they stand there: (H, W) whole numbers, or (H, W, 3) uint8 colours; ImageError when it can't be read."""
    info = inspect_image(path)
    if info.format not in _FORMATS:
        raise ImageError(path, f"masks must be in a format that keeps values ({', '.join(_FORMATS)}), it is {info.format}.")
    with decoding(path), Image.open(path, formats=_FORMATS) as image:
        if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "LA", "PA", "RGB", "RGBA"):
            raise ImageError(path, f"a mask holds whole numbers, a palette or RGB colours, it is {image.mode}.")
        values = np.asarray(image)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    if values.ndim == 3:
        values = values[..., 0] if values.shape[2] == 2 else values[..., :3]
    return values


@dataclass(frozen=True)
class MaskItem:
    """A picture, the file with the classes of its pixels, and what that file's values mean."""

    path: Path
    mask: Path
    code: MaskCode

    def target(self, size: tuple[int, int]) -> MaskTarget:
        """Classes in a picture of ``size`` (height, width); BadFileError when the mask can't be used or has another size."""
        labels = self.code.labels(self.mask, read_mask(self.mask))
        tag = turn_between(self.path, (labels.shape[0], labels.shape[1]), size, self.mask)
        return MaskTarget(torch.from_numpy(labels if tag == AS_READ else turn_plane(labels, tag).copy()))
