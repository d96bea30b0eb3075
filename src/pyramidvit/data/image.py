"""A picture file → an upright array, or an ImageError that names the file and the reason.

The format is told by content, never by name; only ``FORMATS``, TIFF of any band count and ``.npy`` are opened. The size is checked in the
header, before any pixel is decoded. Of an animation or a document the first frame is read. ICC profiles are not applied.

| in the file                            | becomes                                                                             |
|----------------------------------------|-------------------------------------------------------------------------------------|
| 1 bit                                  | 0 and 255                                                                           |
| L, RGB                                 | as they are                                                                         |
| P (palette)                            | RGB                                                                                 |
| CMYK, YCbCr, LAB                       | RGB                                                                                 |
| alpha: LA, RGBA, P L RGB with tRNS     | laid over white, unless ``in_chans`` asks for the alpha as a band (2 or 4)          |
| 16-bit colour or grey + alpha in PNG   | 8 bits, by Pillow                                                                   |
| deeper or signed integers, any bands   | float32: the full range of the type, or ``value_range``, → 0..1; beyond is clipped  |
| float                                  | float32: values must lie in 0..1, or ``value_range`` → 0..1; never NaN or infinite  |
| white-is-zero TIFF                     | inverted                                                                            |

Then channels: as many bands as ``in_chans`` stay as they are; ``in_chans=1`` takes grey (0.299 R + 0.587 G + 0.114 B), ``in_chans=3`` takes
RGB (grey repeated); anything else is an error. Band axis of a 3-D .npy or of a stack of TIFF pages: the last or the first axis, whichever
is as long as ``in_chans`` (last if both); if neither is, the shorter of the two. TIFF pages count as bands when the file says so, or when
they are as many as ``in_chans`` and that is neither 1 nor 3.

Orientation: the tag (EXIF, XMP, AVIF container, TIFF) is applied exactly once; a damaged EXIF block counts as no tag.
"""

import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from pyramidvit.data.bands import (
    DEFAULTS,
    BandError,
    ImageError,
    RangeError,
    Raw,
    ReadOptions,
    check_size,
    decoding,
    invert,
    load_npy,
    load_tiff,
    open_npy,
    open_tiff,
    to_channels,
    to_unit,
)

__all__ = ["FORMATS", "BandError", "ImageError", "ImageInfo", "RangeError", "ReadOptions", "inspect_image", "read_image"]

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "PPM", "JPEG2000", "TGA")
"""Pillow's readers that may open a file; EPS and other formats that run programs or hold documents never do."""

