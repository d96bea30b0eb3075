"""A class on its picture, and sheets of labelled pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pyramidvit.draw.canvas import BLUE, GREEN, INK, MUTED, PAPER, RED, TRACK, shown, stack, write_line
from pyramidvit.types import ClassScores


def annotate_classes(image: np.ndarray, scores: ClassScores, truth: str | None = None) -> Image.Image:
    """The picture over a caption: file name, the five best classes with their probabilities and, if known, the true class."""
    picture = shown(image)
    return stack(picture, class_panel(max(picture.width, 384), scores, truth))


def class_panel(width: int, scores: ClassScores, truth: str | None = None) -> Image.Image:
    """File name, the five best classes with their probabilities and, if known, the true class, ``width`` pixels wide."""
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
    used = write_line(draw, verdict, (width - margin, 1.5 * unit), unit, colour, width // 2, anchor="rm")
    write_line(draw, Path(scores.path).name, (margin, 1.5 * unit), unit, MUTED, width - 3 * margin - used, keep_end=True)
    bar_left, bar_right = round(0.48 * width), width - margin - 5 * unit
    for number, (name, probability) in enumerate(rows):
        y = (3.5 + 2 * number) * unit
        fill = BLUE if truth is None else GREEN if name == truth else RED if number == 0 else MUTED
        write_line(draw, name, (margin, y), unit, INK if number == 0 or name == truth else MUTED, bar_left - 2 * margin)
        box = (bar_left, y - 0.35 * unit, bar_right, y + 0.35 * unit)
        draw.rounded_rectangle(box, unit * 0.2, TRACK)
        if (end := bar_left + (bar_right - bar_left) * probability) >= bar_left + 1:
            draw.rounded_rectangle((*box[:2], end, box[3]), min(unit * 0.2, (end - bar_left) / 2), fill)
        write_line(draw, f"{probability:.1%}", (width - margin, y), unit, INK, 4 * unit, anchor="rm")
    return panel


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
        write_line(draw, mark + caption, (x, y + side + line / 2), round(line * 0.66), colour, side)
    return sheet
