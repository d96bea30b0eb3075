"""What all pictures for people share: colours, the picture on a canvas, one line of text in a font that has its characters.

Pictures are RGB uint8 (H, W, C). Colours are told apart by colour-blind readers too (Okabe and Ito), and never carry meaning alone.
"""

import io
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAPER, INK, MUTED, TRACK = "#ffffff", "#1c2127", "#5c6670", "#e7eaee"
BLUE, GREEN, RED, ORANGE, PURPLE = "#0072b2", "#009e73", "#d55e00", "#e69f00", "#cc79a7"
LARGEST, SMALLEST = 1024, 384
"""Longest side of a shown picture: larger ones are shrunk, smaller ones enlarged by a whole factor."""


def shown(image: np.ndarray) -> Image.Image:
    """An array (H, W, C) uint8 as RGB of a size to look at: one or two channels as grey, of more than three the first three."""
    if image.ndim != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"A picture to draw on is (H, W, C) uint8 with at least one pixel, got {image.shape} {image.dtype}.")
    channels = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, axis=2)
    picture = Image.fromarray(np.ascontiguousarray(channels))
    factor = SMALLEST // max(picture.size)
    if factor > 1:
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return picture


def stack(picture: Image.Image, panel: Image.Image) -> Image.Image:
    """The picture, centred, above a panel that is at least as wide."""
    canvas = Image.new("RGB", (panel.width, picture.height + panel.height), TRACK)
    canvas.paste(picture, ((panel.width - picture.width) // 2, 0))
    canvas.paste(panel, (0, picture.height))
    return canvas


def write_line(
    draw: ImageDraw.ImageDraw,
    text: str,
    place: tuple[float, float],
    size: int,
    colour: str,
    width: float,
    *,
    anchor: str = "lm",
    keep_end: bool = False,
) -> float:
    """Write one line within ``width`` pixels, cut with an ellipsis at the end or in the middle; returns the width used."""
    text, path = typeset(text)
    font = ImageFont.truetype(path, size)
    if font.getlength(text) > width:
        fitting = bisect_right(range(len(text)), width, key=lambda length: font.getlength(shorten(text, length, keep_end=keep_end)))
        text = shorten(text, max(fitting - 1, 0), keep_end=keep_end)
    draw.text(place, text, colour, font, anchor)
    return font.getlength(text)


def shorten(text: str, length: int, *, keep_end: bool = False) -> str:
    """At most ``length`` characters and an ellipsis for what is missing: at the end, or in the middle to keep a file's ending."""
    if len(text) <= length:
        return text
    tail = length // 2 if keep_end else 0
    return text[: length - tail] + "…" + text[len(text) - tail :]


def typeset(text: str) -> tuple[str, str]:
    """The text on one line and the font file to draw it with: DejaVu Sans, or the first installed font that has all its characters.

    Characters that can't be printed or that no font has become "□".
    """
    import matplotlib  # noqa: PLC0415 - brings the font; slow to import

    text = "".join(c if c.isprintable() else "□" for c in text[:500])
    default = f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf"
    missing = {c for c in text if ord(c) not in _glyphs(default)}
    if not missing:
        return text, default
    if path := _installed_font("".join(sorted(set(text)))):
        return text, path
    return "".join("□" if c in missing else c for c in text), default


@lru_cache(maxsize=512)
def _installed_font(characters: str) -> str | None:
    from matplotlib.font_manager import fontManager  # noqa: PLC0415

    paths = (entry.fname for entry in fontManager.ttflist if "LastResort" not in entry.fname)  # that one draws code points as boxes
    return next((path for path in paths if _glyphs(path).issuperset(map(ord, characters))), None)


@lru_cache(maxsize=512)
def _glyphs(path: str) -> frozenset[int]:
    """Code points that a scalable font file draws; none for a file that can't be used."""
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def encode_png(picture: Image.Image, level: int = 6) -> bytes:
    """A picture as the bytes of a PNG file; ``level`` of compression from 1, three times as fast for photos, to 9, a little smaller."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=level)
    return buffer.getvalue()
