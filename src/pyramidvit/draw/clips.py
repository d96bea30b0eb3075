"""Clips for people: frames in a row with their times, the classes below them, and what happens when in a long video."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pyramidvit.draw.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RED, TRACK, shown, write_line
from pyramidvit.draw.classes import class_panel
from pyramidvit.types import ClassScores, Film, Timeline

_WIDTH, _FRAMES, _GAP, _TEXT = 1280, 8, 4, 16
_ROWS = 8
"""Classes that a timeline names."""
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)


def annotate_clip(film: Film, scores: ClassScores, truth: str | None = None) -> Image.Image:
    """Up to eight frames in a row with their times, over the file name and the best classes."""
    strip = film_strip(film)
    return _stacked([strip, class_panel(strip.width, scores, truth)])


def film_strip(film: Film, frames: int = _FRAMES, width: int = _WIDTH) -> Image.Image:
    """Up to ``frames`` different frames in the order of their times, evenly chosen, each over its time."""
    order = np.argsort(film.times, kind="stable")
    order = order[np.unique(film.times[order].round(3), return_index=True)[1]]
    chosen = order[np.linspace(0, len(order) - 1, min(frames, len(order))).round().astype(int)]
    side = (width - _GAP) // frames - _GAP
    tiles = [_tile(film.frames[number], side) for number in chosen]
    height = max(tile.height for tile in tiles)
    strip = Image.new("RGB", (max(_GAP + len(tiles) * (side + _GAP), 384), height + 2 * _GAP + _TEXT + _GAP), PAPER)
    draw = ImageDraw.Draw(strip)
    for place, (tile, number) in enumerate(zip(tiles, chosen, strict=True)):
        x = _GAP + place * (side + _GAP)
        strip.paste(tile, (x + (side - tile.width) // 2, _GAP + (height - tile.height) // 2))
        write_line(draw, f"{film.times[number]:.2f} s", (x + side / 2, height + 2 * _GAP + _TEXT / 2), 13, MUTED, side, anchor="mm")
    return strip


def mosaic(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Four frames (H, W, C) of a clip as one picture, row by row."""
    first, second, third, fourth = (frames[len(frames) * (2 * place + 1) // 8] for place in range(4))
    return np.concatenate([np.concatenate([first, second], 1), np.concatenate([third, fourth], 1)], 0)


def annotate_timeline(film: Film, timeline: Timeline) -> Image.Image:
    """Frames over time, and a row for each of the classes that are the best somewhere: as high as they are probable."""
    strip = film_strip(film)
    width, name_width, row, margin = _WIDTH, 200, 34, 16
    best = timeline.probabilities.argmax(1).tolist()
    spans = list(pairwise(timeline.borders()))
    lengths = {label: sum(end - begin for (begin, end), one in zip(spans, best, strict=True) if one == label) for label in best}
    labels = sorted(lengths, key=lambda label: -lengths[label])[:_ROWS]
    panel = Image.new("RGB", (width, 2 * margin + _TEXT + row * len(labels) + 2 * _TEXT), PAPER)
    draw = ImageDraw.Draw(panel)
    write_line(draw, Path(timeline.path).name, (margin, margin), 14, MUTED, width - 2 * margin, keep_end=True)
    left, right, top = margin + name_width, width - margin, margin + _TEXT
    scale = (right - left) / max(timeline.duration, 1e-9)
    for number, label in enumerate(labels):
        bottom = top + (number + 1) * row
        write_line(draw, timeline.classes[label], (margin, bottom - row / 2), 14, INK, name_width - margin)
        draw.rectangle((left, bottom - row + 6, right, bottom), TRACK)
        for (begin, end), share, one in zip(spans, timeline.probabilities[:, label].tolist(), best, strict=True):
            box = left + begin * scale, bottom - share * (row - 6), left + end * scale, bottom
            if box[2] - box[0] >= 1 and box[3] - box[1] >= 1:
                draw.rectangle(box, _COLOURS[number % len(_COLOURS)] if one == label else MUTED)
    foot = top + len(labels) * row
    for share, anchor in ((0, "lm"), (0.25, "mm"), (0.5, "mm"), (0.75, "mm"), (1, "rm")):
        x = left + share * (right - left)
        draw.line((x, foot, x, foot + 5), MUTED)
        write_line(draw, f"{share * timeline.duration:.1f} s", (x, foot + _TEXT), 13, MUTED, 100, anchor=anchor)
    return _stacked([strip, panel])


def _tile(frame: np.ndarray, width: int) -> Image.Image:
    tile = shown(frame)
    height = min(max(round(tile.height * width / tile.width), 1), 2 * width)
    width = max(round(tile.width * height / tile.height), 1)
    return tile.resize((width, height), Image.Resampling.LANCZOS if width < tile.width else Image.Resampling.BICUBIC)


def _stacked(parts: Sequence[Image.Image]) -> Image.Image:
    canvas = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), PAPER)
    y = 0
    for part in parts:
        canvas.paste(part, ((canvas.width - part.width) // 2, y))
        y += part.height
    return canvas
