"""Boxes, masks and label maps on their picture, with a legend. Sizes follow the picture, so that all stays legible.

Shapes: N objects, K classes, H W pixels of the original picture; the picture drawn on may be larger or smaller (see `shown`).
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from pyramidvit.draw.canvas import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    RED,
    SMALLEST,
    shorten,
    shown,
    stack,
    typeset,
    write_line,
)
from pyramidvit.geometry import decode_rle
from pyramidvit.types import BoxTarget, Detections, MaskTarget, SegMap

MOST_ENTRIES, CROWDED = 48, 20
SHADE = 0.5
"""How much of the picture a mask covers."""

UNTINTED = ("background", "_background_", "unlabeled", "unlabelled")
"""Classes that leave the picture as it is."""

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]


@lru_cache(maxsize=16)
def class_colours(number: int) -> tuple[Colour, ...]:
    """One colour (red, green, blue) per class: the first are told apart by colour-blind readers too, each further one is as far from all
    before as it gets. A class has the same colour however many follow; beyond some thousand they repeat.
    """
    steps = np.arange(15, 256, 16)
    candidates = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    places = _oklab(candidates)
    vivid = (np.hypot(places[:, 1], places[:, 2]) > 0.07) & (places[:, 0] > 0.45) & (places[:, 0] < 0.92)
    candidates, places = candidates[vivid], places[vivid]
    colours = list(map(ImageColor.getrgb, (BLUE, ORANGE, GREEN, PURPLE, RED, "#56b4e9", "#f0e442")))
    nearest = np.linalg.norm(places[:, None] - _oklab(np.array(colours)), axis=2).min(axis=1)
    while len(colours) < min(number, len(candidates)):
        best = int(nearest.argmax())
        colours.append(tuple(candidates[best].tolist()))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return tuple((r, g, b) for r, g, b, *_ in (colours[index % len(colours)] for index in range(number)))


def _oklab(colours: np.ndarray) -> np.ndarray:
    """Colours (..., 3) of 0 to 255 as lightness, green to red, blue to yellow, evenly spaced to the eye (B. Ottosson 2020)."""
    linear = ((colours / 255 + 0.055) / 1.055) ** 2.4
    cones = linear @ np.array([[0.41222, 0.21190, 0.08830], [0.53633, 0.68070, 0.28172], [0.05145, 0.10740, 0.62998]])
    return np.cbrt(cones) @ np.array([[0.21045, 1.97800, 0.02590], [0.79362, -2.42859, 0.78277], [-0.00407, 0.45059, -0.80868]])


def annotate_detections(
    image: np.ndarray, detections: Detections, truth: BoxTarget | None = None, *, min_score: float = 0.3, legend: bool = True
) -> Image.Image:
    """The picture with boxes in the colours of their classes, name and score on each, masks half transparent, and a legend.

    Findings below ``min_score`` are left out and counted in the legend. True objects are dashed boxes. Where many objects are found, small
    ones have no name on them.
    """
    picture = shown(image)
    factor = picture.width / image.shape[1], picture.height / image.shape[0]
    found = detections.above(min_score)
    colours = class_colours(len(detections.classes))
    labels = found.labels.tolist()
    if found.masks is not None:
        bitmaps = [_fitted(decode_rle(mask).numpy(), picture.size) for mask in found.masks]
        picture = _tint(picture, bitmaps[::-1], [colours[label] for label in labels[::-1]])  # the best is drawn last, on top
    draw, line, text = ImageDraw.Draw(picture), _line(picture), _text(picture)
    boxes = [_scaled(box, factor) for box in found.boxes.tolist()]
    if truth is not None:
        for box in truth.boxes.tolist():
            _dashed(draw, _scaled(box, factor), line)
    for box, label in reversed(list(zip(boxes, labels, strict=True))):
        draw.rectangle((box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1), outline=INK)  # sets it off from a picture of its own colour
        draw.rectangle(box, outline=colours[label], width=line)
    taken, crowded = list[Box](), len(found) > CROWDED
    for box, label, score in zip(boxes, labels, found.scores.tolist(), strict=True):
        place = _tag(draw, f"{detections.classes[label]} {score:.2f}", box, colours[label], text, picture.size, taken, spare=crowded)
        if place:
            taken.append(place)
    if not legend:
        return picture
    hidden = len(detections) - len(found)
    notes = [f"{len(found)} found" + (f", {hidden} below score {min_score:.2g} not shown" if hidden else "")]
    notes += [f"{len(truth.labels)} true objects: dashed"] if truth is not None else []
    counts = {label: labels.count(label) for label in sorted(set(labels))}
    entries = [(f"{count} × {detections.classes[label]}", colours[label]) for label, count in counts.items()]
    return _with_legend(picture, detections.path, notes, entries)


def annotate_segmentation(image: np.ndarray, prediction: SegMap, truth: MaskTarget | None = None, *, legend: bool = True) -> Image.Image:
    """The picture tinted in the colours of its classes, with a legend of those that are there; with ``truth``, that beside it.

    A class called background stays as it is in the picture. Pixels of the truth that have no label (255) are grey.
    """
    picture, K = shown(image), len(prediction.classes)
    colours = class_colours(K)
    panels = [_tinted_map(picture, prediction.labels.numpy(), prediction.classes)]
    if truth is not None:
        panels.append(_tinted_map(picture, truth.labels.cpu().numpy(), prediction.classes))
    gap = _line(picture)
    sheet = Image.new("RGB", (len(panels) * picture.width + (len(panels) - 1) * gap, picture.height), PAPER)
    for number, panel in enumerate(panels):
        sheet.paste(panel, (number * (picture.width + gap), 0))
    if not legend:
        return sheet
    paint = {name: PAPER if name.lower() in UNTINTED else colour for name, colour in zip(prediction.classes, colours, strict=True)}
    entries = [(f"{share:.1%} {name}", paint[name]) for name, share in prediction.shares().items()]
    return _with_legend(sheet, prediction.path, ["left: predicted, right: true"] if truth is not None else [], entries)


def _tinted_map(picture: Image.Image, labels: np.ndarray, classes: Sequence[str]) -> Image.Image:
    """Label maps (H, W) are resized without mixing labels; thin light lines part the classes."""
    width, height = picture.size
    rows, columns = (np.arange(n) * size // n for n, size in zip((height, width), labels.shape, strict=True))
    labels = labels[rows[:, None], columns]
    table = np.full((256 if len(classes) <= 255 else len(classes), 3), ImageColor.getrgb(MUTED), np.uint8)
    table[: len(classes)] = class_colours(len(classes))
    pixels = np.asarray(picture, np.float32)
    tinted = pixels * (1 - SHADE) + table[labels] * np.float32(SHADE)
    plain = np.isin(labels, [label for label, name in enumerate(classes) if name.lower() in UNTINTED])
    tinted[plain] = pixels[plain]
    edge = np.zeros(labels.shape, bool)
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    edge[1:] |= labels[1:] != labels[:-1]
    tinted[edge] = 0.35 * tinted[edge] + 0.65 * 255
    return Image.fromarray(tinted.astype(np.uint8))


def _tint(picture: Image.Image, masks: Sequence[np.ndarray], colours: Sequence[Colour]) -> Image.Image:
    pixels = np.asarray(picture, np.float32).copy()
    for mask, colour in zip(masks, colours, strict=True):
        pixels[mask] = pixels[mask] * (1 - SHADE) + np.asarray(colour, np.float32) * SHADE
    return Image.fromarray(pixels.astype(np.uint8))


def _fitted(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A bitmap (H, W) at the size (width, height) of the picture that is drawn on."""
    rows, columns = (np.arange(n) * length // n for n, length in zip(size[::-1], mask.shape, strict=True))
    return mask[rows[:, None], columns]


def _line(picture: Image.Image) -> int:
    return max(2, round(max(picture.size) / 400))


def _text(picture: Image.Image) -> int:
    """Height of text in pixels."""
    return min(max(round(max(picture.size) / 55), 11), 18)


def _scaled(box: Sequence[float], factor: tuple[float, float]) -> Box:
    left, right = sorted((box[0] * factor[0], box[2] * factor[0]))
    top, bottom = sorted((box[1] * factor[1], box[3] * factor[1]))
    return left, top, max(right - 1, left), max(bottom - 1, top)


def _dashed(draw: ImageDraw.ImageDraw, box: Box, line: int) -> None:
    left, top, right, bottom = box
    dash = 4 * line
    for start, colour in ((0, PAPER), (dash, INK)):
        for x in np.arange(left + start, right, 2 * dash):
            for y in (top, bottom):
                draw.line((x, y, min(x + dash, right), y), colour, line)
        for y in np.arange(top + start, bottom, 2 * dash):
            for x in (left, right):
                draw.line((x, y, x, min(y + dash, bottom)), colour, line)


def _tag(
    draw: ImageDraw.ImageDraw, words: str, box: Box, colour: Colour, text: int, size: tuple[int, int], taken: Sequence[Box], *, spare: bool
) -> Box | None:
    """Words on the class's colour at the first free place at the box: above, inside, below it. None: there is none, and no words.

    ``spare`` leaves out words that would cover more than the object.
    """
    words, path = typeset(shorten(words, 32))
    font = ImageFont.truetype(path, text)
    width, height = font.getlength(words) + text * 0.6, text * 1.35
    if spare and width * height > (box[2] - box[0]) * (box[3] - box[1]):
        return None
    left = min(max(box[0], 0), size[0] - width)
    for top in (box[1] - height, box[1], box[3] - height, box[3]):
        place = (left, top, left + width, top + height)
        if 0 <= top <= size[1] - height and not any(_touch(place, other) for other in taken):
            draw.rectangle(place, colour)
            draw.text((left + text * 0.3, top + height / 2), words, _ink_on(colour), font, "lm")
            return place
    return None


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _ink_on(colour: Colour) -> str:
    red, green, blue = colour
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else PAPER


def _with_legend(picture: Image.Image, path: str, notes: Sequence[str], entries: Sequence[tuple[str, Colour | str]]) -> Image.Image:
    """A panel below the picture: the file's name, notes, and a coloured square for each entry, in as many columns as fit."""
    width = max(picture.width, SMALLEST)
    unit = _text(picture)
    shown_entries, more = entries[:MOST_ENTRIES], len(entries) - MOST_ENTRIES
    columns = max(1, min(width // (11 * unit), len(shown_entries)))
    rows = -(-len(shown_entries) // columns)
    lines = [*notes, *([f"and {more} more classes"] if more > 0 else [])]
    panel = Image.new("RGB", (width, round(unit * (2.4 + 1.6 * (rows + len(lines))))), PAPER)
    draw, y = ImageDraw.Draw(panel), unit * 1.4
    write_line(draw, Path(path).name, (unit, y), unit, INK, width - 2 * unit, keep_end=True)
    for line in lines:
        y += unit * 1.6
        write_line(draw, line, (unit, y), unit, MUTED, width - 2 * unit)
    cell = (width - 2 * unit) / columns
    for number, (words, colour) in enumerate(shown_entries):
        x, middle = unit + number % columns * cell, y + unit * 1.6 * (1 + number // columns)
        draw.rectangle((x, middle - unit / 2, x + unit, middle + unit / 2), colour, MUTED)
        write_line(draw, words, (x + 1.5 * unit, middle), unit, INK, cell - 2.5 * unit)
    return stack(picture, panel)
