"""One mask picture per object: ``<id>/images/<id>.png`` with ``<id>/masks/*.png``, or ``images/<name>.png`` with ``masks/<name>/*.png``.

Both may lie in train/ and val/. Every pixel above 0 is the object. Folders inside of the folder of masks are classes; without them all
objects are of class "object". A mask without such a pixel holds no object, and one of another size than its picture can't be used: what
becomes of them is said in boxes.py.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from pyramidvit.data.annotations import NOWHERE, RawData, RawObject, RawPicture, RawSplit, choose_splits, pictures_below, split_of
from pyramidvit.data.image import ImageError, ReadOptions, inspect_image, read_image
from pyramidvit.data.listing import entries_of
from pyramidvit.geometry import encode_mask, rle_box
from pyramidvit.types import Rle

DEFAULT_CLASS = "object"
_GREY = ReadOptions(in_chans=1)


def read_object_masks(root: Path) -> RawData | None:
    """Objects of each split; None when the layout is another one. ImageError when a mask can't be read."""
    data = RawData("object masks", root, {})
    folders = entries_of(root, [])[0]
    places = {path: split for path in folders if (split := split_of(path, root)) and _pairs(path)} or ({root: None} if _pairs(root) else {})
    for split, place in choose_splits(places, root, data.findings).items():
        data.splits[split] = RawSplit([_picture(path, masks) for path, masks in _pairs(place)])
    return data if data.splits else None


def _pairs(place: Path) -> list[tuple[Path, Path]]:
    """Pictures and the folders of their masks."""
    images, masks = place / "images", place / "masks"
    if images.is_dir() and masks.is_dir():
        pictures = pictures_below(images)
        return [(path, masks / path.stem) for path in pictures] if any((masks / path.stem).is_dir() for path in pictures) else []
    pairs: list[tuple[Path, Path]] = []
    for folder in entries_of(place, [])[0]:
        if (folder / "images").is_dir() and (folder / "masks").is_dir():
            pairs += [(path, folder / "masks") for path in pictures_below(folder / "images")]
    return pairs


def _picture(path: Path, masks: Path) -> RawPicture:
    files = pictures_below(masks) if masks.is_dir() else []
    with ThreadPoolExecutor() as pool:
        shapes = list(pool.map(_mask, files))
    names = [file.parent.name if file.parent != masks else DEFAULT_CLASS for file in files]
    size = next((shape.size for shape in shapes if shape.size in _sizes(path, shape.size)), None)
    objects = [_object(file, shape, name, path, size) for file, shape, name in zip(files, shapes, names, strict=True)]
    return RawPicture(path, size, objects, path.stem)


def _sizes(path: Path, otherwise: tuple[int, int]) -> set[tuple[int, int]]:
    """Sizes (height, width) that masks can have: those of the picture upright and as stored."""
    try:
        info = inspect_image(path)
    except ImageError:  # said when the picture is read
        return {otherwise}
    height, width = info.height, info.width
    return {(height, width), (width, height)} if info.orientation >= 5 else {(height, width)}


def _object(file: Path, shape: Rle, name: str, picture: Path, size: tuple[int, int] | None) -> RawObject:
    """``size`` is that of the picture's masks, None when none has one that it can have."""
    if shape.size != size:
        (height, width) = shape.size
        (H, W) = size or next(iter(_sizes(picture, shape.size)))
        return RawObject(NOWHERE, name, flaw=f"the mask {file.name} has {width} x {height} pixels, but its picture {W} x {H}")
    box = rle_box(shape)
    return RawObject(box or NOWHERE, name, shape, flaw="" if box else f"the mask {file.name} is 0 everywhere")


def _mask(file: Path) -> Rle:
    return encode_mask(torch.from_numpy(np.ascontiguousarray(read_image(file, _GREY)[..., 0] > 0)))