_NPY = b"\x93NUMPY"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BITS, _PHOTOMETRIC, _HEIGHT, _WIDTH, _ORIENTATION, _SAMPLES, _SAMPLE_FORMAT = 258, 262, 257, 256, 274, 277, 339
_UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}
_UNDO = {6: 8, 8: 6}  # every other turn undoes itself
_NATURAL = {"1": "L", "P": "RGB", "PA": "RGBA", "La": "LA", "RGBa": "RGBA", "RGBX": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB"}
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_EXACT = {(12, 1): np.uint16, (16, 1): np.uint16, (16, 2): np.int16, (32, 2): np.int32, (32, 3): np.float32}
"""(bits, sample format) of one-band TIFF that Pillow holds without loss, and the type of the file."""

_warnings_lock = threading.Lock()  # catch_warnings is not safe between threads
if hasattr(os, "register_at_fork"):  # a worker forked while another thread reads must not inherit a closed lock
    os.register_at_fork(after_in_child=lambda: globals().update(_warnings_lock=threading.Lock()))


@dataclass(frozen=True)
class ImageInfo:
    """What the header says. Height and width are those of the upright picture (as stored with ``orientation=False``)."""

    format: str
    mode: str
    height: int
    width: int
    bands: int
    dtype: str
    orientation: int
    frames: int


def read_image(path: str | Path, options: ReadOptions = DEFAULTS) -> np.ndarray:
    """(H, W, in_chans), contiguous and writable: uint8 0..255 for 8-bit files, float32 0..1 for deeper ones; ImageError when it can't."""
    with _open(path) as (file, head):
        if head.startswith(_NPY):
            raw = load_npy(path, options)
        elif (image := _pillow(path, file, head, options)) is not None:
            raw = _load(path, image, options)
        else:
            raw = load_tiff(path, file, options)
    array = to_channels(path, to_unit(path, raw, options.value_range), raw.alpha, options.in_chans)
    if raw.turn in _UPRIGHT:
        array = _UPRIGHT[raw.turn](array)
    return np.require(array, requirements=["C", "W"])


def inspect_image(path: str | Path, options: ReadOptions = DEFAULTS) -> ImageInfo:
    """What the header says, without decoding pixels; ImageError when it can't be read or claims too many pixels."""
    with _open(path) as (file, head):
        if head.startswith(_NPY):
            array = open_npy(path, options)
            height, width, bands = array.shape
            return ImageInfo("NPY", array.dtype.name, height, width, bands, array.dtype.name, 1, 1)
        image = _pillow(path, file, head, options)
        if image is None:
            with open_tiff(path, file, options) as tiff:
                height, width = _upright_size(tiff.height, tiff.width, tiff.orientation, options)
                return ImageInfo("TIFF", tiff.photometric, height, width, tiff.bands, tiff.dtype.name, tiff.orientation, tiff.frames)
        with decoding(path), _quiet():
            tag, frames = _orientation(image), getattr(image, "n_frames", 1)
        height, width = _upright_size(*_stored_size(image), tag, options)
        bands = 1 if image.mode in _DEEP else len(_natural_mode(image))
        return ImageInfo(image.format or "", image.mode, height, width, bands, _dtype(image).name, tag, frames)


@contextmanager
def _open(path: str | Path) -> Iterator[tuple[BinaryIO, bytes]]:
    try:
        with open(path, "rb") as file:
            head = file.read(32)
            if not head:
                raise ImageError(path, "the file is empty (0 bytes).")
            file.seek(0)
            yield file, head
    except FileNotFoundError:
        raise ImageError(path, "there is no such file.") from None
    except IsADirectoryError:
        raise ImageError(path, "it is a folder, not a picture.") from None
    except OSError as error:
        raise ImageError(path, f"{error.strerror or error}.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns about damage that we report or that does not matter; nothing of it reaches the user."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow(path: str | Path, file: BinaryIO, head: bytes, options: ReadOptions) -> Image.Image | None:
    """The opened but undecoded picture; None for a TIFF that Pillow can't hold without loss."""
    if Image.MAX_IMAGE_PIXELS is not None and options.max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = options.max_pixels  # the user asked for more than Pillow allows by itself
    try:
        with decoding(path), _quiet():
            image = Image.open(file, formats=FORMATS)
    except ImageError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise ImageError(path, f"it claims too many pixels and was not decoded. {error.__cause__}") from error.__cause__
        if head[:4] in _TIFF:
            return None
        if isinstance(error.__cause__, UnidentifiedImageError):
            raise ImageError(path, _unknown(head)) from None
        raise
    check_size(path, *_stored_size(image), options.max_pixels)
    with decoding(path), _quiet():
        return image if _holds(image, options.in_chans) else None


def _unknown(head: bytes) -> str:
    if head[4:8] == b"ftyp":
        return "HEIC/HEIF pictures can't be read; convert them to JPEG or PNG."
    known = ", ".join((*FORMATS, "NPY"))
    return f"its content is not a picture that can be read, whatever its name says; it starts with {head[:12]!r}, known are {known}."


def _holds(image: Image.Image, in_chans: int) -> bool:
    """Whether Pillow gives every band and bit of the file."""
    if not isinstance(image, TiffImageFile):
        return True
    bits, samples, kinds = (image.tag_v2.get(tag, default) for tag, default in ((_BITS, (1,)), (_SAMPLES, 1), (_SAMPLE_FORMAT, (1,))))
    if in_chans not in (1, 3) and getattr(image, "n_frames", 1) == in_chans:
        return False  # the pages are the bands
    if image.mode in _DEEP:
        return samples == 1 and (bits[0], kinds[0]) in _EXACT
    return max(bits) <= 8 and set(kinds) == {1} and samples == len(image.getbands())


def _dtype(image: Image.Image) -> np.dtype:
    """Type of the numbers in the file; Pillow keeps some in a wider one."""
    if image.mode not in _DEEP:
        return np.dtype(np.uint8)
    if isinstance(image, TiffImageFile):
        return np.dtype(_EXACT[image.tag_v2.get(_BITS, (1,))[0], image.tag_v2.get(_SAMPLE_FORMAT, (1,))[0]])
    return np.dtype(np.float32 if image.mode == "F" else np.uint16)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) before any turn; Pillow gives those of a TIFF after it."""
    if isinstance(image, TiffImageFile):
        return image.tag_v2[_HEIGHT], image.tag_v2[_WIDTH]
    return image.height, image.width


def _upright_size(height: int, width: int, tag: int, options: ReadOptions) -> tuple[int, int]:
    return (width, height) if options.orientation and tag >= 5 else (height, width)


def _orientation(image: Image.Image) -> int:
    """Orientation tag from what was read so far; the base method, because Pillow's own for PNG would decode the pixels."""
    try:
        tag = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, struct.error):
        return 1  # a damaged EXIF block is no reason to lose the picture
    return tag if tag in _UPRIGHT else 1


def _natural_mode(image: Image.Image) -> str:
    """Which of L, LA, RGB and RGBA holds what the file holds."""
    mode = _NATURAL.get(image.mode, image.mode)
    return {"L": "LA", "RGB": "RGBA"}.get(mode, mode) if "transparency" in image.info else mode


def _load(path: str | Path, image: Image.Image, options: ReadOptions) -> Raw:
    """Decode with Pillow; damage shows only now."""
    if isinstance(image, TiffImageFile):
        with decoding(path), _quiet():
            tag = _orientation(image)
            image.load()  # Pillow turns TIFF by itself here and drops the tag
        turn = 1 if options.orientation else _UNDO.get(tag, tag)
    else:
        with decoding(path):
            image.load()
        with _quiet():
            turn = _orientation(image) if options.orientation else 1  # PNG may hold the tag behind the pixels
    with decoding(path):
        if image.mode in _DEEP:
            return _deep(image, turn)
        mode = _natural_mode(image)
        if image.mode == "LAB":
            lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
            image = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB") or image
        array = np.asarray(image if image.mode == mode else image.convert(mode))
        return Raw(array.reshape(*array.shape[:2], -1), (0, 255), mode.endswith("A"), turn)


def _deep(image: Image.Image, turn: int) -> Raw:
    dtype = _dtype(image)
    if dtype.kind == "f":
        return Raw(np.asarray(image)[..., None], None, turn=turn)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    white_is_zero = False
    if isinstance(image, TiffImageFile):
        high = 4095 if image.tag_v2.get(_BITS) == (12,) else high
        white_is_zero = image.tag_v2.get(_PHOTOMETRIC) == 0
    raw = Raw(np.asarray(image).astype(dtype)[..., None], (low, high), turn=turn)
    return invert(raw) if white_is_zero else raw
