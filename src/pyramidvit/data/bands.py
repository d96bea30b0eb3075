"""Pictures of any depth and number of bands: .npy and TIFF that Pillow can't hold, and the rules that bring values and channels into shape.

The rules are the table in ``image.py``, which is what other modules use.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyramidvit.errors import BadFileError, UserError

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)

for _name in ("tifffile", "PIL"):  # what they would print about odd files is in our errors
    logging.getLogger(_name).addHandler(logging.NullHandler())


@dataclass(frozen=True)
class ReadOptions:
    """How files become arrays. ``value_range`` maps to 0 and 1 in pictures deeper than 8 bits; None takes the full range of the type."""

    in_chans: int = 3
    value_range: tuple[float, float] | None = None
    orientation: bool = True
    max_pixels: int = 178_956_970

    def __post_init__(self) -> None:
        if self.in_chans < 1:
            raise UserError(f"in_chans, the number of channels, must be at least 1; got {self.in_chans}.")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise UserError(f"The value range must rise, from the value that becomes 0 to the one that becomes 1; got {self.value_range}.")


DEFAULTS = ReadOptions()


class ImageError(BadFileError):
    """A file that gives no picture."""


class BandError(ImageError):
    """The file has another number of bands than the network takes."""


class RangeError(ImageError):
    """The values of a float file can't be mapped to 0..1."""


@dataclass
class Raw:
    """What a decoder gave: ``array`` (H, W, K); ``limits`` are the values that mean 0 and 1, None for float files.

    ``alpha``: the last band is opacity. ``turn``: EXIF orientation that is still to be applied.
    """

    array: np.ndarray
    limits: tuple[float, float] | None
    alpha: bool = False
    turn: int = 1


@contextmanager
def decoding(path: str | Path) -> Iterator[None]:
    """Whatever a decoder raises on damaged content becomes an ImageError; decoders raise nearly everything."""
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(path, "there is not enough memory to decode it; lower max_pixels or make it smaller.") from error
    except Exception as error:
        text = str(error).rstrip(".") or type(error).__name__
        if "imagecodecs" in text:
            raise ImageError(path, f"its compression needs one more package: pip install imagecodecs ({text}).") from error
        raise ImageError(path, f"damaged, cut off, or of a kind we can't decode ({text}).") from error


def check_size(path: str | Path, height: int, width: int, max_pixels: int) -> None:
    """Refuse empty pictures and decompression bombs before a pixel is decoded."""
    if height < 1 or width < 1:
        raise ImageError(path, f"it holds no pixels ({width}x{height}).")
    if height * width > max_pixels:
        limit = f"more than the {max_pixels:,} allowed (max_pixels)"
        raise ImageError(path, f"it claims {width}x{height} = {height * width:,} pixels, {limit}, and was not decoded.")


def check_bands(path: str | Path, bands: int, alpha: bool, in_chans: int) -> None:
    """BandError unless ``to_channels`` has a rule from the file's bands to the network's channels."""
    colour = bands - alpha
    if in_chans == bands or (in_chans in (1, 3) and colour in (1, 3)):
        return
    what = f"{bands} band{'s' if bands > 1 else ''}{' (the last is opacity)' if alpha else ''}"
    advice = f"pass --in-chans {bands} if all pictures have {bands} bands, or leave the file out"
    raise BandError(path, f"it has {what}, but the network takes {in_chans} (in_chans); {advice}.")


def to_unit(path: str | Path, raw: Raw, value_range: tuple[float, float] | None) -> np.ndarray:
    """uint8 as it is; anything deeper or signed as float32 0..1, clipped."""
    array = raw.array
    if array.dtype == np.uint8:
        return array
    limits = value_range or raw.limits
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not np.isfinite([low, high]).all():
            raise RangeError(path, f"{int((~np.isfinite(array)).sum()):,} of its values are NaN or infinite; replace them first.")
        if limits is None and not 0 <= low <= high <= 1:
            advice = f"pass --value-range with what means black and white, for example --value-range {low:g} {high:g}"
            raise RangeError(path, f"its float values run from {low:g} to {high:g}, not within 0..1; {advice}.")
    low, high = limits or (0.0, 1.0)
    wide = np.float32 if array.dtype.itemsize <= 2 else np.float64  # float32 is exact for 16 bits only
    return ((array.astype(wide) - low) / (high - low)).clip(0, 1).astype(np.float32)


def to_channels(path: str | Path, array: np.ndarray, alpha: bool, in_chans: int) -> np.ndarray:
    """(H, W, bands) → (H, W, in_chans) by the rules in ``image.py``; BandError when there is none."""
    bands = array.shape[2]
    check_bands(path, bands, alpha, in_chans)
    if bands == in_chans:
        return array
    white = 255 if array.dtype == np.uint8 else 1
    values = array.astype(np.float32)
    if alpha:
        opacity = values[..., -1:] / white
        values = values[..., :-1] * opacity + white * (1 - opacity)
    if values.shape[2] != in_chans:
        values = values @ _LUMA[:, None] if in_chans == 1 else np.repeat(values, 3, axis=2)
    return values.round().astype(np.uint8) if array.dtype == np.uint8 else values


