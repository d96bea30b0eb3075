"""Generated pictures with exact labels: overlapping shapes on textured backgrounds, for the demo and the tests.

A picture's class is the shape that covers most of the visible pixels: one large object, often with a smaller one of its kind. Small
objects of other shapes distract and overlap it; colour, texture, place and rotation say nothing about the class. In piles nothing is main:
several objects of about the same size hide parts of each other.
Shapes: H W pixels, N visible objects. All randomness comes from the seed and the picture's number.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pyramidvit.errors import UserError
from pyramidvit.geometry import masks_to_boxes
from pyramidvit.types import BoxTarget, ClassTarget, MaskTarget

Array = np.ndarray


def _box(x: Array, y: Array, half_width: float, half_height: float) -> Array:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _disc(x: Array, y: Array, radius: float) -> Array:
    return np.hypot(x, y) - radius


def _heart(x: Array, y: Array) -> Array:
    x, y = np.abs(x), y - 0.17
    lobe = _disc(x - 0.4, y + 0.4, 0.53)
    tip = np.maximum((x + y) * math.sqrt(0.5) - 0.53, np.abs(x - y) * math.sqrt(0.5) - 0.57)
    return np.minimum(lobe, np.maximum(tip, -y - 0.4))


def _star(x: Array, y: Array) -> Array:
    sector = 2 * math.pi / 5
    angle = np.abs((np.arctan2(x, -y) + sector / 2) % sector - sector / 2)  # 0 at a tip, half a sector at a notch
    radius = np.hypot(x, y)
    normal = math.atan2(1 - 0.42 * math.cos(sector / 2), 0.42 * math.sin(sector / 2))  # of the edge from tip to notch
    return radius * np.cos(angle - normal) - math.cos(normal)


def _triangle(x: Array, y: Array) -> Array:
    return np.maximum(y, np.abs(x) * math.sqrt(0.75) - y * 0.5) - 0.5


SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "crescent": lambda x, y: np.maximum(_disc(x, y, 0.95), -_disc(x - 0.45, y, 0.75)),
    "cross": lambda x, y: np.minimum(_box(x, y, 0.92, 0.27), _box(x, y, 0.27, 0.92)),
    "disc": lambda x, y: _disc(x, y, 0.85),
    "heart": _heart,
    "ring": lambda x, y: np.abs(_disc(x, y, 0.68)) - 0.24,
    "square": lambda x, y: _box(x, y, 0.7, 0.7),
    "star": _star,
    "triangle": _triangle,
}
"""Signed distance to the outline of each shape (below 0 inside), which lies within the unit circle; y points down."""

SCENE_CLASSES = tuple(SHAPES)
"""Names of the labels of pictures and objects; in alphabetical order, as class folders are read."""
MASK_CLASSES = ("background", *SCENE_CLASSES)
"""Names of the labels in semantic masks."""
PILE_CLASSES = ("cross", "disc", "ring")
"""Names of the labels of objects in piles: few, since telling shapes apart is what takes long to learn."""


@dataclass(frozen=True)
class Scene:
    """One picture and its truth. ``image`` (H, W, 3) uint8 RGB.

    ``boxes`` lists every object with at least one visible pixel, back to front: its tight box, its SCENE_CLASSES label and its visible
    pixels as a mask. ``mask`` labels each pixel with MASK_CLASSES. A pixel belongs to the front object that covers half of it or more.
    In piles labels count PILE_CLASSES, and ``label`` is the class of most visible pixels.
    """

    image: Array
    label: ClassTarget
    boxes: BoxTarget
    mask: MaskTarget


@dataclass(frozen=True)
class _Object:
    shape: int  # among the classes of its scene
    x: float
    y: float
    radius: float
    angle: float


def scenes(count: int, *, size: tuple[int, int] = (96, 96), seed: int) -> Iterator[Scene]:
    """``count`` pictures of (height, width) ``size``, classes in turn; number i is the same whatever the count."""
    _check_size(size)
    for index in range(count):
        yield _scene(np.random.default_rng((seed, index)), index % len(SHAPES), size)


def write_scenes(folder: Path, *, train: int, val: int, size: tuple[int, int] = (96, 96), seed: int = 0) -> None:
    """Class folders of PNG files, ``train/<class>/*.png`` and ``val/<class>/*.png``, from different seeds; classes equal within one."""
    splits = (("train", train, 2 * seed), ("val", val, 2 * seed + 1))
    for split, count, _ in splits:
        if count < len(SHAPES):
            raise UserError(f"{split} needs at least one scene of each of the {len(SHAPES)} classes, got {count} scenes.")
        if (folder / split).exists():
            raise UserError(f"{folder / split} exists already: scenes are written to a new folder only, so that two sets never mix.")
    for split, count, split_seed in splits:
        for name in SHAPES:
            (folder / split / name).mkdir(parents=True)
        for index, scene in enumerate(scenes(count, size=size, seed=split_seed)):
            path = folder / split / SCENE_CLASSES[scene.label.label] / f"{index:06d}.png"
            Image.fromarray(scene.image).save(path, compress_level=1)


def piles(count: int, *, size: tuple[int, int] = (96, 96), seed: int) -> Iterator[Scene]:
    """``count`` pictures of (height, width) ``size`` with four to six objects each; number i is the same whatever the count."""
    _check_size(size)
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        yield _draw(rng, _pile(rng, size), size, PILE_CLASSES)


def _check_size(size: tuple[int, int]) -> None:
    if min(size) < 32:
        raise UserError(f"Scenes need a height and width of at least 32 pixels, got {size[0]}x{size[1]}.")


def _scene(rng: np.random.Generator, label: int, size: tuple[int, int]) -> Scene:
    while True:  # rarely the distractors hide too much of the main shape: draw another one
        scene = _draw(rng, _arrange(rng, label, size), size, SCENE_CLASSES)
        per_class = _pixels(scene.mask, SCENE_CLASSES)
        if per_class[label] >= max(2 * np.delete(per_class, label).max(), 0.08 * min(size) ** 2):
            return scene


def _draw(rng: np.random.Generator, objects: list[_Object], size: tuple[int, int], classes: tuple[str, ...]) -> Scene:
    """The picture of these objects, from back to front, and its truth."""
    image, owner = _paint(rng, objects, size, classes)
    visible = np.flatnonzero(np.bincount(owner.ravel() + 1, minlength=len(objects) + 1)[1:])
    masks = torch.from_numpy(owner == visible[:, None, None])
    labels = torch.tensor([objects[i].shape for i in visible])
    semantic = MaskTarget(torch.from_numpy(np.array([0, *(o.shape + 1 for o in objects)], dtype=np.uint8)[owner + 1]))
    boxes = BoxTarget(masks_to_boxes(masks), labels, masks)
    return Scene(image, ClassTarget(int(_pixels(semantic, classes).argmax())), boxes, semantic)


def _pixels(mask: MaskTarget, classes: tuple[str, ...]) -> Array:
    """Visible pixels of each class."""
    return np.bincount(mask.labels.numpy().ravel(), minlength=len(classes) + 1)[1:]


def _pile(rng: np.random.Generator, size: tuple[int, int]) -> list[_Object]:
    """Four to six objects of any of the shapes, each as likely to hide another as to be hidden."""
    H, W = size
    return [
        _place(
            rng,
            int(rng.integers(len(PILE_CLASSES))),
            rng.uniform(0.05, 0.95) * W,
            rng.uniform(0.05, 0.95) * H,
            min(size) * rng.uniform(0.13, 0.23),
        )
        for _ in range(int(rng.integers(4, 7)))
    ]


def _arrange(rng: np.random.Generator, label: int, size: tuple[int, int]) -> list[_Object]:
    """A large object of the main shape, often a smaller one too, and one to three small ones of other shapes, in random order."""
    (H, W), short = size, min(size)
    main = _place(rng, label, rng.uniform(0.3, 0.7) * W, rng.uniform(0.3, 0.7) * H, short * rng.uniform(0.26, 0.42))
    objects = [main]
    if rng.random() < 0.4:
        objects.append(_place(rng, label, rng.uniform(0, W), rng.uniform(0, H), short * rng.uniform(0.1, 0.2)))
    for _ in range(int(rng.integers(1, 4))):
        shape = (label + int(rng.integers(1, len(SHAPES)))) % len(SHAPES)
        x, y = rng.uniform(0, W), rng.uniform(0, H)
        if rng.random() < 0.5:  # on the rim of the main object
            towards = rng.uniform(0, 2 * math.pi)
            x, y = main.x + main.radius * math.cos(towards), main.y + main.radius * math.sin(towards)
        objects.append(_place(rng, shape, x, y, short * rng.uniform(0.08, 0.14)))
    return [objects[i] for i in rng.permutation(len(objects))]


def _place(rng: np.random.Generator, shape: int, x: float, y: float, radius: float) -> _Object:
    return _Object(shape, x, y, radius, math.radians(rng.uniform(-45, 45)))


def _paint(rng: np.random.Generator, objects: list[_Object], size: tuple[int, int], classes: tuple[str, ...]) -> tuple[Array, Array]:
    """The picture (H, W, 3) uint8, and the number of the object that each pixel shows (H, W), -1 for the background."""
    H, W = size
    low, high = two_colours(rng)
    canvas = low + texture(rng, size)[..., None] * (high - low)
    owner = np.full(size, -1)
    for number, item in enumerate(objects):
        top, left = max(int(item.y - item.radius) - 1, 0), max(int(item.x - item.radius) - 1, 0)
        bottom, right = min(int(item.y + item.radius) + 2, H), min(int(item.x + item.radius) + 2, W)
        if top >= bottom or left >= right:  # outside the picture
            continue
        y, x = np.ogrid[top:bottom, left:right]
        dx, dy = ((z + 0.5 - middle).astype(np.float32) / item.radius for z, middle in ((x, item.x), (y, item.y)))  # of pixel centres
        cos, sin = math.cos(item.angle), math.sin(item.angle)
        distance = item.radius * SHAPES[classes[item.shape]](cos * dx + sin * dy, cos * dy - sin * dx)  # pixels
        coverage = np.clip(0.5 - distance, 0, 1)
        shade = 1 + rng.uniform(-0.15, 0.15) * dx + rng.uniform(-0.15, 0.15) * dy
        patch = canvas[top:bottom, left:right]
        patch += coverage[..., None] * (shade[..., None] * contrasting(rng, low, high) - patch)
        owner[top:bottom, left:right][coverage >= 0.5] = number
    canvas += rng.uniform(0, 0.03) * rng.standard_normal((H, W, 1), dtype=np.float32)
    return (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8), owner


def two_colours(rng: np.random.Generator) -> tuple[Array, Array]:
    """The background's two colours, muted and not far from each other, so that objects stand out."""
    first = (rng.random(3, dtype=np.float32) + rng.random(dtype=np.float32)) / 2
    return first, np.clip(first + 0.7 * rng.random(3, dtype=np.float32) - 0.35, 0, 1)


def contrasting(rng: np.random.Generator, low: Array, high: Array) -> Array:
    """A colour that can be told from everything between the two of the background: the first of eight that is far enough."""
    colours = rng.random((8, 3), dtype=np.float32)
    between = np.stack((low, (low + high) / 2, high))
    distance = np.linalg.norm(colours[:, None] - between, axis=2).min(axis=1)
    return colours[np.argmax(np.minimum(distance, 0.5))]


def texture(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """A field (H, W) float32 from 0 to 1: gradient, stripes, checks, dots or smooth noise."""
    H, W = size
    kind = int(rng.integers(5))
    if kind == 4:
        cells = int(rng.integers(3, 9))
        grid = rng.random((cells, cells), dtype=np.float32)
        return _interpolation(H, cells) @ grid @ _interpolation(W, cells).T
    angle, phases, waves = rng.uniform(0, 2 * math.pi), rng.random(2, dtype=np.float32), rng.uniform(2, 7)
    x, y = np.arange(W, dtype=np.float32) / min(size), np.arange(H, dtype=np.float32)[:, None] / min(size)
    along = math.cos(angle) * x + math.sin(angle) * y
    if kind == 0:
        return (along - along.min()) / np.ptp(along)
    across = math.cos(angle) * y - math.sin(angle) * x
    first = np.sin(2 * math.pi * (waves * along + phases[0]))
    if kind == 1:
        return 0.5 + 0.5 * first
    second = np.sin(2 * math.pi * (waves * across + phases[1]))
    if kind == 2:
        return 0.5 + 0.5 * np.clip(8 * first * second, -1, 1)
    return np.clip(4 * (first + second) - 3, 0, 1)


def _interpolation(pixels: int, cells: int) -> Array:
    """Weights (pixels, cells) that spread values at ``cells`` evenly spaced points over the pixels, linearly."""
    place = np.linspace(0, cells - 1, pixels, dtype=np.float32)[:, None]
    return np.maximum(1 - np.abs(place - np.arange(cells, dtype=np.float32)), 0)
