"""The video stream of a file, opened by PyAV: what its header says, and its frames by time.

Times are seconds from the first frame. The frame at a time is the one on the screen then: the last one that starts at or before it, so
variable frame rates and late starts come out right. Before the first frame it is the first, behind the last frame the last. Containers
round times to milliseconds, so a frame counts as started up to half a millisecond early. ``video.py`` is what other modules use.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyramidvit.data.image import inspect_image
from pyramidvit.errors import BadFileError, UserError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

FORMATS = "mov,matroska,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,mxf,dv,nut,wav,mp3,flac,aac"
"""FFmpeg's readers that may open a file; those of sound are there to say that there is only sound. Playlists and scripts never are."""
EARLY = 0.0005
_ATTACHED = 1024  # of FFmpeg's dispositions: a cover picture

Timed = tuple[float, "VideoFrame"]


class VideoError(BadFileError):
    """A file that gives no frames, or not all that were asked for."""


@dataclass(frozen=True)
class VideoOptions:
    """How videos become arrays.

    ``short_side`` scales larger frames down to so many pixels while they are decoded (None: never). Files of more pixels per frame or more
    seconds, clips of more bytes, and clips that take longer than ``time_limit`` seconds are refused. ``frame_rate`` is that of folders
    of frames, which have none of their own. ``reader`` torchcodec gives the same frames and needs FFmpeg on the system.
    """

    in_chans: int = 3
    orientation: bool = True
    short_side: int | None = None
    frame_rate: float = 30.0
    max_pixels: int = 178_956_970
    max_seconds: float = 24 * 3600.0
    max_bytes: int = 2**31
    time_limit: float = 60.0
    reader: Literal["pyav", "torchcodec"] = "pyav"

    def __post_init__(self) -> None:
        if self.reader == "torchcodec" and (self.in_chans != 3 or self.short_side is not None or not self.orientation):
            raise UserError(
                "The reader torchcodec gives upright frames of 3 channels at their own size: leave in_chans, short_side and "
                "orientation as they are, or use the reader pyav."
            )
        if self.short_side is not None and self.short_side < 1:
            raise UserError(f"short_side is a number of pixels, at least 1; got {self.short_side}.")
        if not 0 < self.frame_rate < 1e4:
            raise UserError(f"frame_rate is in frames per second, above 0; got {self.frame_rate}.")


def load_av() -> Any:
    try:
        import av  # noqa: PLC0415
    except ImportError:
        raise UserError("Reading and writing videos needs one more package: pip install 'pyramidvit[video]'") from None
    return av


@contextmanager
def open_stream(path: str | Path, options: VideoOptions) -> "Iterator[Stream]":
    """The opened file, closed at the end; any fault of the file within becomes a VideoError."""
    av = load_av()
    stream: Stream | None = None
    try:
        with Path(path).open("rb") as file:
            if not file.read(1):
                raise VideoError(path, "the file is empty (0 bytes).")
        allowed = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
        source = f"file:{Path(path).absolute()}"  # "file:" keeps names such as http:x from being taken for addresses
        with av.open(source, mode="r", options=allowed, metadata_errors="replace", timeout=options.time_limit) as container:
            stream = Stream(path, container, options)
            try:
                yield stream
            finally:
                stream.close()
    except FileNotFoundError:
        raise VideoError(path, "there is no such file.") from None
    except IsADirectoryError:
        raise VideoError(path, "it is a folder, not a video.") from None
    except av.error.ExitError:  # waiting for the disk took too long
        raise VideoError(path, f"reading took longer than {options.time_limit:g} s, and was stopped.") from None
    except (av.error.FFmpegError, OSError) as error:
        if stream is None and (kind := _still(path)):
            raise VideoError(path, f"it is a still picture ({kind}); a clip is a video, or a folder of numbered pictures.") from None
        where = "" if stream is None or stream.at is None else f" after {stream.at:.2f} s"
        raise VideoError(path, f"{error.strerror or error}{where} (PyAV {av.__version__}, {type(error).__name__}).") from error


def _still(path: str | Path) -> str | None:
    """The format of a picture, None for any other file."""
    try:
        return inspect_image(path).format
    except BadFileError:
        return None


