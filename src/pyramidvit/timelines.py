"""What happens when in a long video: a window slides over it, and each place gets an answer.

A network whose clips last a certain time sees windows of that time, or longer ones in as many clips as fill them. T frames, W windows.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyramidvit.data.clip_reader import as_sample, inspect_clip, read_clip
from pyramidvit.data.loader import collate
from pyramidvit.data.video import VideoInfo, VideoOptions
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.predict import Predicted, Predictor
from pyramidvit.tasks.video import VideoTask
from pyramidvit.types import BadSample, Film, Timeline

_MOST_BYTES = 2**28
"""Frames that are in memory at once, as far as one window allows."""
_SHOWN = 8
_MOST_WINDOWS = 1_000_000


def timeline(predictor: Predictor, path: str | Path, *, window: float | None = None, hop: float | None = None) -> Predicted:
    """Actions over the time of one video or folder of frames. ``window`` is in seconds, one clip's if not given; ``hop`` half of it.

    UserError when the network is none for clips, or the window is too short for one. BadFileError when the file can't be read.
    """
    known: Any = predictor.task
    if not isinstance(known, VideoTask):
        raise UserError(f"A timeline is made of a video; these weights are for: {known.title.lower()}.")
    sampling, options = known.sampling, known.options
    info = inspect_clip(path, options)
    length = None if sampling.segments else sampling.seconds(info.fps)
    window = length if window is None else window
    if window is None:
        raise UserError("This network sees whole videos, whatever they last: give --window, as long as the videos that it was trained on.")
    hop = window / 2 if hop is None else hop
    if not (0 < window < math.inf and 0 < hop < math.inf) or (length is not None and window < length * 0.999):
        least = "" if length is None else f" of at least the {length:.2f} s that a clip of this network lasts,"
        raise UserError(f"A timeline needs a window{least} and a hop, both above 0 seconds; got {window:g} and {hop:g}.")
    duration = max(info.duration, 1 / info.fps)
    if (duration - window) / hop > _MOST_WINDOWS:
        most = f"more than {_MOST_WINDOWS:,} windows in the {duration:.1f} s of {path}"
        raise UserError(f"A hop of {hop:g} s gives {most}: take one of at least {(duration - window) / _MOST_WINDOWS:.2g} s.")
    starts = window_starts(duration, window, hop)
    clips = 1 if length is None else math.ceil(window / length - 1e-3)
    task = known.changed(clips=clips)
    span = min(window, duration)
    moments = [start + sampling.spread(span, info.fps, clips) for start in starts]
    rows = torch.cat([*_answers(predictor, task, path, moments, info)])
    times = (np.arange(_SHOWN) + 0.5) * duration / _SHOWN
    film = Film(read_clip(path, times, _patient(_small(task), _SHOWN)), times, duration)
    return Predicted(Timeline(str(path), task.classes, tuple(starts), window, duration, rows), film, predictor.task)


def timelines(predictor: Predictor, paths: Iterable[Path], window: float | None, hop: float | None) -> Iterator[Predicted | BadSample]:
    """One after the other; a file that can't be read gives a BadSample in its place."""
    for path in paths:
        try:
            yield timeline(predictor, path, window=window, hop=hop)
        except BadFileError as error:
            yield BadSample(error.path, error.reason)


def window_starts(duration: float, window: float, hop: float) -> list[float]:
    """Seconds: from 0 in steps of ``hop`` as long as the window is inside, and one at the end if the steps don't meet it."""
    room = max(duration - window, 0.0)
    starts = [number * hop for number in range(int(room / hop + 1e-6) + 1)]
    return [*starts, room] if room - starts[-1] > 1e-3 else starts


def _answers(predictor: Predictor, task: VideoTask, path: str | Path, moments: list[np.ndarray], info: VideoInfo) -> Iterator[torch.Tensor]:
    """Probabilities (W, K) of some windows after the others; those read together are decoded once."""
    transform, options = task.transform(training=False), task.options
    size = info.height * info.width * 3 * len(moments[0])
    count = min(max(_MOST_BYTES // size, 1), predictor.batch_size)
    for first in range(0, len(moments), count):
        group = moments[first : first + count]
        frames = np.split(read_clip(path, np.concatenate(group), _patient(options, len(group))), len(group))
        batch = collate([transform(as_sample(one, path)) for one in frames])
        with torch.inference_mode():
            outputs = predictor.model(batch.to(predictor.device).images)
        yield torch.stack([scores.probabilities for scores in task.predict(outputs, batch)])


def _patient(options: VideoOptions, clips: int) -> VideoOptions:
    """The time limit is for one clip, and several are read at once."""
    return replace(options, time_limit=clips * options.time_limit)


def _small(task: VideoTask) -> VideoOptions:
    options = task.options
    return options if options.reader == "torchcodec" else replace(options, short_side=min(options.short_side or 256, 256))