def _band_axis(shape: tuple[int, ...], in_chans: int) -> int:
    """Which axis of a 3-D array holds the bands: the last or the first as long as ``in_chans``; if neither is, the shorter of the two."""
    if in_chans in (shape[2], shape[0]):
        return 2 if shape[2] == in_chans else 0
    return 0 if shape[0] < shape[2] else 2


def open_npy(path: str | Path, options: ReadOptions) -> np.ndarray:
    """The (H, W, K) array mapped from disk, not yet read; pickled content is refused."""
    with decoding(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3):
        raise ImageError(path, f"a picture is a 2-D or 3-D array of numbers, this is {array.dtype} of shape {array.shape}.")
    array = array[..., None] if array.ndim == 2 else np.moveaxis(array, _band_axis(array.shape, options.in_chans), 2)
    check_size(path, array.shape[0], array.shape[1], options.max_pixels)
    return array


def load_npy(path: str | Path, options: ReadOptions) -> Raw:
    """The whole array, after its header was found fit."""
    array = open_npy(path, options)
    check_bands(path, array.shape[2], False, options.in_chans)
    with decoding(path):
        return _raw(np.array(array))


def _raw(array: np.ndarray, **settings: Any) -> Raw:
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    limits = None if array.dtype.kind == "f" else (float(np.iinfo(array.dtype).min), float(np.iinfo(array.dtype).max))
    return Raw(array, limits, **settings)


@dataclass(frozen=True)
class Tiff:
    """Header of a TIFF: stored size and where the bands are. ``pixels`` is a tifffile page or series, ``axis`` its band axis."""

    pixels: Any
    axis: int | None
    height: int
    width: int
    bands: int
    dtype: np.dtype
    photometric: str
    alpha: bool
    orientation: int
    frames: int


@contextmanager
def open_tiff(path: str | Path, file: BinaryIO, options: ReadOptions) -> Iterator[Tiff]:
    """Header of a TIFF of any depth and number of bands; the pixels can be decoded while it is open."""
    import tifffile  # noqa: PLC0415  slow to import and rarely needed

    with decoding(path):
        file.seek(0)
        with tifffile.TiffFile(file) as tiff:
            page, series = tiff.pages.first, tiff.series[0]
            stack = series.ndim == 3 and page.ndim == 2
            asked = options.in_chans not in (1, 3) and options.in_chans in (series.shape[0], series.shape[-1])
            if stack and (asked or set(series.axes) & set("CQ")):  # C: channels, Q: the shape is declared but not its meaning
                pixels, axis = series, _band_axis(series.shape, options.in_chans)
            else:
                pixels, axis = page, page.axes.find("S") if page.ndim == 3 else None
            if pixels.ndim not in (2, 3) or axis == -1:
                raise ImageError(path, f"its pixels have shape {pixels.shape}; a picture has rows, columns and bands.")
            height, width = (n for i, n in enumerate(pixels.shape) if i != axis)
            bands = 1 if axis is None else pixels.shape[axis]
            alpha = [int(kind) for kind in page.extrasamples] == [2] and bands in (2, 4)  # 1, premultiplied, stays a band
            tag = page.tags.get(274)
            photometric = getattr(page.photometric, "name", str(page.photometric))
            turn = int(tag.value) if tag is not None else 1
            dtype = np.dtype(pixels.dtype)
            check_size(path, height, width, options.max_pixels)
            yield Tiff(pixels, axis, height, width, bands, dtype, photometric, alpha, turn, len(tiff.pages))


def load_tiff(path: str | Path, file: BinaryIO, options: ReadOptions) -> Raw:
    """Pixels of a TIFF that Pillow can't hold."""
    with open_tiff(path, file, options) as tiff:
        if tiff.photometric not in ("MINISBLACK", "MINISWHITE", "RGB"):
            kind = f"{tiff.dtype.name} {tiff.photometric} with {tiff.bands} bands"
            raise ImageError(path, f"a TIFF of kind {kind} has no rule to become a picture; save it as grey, RGB or plain bands.")
        check_bands(path, tiff.bands, tiff.alpha, options.in_chans)
        array = tiff.pixels.asarray()
        array = array[..., None] if tiff.axis is None else np.moveaxis(array, tiff.axis, 2)
        if array.shape != (tiff.height, tiff.width, tiff.bands):
            raise ImageError(path, f"damaged: its header promises {tiff.height}x{tiff.width}x{tiff.bands} values, it holds {array.shape}.")
        raw = _raw(array, alpha=tiff.alpha, turn=tiff.orientation if options.orientation else 1)
        return invert(raw) if tiff.photometric == "MINISWHITE" else raw


def invert(raw: Raw) -> Raw:
    """White-is-zero to black-is-zero; float files have no white to invert against."""
    if raw.limits is not None:
        low, high = (int(limit) for limit in raw.limits)
        raw.array = (low + high - raw.array.astype(np.int64)).astype(raw.array.dtype)
    return raw