class Stream:
    """``duration`` in seconds, ``fps`` on average, ``frames`` as the header counts them, and ``at``, the time of the last frame decoded."""

    def __init__(self, path: str | Path, container: "InputContainer", options: VideoOptions) -> None:
        self.path, self.options, self.container = path, options, container
        if options.in_chans not in (1, 3):
            raise UserError(f"Videos have 3 channels, or 1 as grey; in_chans is {options.in_chans}. Folders of frames may have any number.")
        self.at: float | None = None
        self.start_clock()
        self.video = stream = self._best()
        self.check_size(stream.height, stream.width)
        stream.codec_context.options = {"max_pixels": str(options.max_pixels)}
        stream.codec_context.thread_count = 1
        self._order_only = self.container.format.name == "avi" and stream.codec_context.has_b_frames
        """AVI knows the order of packets, not when frames are shown; with B-frames, places are only right when counted from the start."""
        self._base = float(stream.time_base or 0) or 1e-6
        self._first = stream.start_time or 0
        self.start = self._first * self._base
        self.fps = float(stream.average_rate or stream.guessed_rate or 0) or 30.0
        self.frames: int | None = stream.frames or None
        self.duration = self._duration()
        if self.duration > options.max_seconds:
            raise VideoError(path, f"it lasts {self.duration:.0f} s, and {options.max_seconds:.0f} s are allowed.")

    def start_clock(self) -> None:
        """The time limit counts from now on."""
        self._started = time.monotonic()

    def close(self) -> None:
        """Let go of stream and container, which hold each other."""
        del self.video, self.container

    def check_size(self, height: int, width: int) -> None:
        if height * width > self.options.max_pixels:
            raise VideoError(self.path, f"its frames have {width}x{height} pixels, more than the {self.options.max_pixels} allowed.")

    def shown(self, wanted: Sequence[float]) -> "Iterator[VideoFrame]":
        """The frame on the screen at each of the rising times."""
        frames = self._from(wanted[0])
        shown, coming = None, next(frames, None)
        for moment in wanted:
            if shown is not None and coming is not None and self._key_before(moment) > coming[0]:
                frames = self._from(moment)
                shown, coming = None, next(frames, None)
            while coming is not None and (shown is None or coming[0] <= moment + EARLY):
                shown, coming = coming, next(frames, None)
            if shown is None:
                raise VideoError(self.path, "no frame could be decoded.")
            yield shown[1]

    def decode(self) -> Iterator[Timed]:
        """Frames from where the file stands, with their times, which never fall."""
        begin: int | None = None  # the first packet's place in the file, and how much later its frame came out
        lag: int | None = None
        for packet in self.container.demux(self.video):
            self._check_time()
            begin = packet.dts if begin is None else begin
            for frame in packet.decode():
                if lag is None:
                    lag = (frame.dts or 0) - (begin or 0)
                stamp = self._stamp(frame, lag)
                if stamp is not None:
                    moment = (stamp - self._first) * self._base
                else:
                    moment = 0.0 if self.at is None else self.at + 1 / self.fps
                self.at = moment if self.at is None else max(moment, self.at)
                yield self.at, frame

    def _stamp(self, frame: "VideoFrame", lag: int) -> int | None:
        if self._order_only:
            return None if frame.dts is None else frame.dts - lag
        return frame.dts if frame.pts is None else frame.pts

    def _best(self) -> "VideoStream":
        streams = self.container.streams
        best = streams.best("video")
        moving = [one for one in streams.video if not int(one.disposition) & _ATTACHED]
        if best is None or not moving:
            raise VideoError(self.path, f"it has no video stream{', only sound' if streams.audio else ''}.")
        chosen = next((one for one in moving if one.index == best.index), moving[0])
        if chosen.codec_context is None:  # so PyAV says that FFmpeg has no decoder
            raise VideoError(self.path, "its video codec is unknown, or damaged beyond recognition.")
        return chosen

    def _duration(self) -> float:
        """From the stream, the tag that Matroska has instead, the container, or the packets: the first that says anything."""
        if self.video.duration and self.video.duration > 0:
            return self.video.duration * self._base
        tag = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", self.video.metadata.get("DURATION", ""))
        if tag and (end := 3600 * int(tag[1]) + 60 * int(tag[2]) + float(tag[3])) > self.start:
            return end - self.start
        if self.container.duration and self.container.duration > 0:
            return self.container.duration / 1e6
        end = 0.0
        for packet in self.container.demux(self.video):
            self._check_time()
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None:
                end = max(end, (stamp - self._first + (packet.duration or 0)) * self._base)
        self._seek(0.0)
        return end

    def _from(self, moment: float) -> Iterator[Timed]:
        """Frames from a key frame at or before a time."""
        if self.at is None and (moment <= 0 or self._order_only):
            return self.decode()
        self._seek(moment)
        frames = self.decode()
        first = next(frames, None)
        if first is None or first[0] > moment + EARLY:  # the index is wrong: go through the file
            self._seek(0.0)
            return self.decode()
        return chain([first], frames)

    def _seek(self, moment: float) -> None:
        self.at = None
        self.container.seek(self._first + int(moment / self._base), stream=self.video)

    def _key_before(self, moment: float) -> float:
        """Time of the last key frame before a time, as far as the index knows; below any time if it knows none."""
        if self._order_only:
            return float("-inf")
        entries = self.video.index_entries
        number = entries.search_timestamp(self._first + int(moment / self._base))
        return (entries[number].timestamp - self._first) * self._base if number >= 0 else float("-inf")

    def _check_time(self) -> None:
        if time.monotonic() - self._started > self.options.time_limit:
            raise VideoError(self.path, f"reading took longer than {self.options.time_limit:g} s, and was stopped.")
