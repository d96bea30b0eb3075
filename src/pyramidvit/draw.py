"""Pictures for people: a prediction on its picture, sheets of samples, the confusion matrix and the curves of a run.

Pictures are RGB uint8 (H, W, C). Colours are told apart by colour-blind readers too (Okabe and Ito), and never carry meaning alone.
"""

import io
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pyramidvit.types import ClassScores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PAPER, INK, MUTED, TRACK = "#ffffff", "#1c2127", "#5c6670", "#e7eaee"
BLUE, GREEN, RED, ORANGE, PURPLE = "#0072b2", "#009e73", "#d55e00", "#e69f00", "#cc79a7"
LARGEST, SMALLEST = 1024, 384
"""Longest side of a shown picture: larger ones are shrunk, smaller ones enlarged by a whole factor."""


class Confusion(Protocol):
    """What confusion_picture needs: names in label order, and counts (K, K), true classes down and predicted ones across."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def confusion(self) -> np.ndarray: ...


def annotate_classes(image: np.ndarray, scores: ClassScores, truth: str | None = None) -> Image.Image:
    """The picture over a caption: file name, the five best classes with their probabilities and, if known, the true class."""
    picture = shown(image)
    width = max(picture.width, 384)
    unit = round(14 * min(max(width / 480, 1), 1.75))  # pixels of text; everything else follows
    rows = scores.top(5)
    if truth in scores.classes and truth not in dict(rows):
        rows.append((truth, float(scores.probabilities[scores.classes.index(truth)])))
    panel = Image.new("RGB", (width, unit * (3 + 2 * len(rows))), PAPER)
    draw, margin = ImageDraw.Draw(panel), unit
    verdict, colour = "", MUTED
    if truth is not None:
        right = rows[0][0] == truth
        verdict, colour = ("✓ right", GREEN) if right else (f"✗ is {truth}", RED)
    used = _write(draw, verdict, (width - margin, 1.5 * unit), unit, colour, width // 2, anchor="rm")
    _write(draw, Path(scores.path).name, (margin, 1.5 * unit), unit, MUTED, width - 3 * margin - used, keep_end=True)
    bar_left, bar_right = round(0.48 * width), width - margin - 5 * unit
    for number, (name, probability) in enumerate(rows):
        y = (3.5 + 2 * number) * unit
        fill = BLUE if truth is None else GREEN if name == truth else RED if number == 0 else MUTED
        _write(draw, name, (margin, y), unit, INK if number == 0 or name == truth else MUTED, bar_left - 2 * margin)
        box = (bar_left, y - 0.35 * unit, bar_right, y + 0.35 * unit)
        draw.rounded_rectangle(box, unit * 0.2, TRACK)
        if (end := bar_left + (bar_right - bar_left) * probability) >= bar_left + 1:
            draw.rounded_rectangle((*box[:2], end, box[3]), min(unit * 0.2, (end - bar_left) / 2), fill)
        _write(draw, f"{probability:.1%}", (width - margin, y), unit, INK, 4 * unit, anchor="rm")
    return _stack(picture, panel)


def contact_sheet(
    pictures: Sequence[np.ndarray], captions: Sequence[str], right: Sequence[bool] | None = None, *, columns: int = 6, side: int = 160
) -> Image.Image:
    """Pictures in rows, each within a square of ``side`` pixels over its caption; ``right`` marks answers as right or wrong."""
    if not pictures:
        raise ValueError("A contact sheet needs at least one picture.")
    columns, gap, line = min(columns, len(pictures)), side // 20, max(side // 7, 14)
    cell_height = side + line + gap
    sheet = Image.new("RGB", (gap + columns * (side + gap), gap + -(-len(pictures) // columns) * cell_height), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = gap + number % columns * (side + gap), gap + number // columns * cell_height
        tile = shown(image)
        factor = side / max(tile.size)
        width, height = (max(round(length * factor), 1) for length in tile.size)
        tile = tile.resize((width, height), Image.Resampling.LANCZOS if factor < 1 else Image.Resampling.NEAREST)
        draw.rectangle((x, y, x + side - 1, y + side - 1), TRACK)
        sheet.paste(tile, (x + (side - tile.width) // 2, y + (side - tile.height) // 2))
        mark, colour = ("", INK) if right is None else ("✓ ", GREEN) if right[number] else ("✗ ", RED)
        _write(draw, mark + caption, (x, y + side + line / 2), round(line * 0.66), colour, side)
    return sheet


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


def _stack(picture: Image.Image, panel: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (panel.width, picture.height + panel.height), TRACK)
    canvas.paste(picture, ((panel.width - picture.width) // 2, 0))
    canvas.paste(panel, (0, picture.height))
    return canvas


def _write(
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


def confusion_picture(result: Confusion) -> bytes:
    """PNG of the confusion matrix: shades are shares of the true class (each row adds up to 1), numbers are samples.

    Up to 25 classes have numbers in the cells and up to 60 have their names at the sides; with more, the sides count classes from 0.
    """
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.colors import PowerNorm  # noqa: PLC0415

    counts, K = result.confusion, len(result.classes)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_where(np.broadcast_to(totals == 0, counts.shape), counts / np.maximum(totals, 1))
    side = min(max(0.5 * K, 2), 0.16 * K + 4, 9)  # inches
    figure, (axes,) = _figure(side + 3, side + 2, 1)
    shades = colormaps["Blues"].with_extremes(bad=TRACK)
    mesh = axes.imshow(shares, shades, PowerNorm(0.6, 0, 1))  # the power keeps rare mistakes visible
    if K <= 60:
        size = min(9.0, 50 * side / K)
        _name_ticks(axes.yaxis, result.classes, size, 0)
        _name_ticks(axes.xaxis, result.classes, size, 90 if K > 3 else 0)
    if K <= 25:
        for true, predicted in np.argwhere(counts):
            ink = PAPER if shares[true, predicted] > 0.4 else INK
            axes.text(predicted, true, f"{counts[true, predicted]}", ha="center", va="center", color=ink, size=min(9.0, 28 * side / K))
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    bar = figure.colorbar(mesh, ax=axes, shrink=min(0.8, 3 / side), aspect=16, format="{x:.0%}", ticks=(0, 0.05, 0.2, 0.5, 1))
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    bar.outline.set_visible(False)
    bar.set_label("share of the true class", size=8, color=MUTED)
    return _png(figure)


def curves_picture(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """PNG of a run's curves over epochs, from the rows of metrics.jsonl: losses, shares from 0 to 1 such as top1, learning rate.

    Names with "loss" in them are losses and ``lr`` is the learning rate; of the others those are drawn whose values are all from 0 to 1.
    A row may lack a name, for instance in epochs without evaluation.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("epoch", "step")]
    curves = {name: [(row["epoch"], row[name]) for row in rows if isinstance(row.get(name), int | float)] for name in names}
    losses = {name: points for name, points in curves.items() if "loss" in name and points}
    rate = {name: points for name, points in curves.items() if name == "lr" and points}
    others = {name: points for name, points in curves.items() if name not in losses and name not in rate and points}
    shares = {name: points for name, points in others.items() if all(0 <= value <= 1 for _, value in points)}
    panels = [(title, group) for title, group in (("loss", losses), ("share", shares), ("learning rate", rate)) if group]
    if not panels:
        raise ValueError("There is no curve to draw: the rows hold no loss, no share and no learning rate.")
    figure, all_axes = _figure(7, 1.9 * len(panels) + 0.3, len(panels))
    for axes, (title, group) in zip(all_axes, panels, strict=True):
        for (name, points), colour, dash in zip(group.items(), cycle((BLUE, RED, GREEN, PURPLE, ORANGE)), cycle(("-", "--", "-.", ":"))):
            places, values = zip(*points, strict=True)
            axes.plot(places, values, dash, color=colour, label=name, linewidth=1.6, marker="o", markersize=4 if len(points) < 25 else 0)
        axes.set_ylabel(title)
        axes.grid(color=TRACK)
        if group is not rate:
            axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    epochs = [row["epoch"] for row in rows]
    all_axes[-1].set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    all_axes[-1].set_xlabel("epoch")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return _png(figure)


def _figure(width: float, height: float, panels: int) -> "tuple[Figure, list[Axes]]":
    """A figure in inches with panels above each other; free of pyplot, whose state is shared by the whole process."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure((width, height), dpi=150, facecolor=PAPER, layout="constrained")
    columns = figure.subplots(panels, sharex=True, squeeze=False)[:, 0]
    for axes in columns:
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=MUTED, labelsize=8, length=0)
        axes.xaxis.label.set(color=INK, size=9)
        axes.yaxis.label.set(color=INK, size=9)
    return figure, list(columns)


def _name_ticks(axis: "Axis", names: Sequence[str], size: float, turn: float) -> None:
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415

    texts, paths = zip(*(typeset(shorten(name, 24)) for name in names), strict=True)
    axis.set_ticks(range(len(names)), texts, rotation=turn, parse_math=False)
    for label, path in zip(axis.get_ticklabels(), paths, strict=True):
        label.set_fontproperties(FontProperties(fname=path, size=size))


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.15)
    return buffer.getvalue()


def encode_png(picture: Image.Image) -> bytes:
    """A picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
