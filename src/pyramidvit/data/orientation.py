"""Annotations of turned photos: whether they mean the picture as stored or upright, and how they are turned with it.

The rule: annotations whose stated size is that of the picture as it is read are taken as they are. If height and width are exchanged,
and the file has an orientation tag that exchanges them, they mean the other of the two (stored or upright) and are turned. Any other
size is an error. Where both sizes are equal (squares, mirrored pictures, half turns) nothing is turned: the picture as read is meant.
"""

from pathlib import Path

import numpy as np

from pyramidvit.data.image import ReadOptions, inspect_image
from pyramidvit.errors import BadFileError

_STEPS = {1: (False, False, False), 5: (True, False, False), 6: (True, True, False), 7: (True, True, True), 8: (True, False, True)}
"""Orientation tag → from stored to upright: exchange the axes, then mirror left-right, then mirror up-down."""
_BACK = {6: 8, 8: 6}
AS_READ = 1


def turn_between(path: Path, stated: tuple[int, int] | None, size: tuple[int, int], mask: Path | None = None) -> int:
    """Orientation tag that takes annotations of the ``stated`` (height, width) to the picture read at ``size``; 1 changes nothing.

    BadFileError when the two sizes do not fit; it is that of the file ``mask``, if that is where the stated size comes from.
    """
    if stated is None or stated == size:
        return AS_READ
    upright = inspect_image(path, ReadOptions())
    tag = upright.orientation
    if tag < 5 or stated != size[::-1]:
        (height, width), (H, W) = stated, size
        if mask is not None:
            raise BadFileError(mask, f"the mask has {width} x {height} pixels, but its picture {path.name} has {W} x {H}.")
        raise BadFileError(path, f"its annotations are for a picture of {width} x {height} pixels, but it has {W} x {H}.")
    return tag if size == (upright.height, upright.width) else _BACK.get(tag, tag)


def turn_plane(plane: np.ndarray, tag: int) -> np.ndarray:
    """(H, W) turned by a tag from ``turn_between``; (W, H) unless the tag is 1."""
    exchange, mirror, flip = _STEPS[tag]
    plane = plane.T if exchange else plane
    return plane[:: -1 if flip else 1, :: -1 if mirror else 1]


def turn_boxes(boxes: np.ndarray, tag: int, size: tuple[int, int]) -> np.ndarray:
    """Boxes (N, 4) xyxy turned by a tag from ``turn_between``; ``size`` is (height, width) after the turn."""
    exchange, mirror, flip = _STEPS[tag]
    x1, y1, x2, y2 = boxes.T[[1, 0, 3, 2]] if exchange else boxes.T
    if mirror:
        x1, x2 = size[1] - x2, size[1] - x1
    if flip:
        y1, y2 = size[0] - y2, size[0] - y1
    return np.stack((x1, y1, x2, y2), axis=1)
