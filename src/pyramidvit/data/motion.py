"""Generated clips whose class is only in the motion, for the demo and the tests.

One shape moves over a still, textured background: left, right, up or down, growing, shrinking, or turning. A single frame says nothing
about the class, because place, size and angle of the shape run on circles, each from a point drawn evenly, and the class only decides which
of them runs, and which way. What leaves the picture on one side comes in on the other; what has grown to the largest size fades and starts
anew as the smallest. So in every frame, the first and the last included, place, size and angle are spread evenly for every class. And a
clip played backwards is a clip of the opposite class, so frames in a random order tell what moves, but not which way.

T frames, H W pixels. All randomness comes from the seed and the clip's number.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from pyramidvit.data.scenes import SHAPES, contrasting, texture, two_colours
from pyramidvit.data.stream import load_av
from pyramidvit.errors import UserError

Array = np.ndarray

MOTION_CLASSES = ("anticlockwise", "clockwise", "down", "grow", "left", "right", "shrink", "up")
"""In alphabetical order, as class folders are read."""
OPPOSITE = {"anticlockwise": "clockwise", "down": "up", "grow": "shrink", "left": "right"}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}

_SHAPE = SHAPES["heart"]
"""Looks the same only after a whole turn."""
_SMALLEST, _LARGEST = 0.2, 0.42  # of the short side; the largest shape still fits on the circle
_FADE = 0.03


@dataclass(frozen=True)
class Track:
    """Where the shape is in each of T frames: ``x``, ``y`` in shares of width and height, ``size`` from the smallest, 0, to the largest, 1,
    and ``angle`` in turns, all in [0, 1).
    """

    x: Array
    y: Array
    size: Array
    angle: Array


@dataclass(frozen=True)
class MotionClip:
    """``frames`` (T, H, W, 3) uint8 RGB, ``label`` the place of its class in MOTION_CLASSES."""

    frames: Array
    label: int


def motion_clips(count: int, *, frames: int = 16, size: tuple[int, int] = (64, 64), seed: int) -> Iterator[MotionClip]:
    """``count`` clips, classes in turn; number i is the same whatever the count."""
    if min(size) < 32 or frames < 2:
        raise UserError(f"Motion needs pictures of at least 32x32 pixels and 2 frames, got {size[0]}x{size[1]} and {frames} frames.")
    for index in range(count):
        rng, label = np.random.default_rng((seed, index)), index % len(MOTION_CLASSES)
        yield MotionClip(_paint(rng, draw_track(rng, MOTION_CLASSES[label], frames), size), label)


def draw_track(rng: np.random.Generator, name: str, frames: int) -> Track:
    """Place, size and angle of one clip of a class: three rest where they were drawn, one runs."""
    starts = rng.random(4)
    run = np.linspace(-0.5, 0.5, frames)
    way = {
        "left": (0, -1), "right": (0, 1), "up": (1, -1), "down": (1, 1),
        "shrink": (2, -1), "grow": (2, 1), "anticlockwise": (3, -1), "clockwise": (3, 1),
    }  # fmt: skip
    axis, sign = way[name]
    reach = {2: (0.5, 0.8), 3: (0.3, 0.5)}.get(axis, (0.5, 0.9))  # sizes and angles repeat sooner than places
    values = np.tile(starts[:, None], (1, frames))
    values[axis] += sign * rng.uniform(*reach) * run
    return Track(*(values % 1.0))


def shuffled(clip: Array, *, seed: int = 0, axis: int = 0) -> Array:
    """The frames of a clip in a random order that depends on seed and number of frames alone."""
    return np.take(clip, np.random.default_rng(seed).permutation(clip.shape[axis]), axis)


def write_motion(
    folder: Path,
    *,
    train: int,
    val: int,
    frames: int = 16,
    size: tuple[int, int] = (64, 64),
    fps: int = 10,
    seed: int = 0,
    suffix: str = ".mp4",
) -> None:
    """Class folders of videos, ``train/<class>/*.mp4`` and ``val/<class>/*.mp4``, from different seeds.

    ``suffix`` "" writes folders of PNG frames instead, which need no video package.
    """
    splits = (("train", train, 2 * seed), ("val", val, 2 * seed + 1))
    for split, count, _ in splits:
        if count < len(MOTION_CLASSES):
            raise UserError(f"{split} needs at least one clip of each of the {len(MOTION_CLASSES)} classes, got {count} clips.")
        if (folder / split).exists():
            raise UserError(f"{folder / split} exists already: clips are written to a new folder only, so that two sets never mix.")
    for split, count, split_seed in splits:
        for name in MOTION_CLASSES:
            (folder / split / name).mkdir(parents=True)
        for index, clip in enumerate(motion_clips(count, frames=frames, size=size, seed=split_seed)):
            path = folder / split / MOTION_CLASSES[clip.label] / f"{index:06d}{suffix}"
            if suffix:
                write_video(path, clip.frames, fps=fps)
            else:
                path.mkdir()
                for number, frame in enumerate(clip.frames):
                    Image.fromarray(frame).save(path / f"{number:06d}.png", compress_level=1)


def write_video(path: str | Path, frames: Array, *, fps: int = 10, codec: str = "libx264", options: dict[str, str] | None = None) -> None:
    """(T, H, W, 3) uint8 → a video in the container of the name's suffix. Height and width should be even, or H.264 can't take them."""
    av = load_av()
    _, H, W, _ = frames.shape
    settings = {"crf": "15", "preset": "veryfast", "tune": "fastdecode"} if options is None and codec == "libx264" else options or {}
    with av.open(str(path), mode="w") as container:
        stream = container.add_stream(codec, rate=fps, options=settings)
        stream.width, stream.height, stream.pix_fmt = W, H, "yuv420p"
        stream.codec_context.thread_count = 1  # threads would be missing in worker processes forked while the encoder is in memory
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def _paint(rng: np.random.Generator, track: Track, size: tuple[int, int]) -> Array:
    """The clip (T, H, W, 3) uint8 of one shape on a track, with a little noise of its own in each frame."""
    (H, W), short = size, min(size)
    low, high = two_colours(rng)
    colour = contrasting(rng, low, high)
    low, high, colour = (c[:, None, None] for c in (low, high, colour))  # (3, H, W): numpy is slow where the last axis is short
    background = low + texture(rng, size) * (high - low)
    noise = np.float32(rng.uniform(0, 0.03))
    clip = np.empty((len(track.x), H, W, 3), np.uint8)
    y, x = np.ogrid[:H, :W]
    tracks = (values.tolist() for values in (track.x, track.y, track.size, track.angle))
    for number, (cx, cy, grown, turns) in enumerate(zip(*tracks, strict=True)):
        dx = ((x + 0.5 - cx * W + W / 2) % W - W / 2).astype(np.float32)  # the way around the picture that is shorter
        dy = ((y + 0.5 - cy * H + H / 2) % H - H / 2).astype(np.float32)
        radius = short * _SMALLEST * (_LARGEST / _SMALLEST) ** grown
        cos, sin = math.cos(2 * math.pi * turns), math.sin(2 * math.pi * turns)
        distance = radius * _SHAPE((cos * dx + sin * dy) / radius, (cos * dy - sin * dx) / radius)
        seen = min(1.0, grown / _FADE, (1 - grown) / _FADE)  # gone where the circle of sizes closes
        cover = seen * np.clip(0.5 - distance, 0, 1)
        frame = background + cover * (colour - background) + noise * rng.standard_normal((H, W), dtype=np.float32)
        clip[number] = (np.clip(frame, 0, 1) * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    return clip
