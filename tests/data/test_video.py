"""Frames of videos by time: right whatever the container, the rate, the rotation; the first real error with the path; memory flat."""

import os
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import count as counting
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pyramidvit.data.motion import write_video
from pyramidvit.data.stream import FORMATS, Stream
from pyramidvit.data.video import VideoError, VideoOptions, count_frames, inspect_video, read_frames
from pyramidvit.errors import UserError

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'pyramidvit[video]'")

SIDE = 64
HERE = VideoOptions()


def numbered(count: int, width: int = SIDE) -> np.ndarray:
    """Frames that hold their number in eight vertical bars, black or white, lowest bit first."""
    bits = (np.arange(count)[:, None] >> np.arange(8)) & 1
    return np.broadcast_to(np.repeat(bits, width // 8, axis=1)[:, None, :, None] * 255, (count, SIDE, width, 3)).astype(np.uint8)


def numbers(frames: np.ndarray) -> list[int]:
    """What ``numbered`` wrote."""
    T, H, W, _ = frames.shape
    bars = frames[:, H // 4 : 3 * H // 4].reshape(T, -1, 8, W // 8, 3)[..., W // 32 : 3 * W // 32, :].mean((1, 3, 4)) > 127
    return (bars * (1 << np.arange(8))).sum(1).tolist()


def write_timed(
    path: Path, times: list[int], base: Fraction = Fraction(1, 1000), *, gop: int = 250, mux: dict[str, str] | None = None
) -> Path:
    """Frame i is shown from ``times[i] * base`` seconds on."""
    with av.open(str(path), "w", options=mux or {}) as container:
        stream = container.add_stream("libx264", rate=30, options={"g": str(gop), "bf": "2"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = base
        stream.codec_context.thread_count = 1
        for frame, stamp in zip(numbered(len(times)), times, strict=True):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = stamp, base
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 numbered frames at 30 per second, a key frame every 12."""
    path = tmp_path_factory.mktemp("videos") / "constant.mp4"
    write_video(path, numbered(60), fps=30, options={"g": "12"})
    return path


def test_every_frame_is_found_by_its_time(constant: Path) -> None:
    assert numbers(read_frames(constant, np.arange(60) / 30)) == list(range(60))
    assert numbers(read_frames(constant, np.arange(60) / 30 + 1 / 31)) == list(range(60))  # on the screen until the next one
    assert numbers(read_frames(constant, [1.0, 0.1, 1.0, 0.5])) == [30, 3, 30, 15]


def test_before_the_first_and_behind_the_last_frame_these_are_held(constant: Path) -> None:
    assert numbers(read_frames(constant, [-1, 0, 1.99, 2.0, 5.0, 100.0])) == [0, 0, 59, 59, 59, 59]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".mov", ".ts", ".webm"])
def test_every_container_gives_the_same_frames(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clip{suffix}"
    write_video(path, numbered(40), fps=30, codec="libvpx" if suffix == ".webm" else "libx264")
    info = inspect_video(path)
    assert (info.height, info.width, info.rotation, info.has_audio) == (SIDE, SIDE, 0, False)
    assert info.duration == pytest.approx(40 / 30, abs=0.04)
    assert numbers(read_frames(path, np.arange(0, 40, 3) / 30)) == list(range(0, 40, 3))
    assert count_frames(path) == 40


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_variable_frame_rate_is_sampled_by_time(tmp_path: Path, suffix: str) -> None:
    """PB-61: gaps of 10 ms to 2 s; the frame on the screen at each time, not the n-th frame."""
    gaps = np.random.default_rng(0).choice([10, 33, 100, 500, 2000], 50, p=[0.2, 0.4, 0.2, 0.15, 0.05])
    times = [0, *np.cumsum(gaps).tolist()]
    path = write_timed(tmp_path / f"variable{suffix}", times, gop=8)
    asked = np.random.default_rng(1).uniform(0, times[-1] / 1000, 40)
    expected = (np.searchsorted(np.array(times) / 1000, asked, side="right") - 1).tolist()
    assert numbers(read_frames(path, asked)) == expected
    assert max(np.bincount(expected)) > 1  # long frames were asked for more than once


def test_a_late_start_does_not_shift_the_frames(tmp_path: Path) -> None:
    path = write_timed(tmp_path / "late.mkv", [10_000 + 40 * i for i in range(25)])
    info = inspect_video(path)
    assert info.start == pytest.approx(10)
    assert info.duration == pytest.approx(1.0, abs=0.05)
    assert numbers(read_frames(path, [0, 0.4, 0.8])) == [0, 10, 20]


@pytest.mark.parametrize(("name", "mux"), [("live.mkv", {"live": "1"}), ("fragments.mp4", {"movflags": "frag_keyframe+empty_moov"})])
def test_missing_durations_and_counts_are_made_up_for(tmp_path: Path, name: str, mux: dict[str, str]) -> None:
    """Files that were written while they were streamed: nothing in the header, no index."""
    path = write_timed(tmp_path / name, [40 * i for i in range(50)], gop=10, mux=mux)
    info = inspect_video(path)
    assert info.duration == pytest.approx(2.0, abs=0.1)
    assert numbers(read_frames(path, [1.6, 0.04, 1.0])) == [40, 1, 25]


def test_timestamps_that_are_no_time_are_read_all_the_same(tmp_path: Path) -> None:
    """PB-61: AVI keeps no time of display; the order of the frames does."""
    path = tmp_path / "order.avi"
    write_video(path, numbered(30), fps=15, codec="mpeg4", options={"bf": "2", "g": "10"})
    assert numbers(read_frames(path, np.arange(30) / 15)) == list(range(30))
    assert numbers(read_frames(path, [1.4])) == [21]  # after a jump, too


def test_only_what_is_needed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-63: two far moments cost two runs from the key frames before them, not the whole file."""
    path = write_timed(tmp_path / "long.mp4", [40 * i for i in range(250)], gop=10)
    decoded: list[float] = []
    original = Stream.decode

    def spy(stream: Stream):
        for moment, frame in original(stream):
            decoded.append(moment)
            yield moment, frame

    monkeypatch.setattr(Stream, "decode", spy)
    assert numbers(read_frames(path, [2.04, 8.2])) == [51, 205]
    assert len(decoded) < 30
    assert min(decoded) >= 1.9


def test_pixels_are_those_of_a_whole_decode(constant: Path) -> None:
    with av.open(str(constant)) as container:
        whole = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert np.array_equal(read_frames(constant, [0.5, 1.5]), whole[[15, 45]])
    grey = read_frames(constant, [0.5], VideoOptions(in_chans=1))
    assert grey.shape == (1, SIDE, SIDE, 1)
    assert abs(grey[..., 0].astype(int) - whole[15].mean(-1)).mean() < 8  # luma keeps its narrow range


def test_frames_are_turned_upright_once(shared: Path) -> None:
    """A phone's portrait clip: the tag says a quarter turn clockwise."""
    folder = shared / "data" / "robust_videos" / "derived"
    if not folder.is_dir():
        pytest.skip("no robust_videos")
    path = folder / "rotated_90.mp4"
    info = inspect_video(path)
    assert (info.height, info.width, info.rotation) == (320, 240, 90)
    upright, stored = read_frames(path, [0.5]), read_frames(path, [0.5], VideoOptions(orientation=False))
    assert upright.flags.c_contiguous
    assert np.array_equal(upright[0], np.rot90(stored[0], -1))


@pytest.mark.slow
def test_all_odd_videos_give_a_full_clip_or_name_themselves(shared: Path) -> None:
    """PB-57, PB-60, PB-62: what can be read gives exactly the frames asked for, all else says which file and why."""
    folder = shared / "data" / "robust_videos"
    if not folder.is_dir():
        pytest.skip("no robust_videos")
    errors: list[tuple[Path, VideoError]] = []
    for path in sorted(folder.glob("*/*")):
        try:
            clip = read_frames(path, lambda duration, _: np.linspace(0, min(duration, 4), 16, endpoint=False))
        except VideoError as error:
            errors.append((path, error))
        else:
            assert (len(clip), clip.dtype) == (16, np.uint8)
            assert clip[:, ::9, ::9].std() > 5, path  # a picture, not grey nothing
    assert all(error.path == str(path) and str(path) in str(error) for path, error in errors)
    reasons = {path.name: error.reason for path, error in errors}
    assert set(reasons) == {
        "sine_mono_s16.wav",
        "corrupt_packets.mp4",
        "corrupt_tail.mp4",
        "text.mp4",
        "truncated_60pct_faststart.mp4",
        "truncated_no_moov.mp4",
    }
    assert "only sound" in reasons["sine_mono_s16.wav"]
    assert "after 3.07 s" in reasons["corrupt_tail.mp4"]
    assert "PyAV" in reasons["text.mp4"]
    assert "InvalidDataError" in reasons["text.mp4"]


def test_what_lies_before_the_damage_can_be_used(shared: Path) -> None:
    """PB-60: the damage counts where it lies."""
    path = shared / "data" / "robust_videos" / "derived" / "corrupt_tail.mp4"
    if not path.is_file():
        pytest.skip("no robust_videos")
    assert len(read_frames(path, [0.0, 1.0, 2.0])) == 3
    with pytest.raises(VideoError, match="Invalid data"):
        read_frames(path, [0.0, 3.5])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".ts"])
def test_whatever_bytes_are_damaged_there_are_frames_or_a_named_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clip{suffix}"
    write_video(path, numbered(10), fps=30, codec="mpeg4" if suffix == ".avi" else "libx264")
    whole, rng, errors = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(40):
        damaged = bytearray(whole)
        for place in rng.integers(0, rng.choice([600, len(whole)]), 16):
            damaged[place % len(whole)] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            clip = read_frames(path, lambda duration, _: np.linspace(0, min(duration, 9), 6))
        except VideoError:
            errors += 1
        else:
            assert len(clip) == 6
    assert 0 < errors < 40


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: None, "no such file"),
        (lambda path: path.touch(), "empty"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.write_text("no video"), "Invalid data"),
        (lambda path: Image.new("RGB", (40, 40)).save(path, "JPEG"), r"it is a still picture \(JPEG\)"),
        (lambda path: Image.new("RGB", (40, 40)).save(path, "PNG"), r"it is a still picture \(PNG\)"),
        (lambda path: path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n/etc/hostname\n#EXT-X-ENDLIST\n"), "Invalid"),
        (lambda path: path.write_text("ffconcat version 1.0\nfile constant.mp4\n"), "Invalid"),
    ],
)
def test_errors_name_file_and_reason(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    """PB-57, and playlists that would open other files or addresses."""
    path = tmp_path / "a clip: http:x.mp4"
    make(path)
    with pytest.raises(VideoError, match=reason) as caught:
        read_frames(path, [0.0])
    assert caught.value.path == str(path)
    copy = pickle.loads(pickle.dumps(caught.value))  # as it comes from a worker process
    assert (type(copy), copy.path, copy.reason) == (VideoError, caught.value.path, caught.value.reason)


def test_playlists_are_refused_by_format_and_protocol(tmp_path: Path, constant: Path) -> None:
    """The same playlist opens a real video when nothing forbids it, so the refusal is ours."""
    path = tmp_path / "list.mp4"
    path.write_text(f"ffconcat version 1.0\nfile '{constant}'\n")
    with av.open(str(path), format="concat", options={"safe": "0"}) as container:
        assert len(container.streams.video) == 1
    with pytest.raises(VideoError):
        inspect_video(path)
    assert not {"hls", "concat", "dash", "image2", "lavfi"} & set(FORMATS.split(","))


def test_names_with_colons_and_unicode_are_files(tmp_path: Path) -> None:
    path = tmp_path / "http:größe 1 %d.mkv"
    write_video(path, numbered(5), fps=30)
    assert numbers(read_frames(path, [0.1])) == [3]
    os.chdir(tmp_path)
    assert numbers(read_frames(path.name, [0.1])) == [3]


def test_caps(constant: Path) -> None:
    for options, reason in (
        (VideoOptions(max_pixels=1000), "pixels"),
        (VideoOptions(max_seconds=1.0), "lasts 2 s"),
        (VideoOptions(max_bytes=30_000), "GiB"),
        (VideoOptions(time_limit=1e-9), "longer than"),
    ):
        with pytest.raises(VideoError, match=reason):
            read_frames(constant, [0.0, 0.5, 1.0], options)


def test_a_long_video_is_counted_to_its_end(constant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is for one clip: `check` must not call a video damaged because all of it takes longer."""
    clock = counting()
    monkeypatch.setattr("pyramidvit.data.stream.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert count_frames(constant, VideoOptions(time_limit=20)) == 60
    with pytest.raises(VideoError, match="longer than 20 s"):
        read_frames(constant, np.arange(60) / 30, VideoOptions(time_limit=20))


def test_short_side_shrinks_while_decoding(tmp_path: Path) -> None:
    path = tmp_path / "wide.mp4"
    write_video(path, numbered(4, width=128), fps=30)
    small = read_frames(path, [0.0, 0.1], VideoOptions(short_side=32))
    assert small.shape == (2, 32, 64, 3)
    assert numbers(small) == [0, 3]
    assert read_frames(path, [0.0], VideoOptions(short_side=200)).shape == (1, 64, 128, 3)  # never larger


def test_wrong_options_are_told() -> None:
    with pytest.raises(UserError, match="short_side"):
        VideoOptions(short_side=0)
    with pytest.raises(UserError, match="torchcodec"):
        VideoOptions(reader="torchcodec", in_chans=1)


@pytest.mark.slow
def test_hundreds_of_clips_leave_memory_as_it_was(constant: Path) -> None:
    """PB-63: containers and decoders are gone at the end of each clip."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("no /proc to read the resident memory from")

    def resident() -> float:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    for _ in range(30):
        read_frames(constant, [0.2, 1.5])
    before, opened = resident(), files()
    for _ in range(200):
        read_frames(constant, [0.2, 1.5])
    assert resident() - before < 8  # MiB; one decoder that stays takes more than 0.1 each
    assert files() == opened


@pytest.mark.parametrize("missing", ["av", "torchcodec.decoders"])
def test_a_missing_package_says_what_to_install(constant: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-57: the backend that is missing is named."""
    monkeypatch.setitem(sys.modules, missing, None)
    reader = VideoOptions(reader="torchcodec") if missing != "av" else HERE
    with pytest.raises(UserError, match=r"pip install 'pyramidvit\["):
        read_frames(constant, [0.0], reader)


def test_libraries_that_are_missing_are_named(constant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of torchcodec look for FFmpeg with the first decoder."""

    def no_ffmpeg(*_: object, **__: object) -> None:
        raise RuntimeError("Could not load libtorchcodec. Likely causes:\n 1. FFmpeg is not installed.")

    monkeypatch.setitem(sys.modules, "torchcodec.decoders", SimpleNamespace(VideoDecoder=no_ffmpeg))
    with pytest.raises(UserError, match=r"\(Could not load libtorchcodec.*FFmpeg's shared libraries"):
        read_frames(constant, [0.0], VideoOptions(reader="torchcodec"))


def test_torchcodec_gives_the_same_frames(constant: Path, tmp_path: Path, shared: Path) -> None:
    """PB-59, PB-61: every backend, constant and variable rates, 8 bits: bit for bit."""
    try:
        read_frames(constant, [0.0], VideoOptions(reader="torchcodec"))
    except UserError as error:
        if isinstance(error, VideoError):
            raise
        pytest.skip(str(error))
    variable = write_timed(tmp_path / "variable.mkv", np.cumsum(np.arange(30) * 10).tolist())
    folder = shared / "data" / "robust_videos"
    names = ("again.mkv", "av1_video.mkv", "goat.mp4", "rotated_90.mp4", "start_at_10s.mp4", "nasa_13013.mp4", "vp9.webm")
    for path in [constant, variable, *(path for path in folder.glob("*/*") if path.name in names)]:
        for asked in (np.random.default_rng(0).uniform(-0.1, 2.2, 12), np.arange(16) / 7.5):
            ours = read_frames(path, asked)
            assert np.array_equal(ours, read_frames(path, asked, VideoOptions(reader="torchcodec"))), path
