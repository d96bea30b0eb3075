"""A video file → upright frames at given times, or a VideoError that names the file and the reason.

Which frame belongs to a time is said in ``stream.py``. Only what is needed is decoded: from the key frame before each run of wanted times
to the last of them, on one thread; workers are what runs side by side. Containers are told by content, never by name, only some may be
opened, and they can't refer to other files or the network. Of several video streams FFmpeg's best one is read (the largest); a cover
picture is none. Frames become 8-bit RGB, or grey with ``in_chans=1``, by the matrix and range that the file states. Pixels that are not
square stay as they are.

T frames, H W pixels, C channels.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyramidvit.data.stream import EARLY, Stream, VideoError, VideoOptions, load_av, open_stream
from pyramidvit.errors import UserError

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["DEFAULTS", "VideoError", "VideoInfo", "VideoOptions", "count_frames", "inspect_video", "read_frames"]

DEFAULTS = VideoOptions()
Times = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class VideoInfo:
    """What the header and the first frame say. ``height`` and ``width`` are those of upright frames.

    ``duration`` and ``start`` (the time stamp of the first frame) are in seconds, ``fps`` is the average rate, ``frames`` None when the
    header has no count, ``rotation`` the degrees clockwise that turn stored frames upright.
    """

    format: str
    codec: str
    duration: float
    fps: float
    frames: int | None
    height: int
    width: int
    rotation: int = 0
    start: float = 0.0
    has_audio: bool = False


def inspect_video(path: str | Path, options: VideoOptions = DEFAULTS) -> VideoInfo:
    """Header and first frame; VideoError when there is none."""
    with open_stream(path, options) as stream:
        frame = next(stream.shown([0.0]))
        sides = (frame.width, frame.height) if options.orientation and _turn(frame)[0] else (frame.height, frame.width)
        names = stream.container.format.name, stream.video.codec_context.name
        rotation, has_audio = round(-frame.rotation / 90) * 90 % 360, len(stream.container.streams.audio) > 0
        return VideoInfo(*names, stream.duration, stream.fps, stream.frames, *sides, rotation, stream.start, has_audio)


def read_frames(path: str | Path, times: Times | Callable[[float, float], Times], options: VideoOptions = DEFAULTS) -> np.ndarray:
    """(T, H, W, C) uint8, upright and contiguous: a frame for each time, in the order of ``times``, with repetition.

    ``times`` may be a function of the file's duration in seconds and its average rate, so that choosing them opens the file but once.
    """
    with open_stream(path, options) as stream:
        chosen = times(stream.duration, stream.fps) if callable(times) else times
        wanted, position = np.unique(np.asarray(chosen, dtype=float), return_inverse=True)
        if len(wanted) == 0:
            raise UserError(f"No times were asked of {path}; a clip has at least one frame.")
        read = _with_torchcodec if options.reader == "torchcodec" else _with_pyav
        clip = read(stream, wanted)
        return np.ascontiguousarray(clip if np.array_equal(position, np.arange(len(clip))) else clip[position])


def count_frames(path: str | Path, options: VideoOptions = DEFAULTS) -> int:
    """Decode the whole file, keep nothing, count: for whoever wants to know whether it is sound.

    The time limit, which is for one clip, holds from frame to frame here.
    """
    count = 0
    with open_stream(path, options) as stream:
        for _ in stream.decode():
            stream.start_clock()
            count += 1
    return count


def _with_pyav(stream: Stream, wanted: np.ndarray) -> np.ndarray:
    options = stream.options
    reformat = load_av().video.reformatter.VideoReformatter().reformat  # one for all: setting it up takes longer than using it
    layout = "rgb24" if options.in_chans == 3 else "gray"
    clip, turn, last = np.empty((0, 0, 0, 0), np.uint8), (False, False, False), None
    for number, frame in enumerate(stream.shown(wanted.tolist())):
        if last is None:
            clip = _empty_clip(stream, len(wanted), frame.height, frame.width)
            turn = _turn(frame)
        height, width = clip.shape[1:3]
        if frame is last:
            clip[number] = clip[number - 1]
        else:
            method = "AREA" if frame.height > height else "BILINEAR"
            picture = reformat(frame, width, height, layout, interpolation=method, threads=1)
            clip[number] = picture.to_ndarray().reshape(height, width, -1)
        last = frame
    return _turned(clip, turn) if options.orientation else clip


def _empty_clip(stream: Stream, frames: int, height: int, width: int) -> np.ndarray:
    """Room for the frames; a stream that changes its size keeps that of its first frame."""
    options = stream.options
    stream.check_size(height, width)
    if options.short_side is not None and (short := min(height, width)) > options.short_side:
        height, width = (round(side * options.short_side / short) for side in (height, width))
    shape = frames, height, width, options.in_chans
    if (size := int(np.prod(shape))) > options.max_bytes:
        what = f"{frames} frames of {width}x{height} take {size / 2**30:.1f} GiB, and {options.max_bytes / 2**30:.1f} GiB are allowed"
        raise VideoError(stream.path, f"{what}: ask for fewer frames, or set short_side.")
    return np.empty(shape, np.uint8)


def _turn(frame: "VideoFrame") -> tuple[bool, bool, bool]:
    """What makes the frame upright, in this order: swap rows and columns, mirror up-down, mirror left-right."""
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return False, False, False
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()  # x' = a x + c y, y' = b x + d y, with y down
    if abs(b) > abs(a):
        return True, b < 0, c < 0
    return False, d < 0, a < 0


def _turned(clip: np.ndarray, turn: tuple[bool, bool, bool]) -> np.ndarray:
    swap, rows, columns = turn
    clip = clip.swapaxes(1, 2) if swap else clip
    return clip[:, :: -1 if rows else 1, :: -1 if columns else 1]


def _with_torchcodec(stream: Stream, wanted: np.ndarray) -> np.ndarray:
    """The same frames, found by torchcodec in the same stream."""
    try:
        decoders = import_module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError) as error:  # older versions load FFmpeg now, newer ones with the first decoder
        raise _no_torchcodec(error) from error
    _empty_clip(stream, len(wanted), stream.video.height, stream.video.width)  # for its checks
    path, index = os.fspath(stream.path), stream.video.index
    try:
        decoder = decoders.VideoDecoder(path, stream_index=index, dimension_order="NHWC", num_ffmpeg_threads=1)
        begin, end = decoder.metadata.begin_stream_seconds, decoder.metadata.end_stream_seconds
        moments = np.maximum(begin + wanted + EARLY, begin)
        inside = moments[moments < end].tolist()
        frames = [decoder.get_frames_played_at(inside).data.numpy()] if inside else []
        if beyond := len(moments) - len(inside):  # the last frame, which has no time of its own where the file gives it no duration
            frames.append(np.repeat(decoder.get_frame_at(len(decoder) - 1).data.numpy()[None], beyond, 0))
    except (RuntimeError, ValueError, IndexError) as error:
        if "load libtorchcodec" in str(error):
            raise _no_torchcodec(error) from error
        reason = re.sub(r"^.*\.cpp:\d+, ", "", str(error).splitlines()[0])  # where in its code says nothing to the user
        raise VideoError(stream.path, f"{reason} (torchcodec).") from error
    return np.concatenate(frames)


def _no_torchcodec(error: Exception) -> UserError:
    hint = "pip install 'pyramidvit[torchcodec]', and FFmpeg's shared libraries on the system"
    return UserError(f"torchcodec can't be used ({str(error).splitlines()[0]}). It needs {hint}; or use the reader pyav.")
