"""Which moments of a video make a clip, and the reader that turns videos and folders of frames into samples.

A clip has exactly the configured number of frames, whatever the video has: a short video is held on its last frame or played again from the
start, as ``short`` says. Moments are seconds, so frame rates and gaps don't matter. Random numbers come from torch's global generator,
which the loader seeds for each sample.

T frames, V clips of one video, H W pixels, C channels.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pyramidvit.data.folders import SUFFIXES
from pyramidvit.data.image import ReadOptions, inspect_image, read_image
from pyramidvit.data.samples import LabelledFile
from pyramidvit.data.stream import EARLY
from pyramidvit.data.video import DEFAULTS as VIDEO_DEFAULTS
from pyramidvit.data.video import VideoError, VideoInfo, VideoOptions, inspect_video, read_frames
from pyramidvit.errors import UserError
from pyramidvit.types import Film, Sample, Target

Times = np.ndarray | Callable[[float, float], np.ndarray]


@dataclass(frozen=True)
class ClipSampling:
    """``frames`` moments of a video.

    With ``stride``, they are ``stride`` frames apart at ``fps`` (None: the file's own rate); random clips start anywhere, ``clips`` clips
    spread evenly from the first possible start to the last, and a single one lies in the middle. With ``segments``, the video is cut into
    ``frames`` equal parts and each gives one moment, random or, for ``clips`` clips, at evenly spaced places of each part, its middle for
    one. ``short`` says what follows after the end of a short video: its last frame ("hold") or its beginning ("loop").
    """

    frames: int = 16
    stride: int = 4
    fps: float | None = 30.0
    segments: bool = False
    short: Literal["hold", "loop"] = "hold"

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1 or (self.fps is not None and self.fps <= 0):
            raise UserError(f"A clip needs at least 1 frame, a stride of at least 1 and an fps above 0; got {self}.")

    def seconds(self, fps: float) -> float:
        """How long a clip lasts in a video of that rate; with segments, so long that no two moments show the same frame."""
        return self.frames / fps if self.segments else self.frames * self.stride / (self.fps or fps)

    def random(self, duration: float, fps: float) -> np.ndarray:
        """(T,) seconds of one clip, anywhere."""
        if self.segments:
            return self._within(duration, fps, torch.rand(self.frames).double().numpy())
        return self._from(duration, fps, float(torch.rand(())))

    def spread(self, duration: float, fps: float, clips: int = 1) -> np.ndarray:
        """(V * T,) seconds of evenly spread clips, one clip after the other."""
        if self.segments:
            rows = [self._within(duration, fps, np.full(self.frames, (clip + 0.5) / clips)) for clip in range(clips)]
        else:
            rows = [self._from(duration, fps, clip / (clips - 1) if clips > 1 else 0.5) for clip in range(clips)]
        return np.concatenate(rows)

    def _from(self, duration: float, fps: float, share: float) -> np.ndarray:
        step = self.seconds(fps) / self.frames
        room = max(duration - self.seconds(fps), 0.0)
        return self._played(share * room + step * np.arange(self.frames), duration, fps)

    def _within(self, duration: float, fps: float, places: np.ndarray) -> np.ndarray:
        return self._played((np.arange(self.frames) + places) * duration / self.frames, duration, fps)

    def _played(self, times: np.ndarray, duration: float, fps: float) -> np.ndarray:
        """Moments behind the end stay there, where the last frame is held, or begin again."""
        if self.short == "hold":
            return times
        length = max(duration, 1 / fps)
        return np.maximum((times + EARLY) % length - EARLY, 0)  # the very end counts as the beginning, whatever the last bit says


@dataclass(frozen=True)
class ClipReader:
    """A labelled clip → a sample (C, T, H, W) uint8, or (C, clips * T, H, W), one clip after the other; BadFileError when there is none.

    ``training`` takes one random clip, otherwise ``clips`` spread evenly. Folders of frames may have any depth and number of channels.
    """

    sampling: ClipSampling = ClipSampling()
    options: VideoOptions = VIDEO_DEFAULTS
    training: bool = False
    clips: int = 1

    def __call__(self, item: LabelledFile) -> Sample:
        frames = self.read(item.path)
        return as_sample(frames, item.path, item.target((frames.shape[1], frames.shape[2])))

    def read(self, path: str | Path) -> np.ndarray:
        """(T, H, W, C), or (clips * T, H, W, C)."""
        return read_clip(path, self.sampling.random if self.training else partial(self.sampling.spread, clips=self.clips), self.options)

    def film(self, source: str | Path | np.ndarray) -> Film:
        """What an evaluation sees of a clip, with the times; an array (T, H, W, C) has the frame rate of folders of frames."""
        rate = self.options.frame_rate
        if isinstance(source, np.ndarray):
            duration, fps = len(source) / rate, rate
        else:
            info = inspect_clip(source, self.options)
            duration, fps = info.duration, info.fps
        times = self.sampling.spread(duration, fps, self.clips)
        frames = source[_shown(times, len(source), rate)] if isinstance(source, np.ndarray) else read_clip(source, times, self.options)
        return Film(frames, np.minimum(times, duration), duration)


def read_clip(path: str | Path, times: Times, options: VideoOptions = VIDEO_DEFAULTS) -> np.ndarray:
    """(T, H, W, C) of a video or a folder of frames at times in seconds, which may be a function of duration and frame rate."""
    if os.path.isdir(path):
        return _read_folder(Path(path), times, options)
    return read_frames(path, times, options)


def as_sample(frames: np.ndarray, path: str | Path, target: Target | None = None) -> Sample:
    """Frames (T, H, W, C) as a sample (C, T, H, W); they stay channels-last in memory, which resizing is fast on."""
    size = frames.shape[1], frames.shape[2]
    return Sample(torch.from_numpy(frames).permute(3, 0, 1, 2), target, str(path), size)


def inspect_clip(path: str | Path, options: VideoOptions = VIDEO_DEFAULTS) -> VideoInfo:
    """What is known of a video or a folder of frames before it is read; VideoError when it is neither."""
    if not os.path.isdir(path):
        return inspect_video(path, options)
    files = frame_files(path)
    first = inspect_image(files[0], ReadOptions(options.in_chans, orientation=options.orientation, max_pixels=options.max_pixels))
    fps = options.frame_rate
    return VideoInfo("frames", first.format.lower(), len(files) / fps, fps, len(files), first.height, first.width)


def frame_files(folder: str | Path) -> list[Path]:
    """The pictures of a folder in the order of the last number in their names, which may start anywhere; steps must be equal."""
    files = [path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    if not files:
        raise VideoError(folder, "there are no pictures in this folder.")
    numbers: dict[int, Path] = {}
    for path in sorted(files):
        found = re.findall(r"\d+", path.stem)
        if not found:
            raise VideoError(folder, f"{path.name} has no number in its name to tell its place.")
        if (other := numbers.setdefault(int(found[-1]), path)) is not path:
            raise VideoError(folder, f"{path.name} and {other.name} have the same number.")
    order = sorted(numbers)
    steps = [after - before for before, after in pairwise(order)]
    if wrong := [number for number, step in zip(order, steps, strict=False) if step != min(steps)]:
        raise VideoError(folder, f"frames are missing, the first of them after {numbers[wrong[0]].name}.")
    return [numbers[number] for number in order]


def _shown(times: np.ndarray, count: int, fps: float) -> np.ndarray:
    """Which of ``count`` frames are on the screen at the given times, in a clip of constant rate."""
    return np.floor((times + EARLY) * fps).astype(int).clip(0, count - 1)


def _read_folder(folder: Path, times: Times, options: VideoOptions) -> np.ndarray:
    """The frames on the screen at the given times, as from a video of constant rate."""
    files, fps = frame_files(folder), options.frame_rate
    chosen = _shown(np.asarray(times(len(files) / fps, fps) if callable(times) else times), len(files), fps)
    wanted, position = np.unique(chosen, return_inverse=True)
    settings = ReadOptions(options.in_chans, orientation=options.orientation, max_pixels=options.max_pixels)
    frames = [read_image(files[number], settings) for number in wanted]
    shapes = {frame.shape for frame in frames}
    if len(shapes) > 1:
        raise VideoError(folder, f"its frames have different sizes: {', '.join(f'{w}x{h}' for h, w, _ in sorted(shapes))}.")
    if (size := len(chosen) * frames[0].nbytes) > options.max_bytes:
        raise VideoError(folder, f"{len(chosen)} frames take {size / 2**30:.1f} GiB, and {options.max_bytes / 2**30:.1f} GiB are allowed.")
    return np.stack(frames)[position]
