"""Generated motion: the class is in the motion alone, so no frame and no order-free set of frames tells the direction."""

from pathlib import Path

import numpy as np
import pytest

from pyramidvit.data import motion
from pyramidvit.data.clip_reader import ClipReader, ClipSampling
from pyramidvit.data.clips import read_clip_data
from pyramidvit.data.motion import MOTION_CLASSES, OPPOSITE, Track, draw_track, motion_clips, shuffled, write_motion
from pyramidvit.errors import UserError

T = 16
N = 2000
AXES = ("x", "y", "size", "angle")
MOVES = {
    "left": "x",
    "right": "x",
    "up": "y",
    "down": "y",
    "grow": "size",
    "shrink": "size",
    "clockwise": "angle",
    "anticlockwise": "angle",
}
SIGNS = {"right": 1, "down": 1, "grow": 1, "clockwise": 1}


def tracks(name: str) -> dict[str, np.ndarray]:
    """(N, T) of each axis, from seeds of the class's own."""
    drawn = [draw_track(np.random.default_rng((MOTION_CLASSES.index(name), i)), name, T) for i in range(N)]
    return {axis: np.stack([getattr(track, axis) for track in drawn]) for axis in AXES}


def steps(values: np.ndarray) -> np.ndarray:
    """Change from frame to frame, the shorter way around the circle."""
    return (np.diff(values, axis=-1) + 0.5) % 1 - 0.5


def uniform_distance(values: np.ndarray) -> float:
    """Largest gap between the distribution of values and the even one on [0, 1), times sqrt(n): above 1.95 in one of 1000 even samples."""
    ordered, n = np.sort(values), len(values)
    above = np.abs(np.arange(1, n + 1) / n - ordered).max()
    below = np.abs(np.arange(n) / n - ordered).max()
    return float(max(above, below) * np.sqrt(n))


def test_the_class_list_pairs_opposites() -> None:
    assert tuple(sorted(MOTION_CLASSES)) == MOTION_CLASSES == tuple(sorted(MOVES))
    assert all(OPPOSITE[OPPOSITE[name]] == name and MOVES[name] == MOVES[OPPOSITE[name]] for name in MOTION_CLASSES)


@pytest.mark.parametrize("name", MOTION_CLASSES)
def test_every_frame_is_distributed_alike_in_every_class(name: str) -> None:
    """Place, size and angle are even on their circles in the first frame, the last and between: one frame can't tell any class."""
    found = tracks(name)
    for axis, values in found.items():
        assert values.min() >= 0
        assert values.max() < 1
        for frame in (0, 5, T - 1):
            assert uniform_distance(values[:, frame]) < 1.95, (axis, frame)
    for frame in (0, T - 1):  # nor do the axes together: no two depend on each other
        together = np.corrcoef([np.cos(2 * np.pi * values[:, frame]) for values in found.values()])
        assert np.abs(together - np.eye(4)).max() < 0.1


@pytest.mark.parametrize("name", MOTION_CLASSES)
def test_only_the_class_axis_runs_and_its_way_is_the_class(name: str) -> None:
    for axis, values in tracks(name).items():
        moved = steps(values)
        if axis == MOVES[name]:
            assert (moved * SIGNS.get(name, -1) > 0.005).all()
        else:
            assert np.allclose(moved, 0)


@pytest.mark.parametrize("name", ["right", "down", "grow", "clockwise"])
def test_a_clip_backwards_is_a_clip_of_the_opposite_class(name: str) -> None:
    """Start and speed of the reversed clips are distributed as the opposite's, so a set of frames without order tells no direction."""
    values, opposite = tracks(name)[MOVES[name]][:, ::-1], tracks(OPPOSITE[name])[MOVES[name]]
    assert uniform_distance(values[:, 0]) < 1.95
    ours, theirs = np.sort(steps(values)[:, 0]), np.sort(steps(opposite)[:, 0])
    assert np.abs(ours - theirs).max() < 0.003
    assert np.allclose(steps(values), steps(values)[:, :1])  # even speed: nothing speeds up in one direction


def test_what_is_drawn_moves_as_the_class_says() -> None:
    """In pixels: x to the right, y down, clockwise as a clock's hand, larger when it grows."""
    start = drawn()
    assert start.sum() > 20
    pairs = (
        (drawn(x=0.5 + 4 / 32), np.roll(start, 4, axis=1), np.roll(start, -4, axis=1)),
        (drawn(y=0.5 + 4 / 32), np.roll(start, 4, axis=0), np.roll(start, -4, axis=0)),
        (drawn(angle=0.25), np.rot90(start, -1), np.rot90(start)),
    )
    for moved, expected, opposite in pairs:
        assert (moved == expected).mean() > 0.97  # but for the rim, which is seen more or less against the background
        assert (moved == opposite).mean() < 0.96
    assert drawn(size=0.7).sum() > 1.3 * start.sum()


def test_clips_repeat_by_seed_and_number() -> None:
    first = list(motion_clips(16, frames=4, size=(32, 40), seed=0))
    assert [clip.label for clip in first] == [*range(8), *range(8)]
    assert first[3].frames.shape == (4, 32, 40, 3)
    again = list(motion_clips(9, frames=4, size=(32, 40), seed=0))
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(again, first, strict=False))
    assert not np.array_equal(first[0].frames, next(motion_clips(1, frames=4, size=(32, 40), seed=1)).frames)
    with pytest.raises(UserError, match="2 frames"):
        next(motion_clips(1, frames=1, seed=0))


def test_shuffled_frames_are_the_same_frames() -> None:
    clip = next(motion_clips(1, frames=6, size=(32, 32), seed=0)).frames
    mixed = shuffled(clip, seed=4)
    assert sorted(frame.tobytes() for frame in mixed) == sorted(frame.tobytes() for frame in clip)
    assert not np.array_equal(mixed, clip)
    assert np.array_equal(mixed, shuffled(clip, seed=4))
    assert np.array_equal(shuffled(clip[None], seed=4, axis=1)[0], mixed)


def test_the_shape_goes_around_the_picture_and_fades_where_sizes_close() -> None:
    """Coming in on one side while leaving on the other; gone at the smallest and at the largest size."""
    across = drawn(x=0.0)
    assert across[:, :3].any()
    assert across[:, -3:].any()
    assert not across[:, 14:18].any()
    assert not drawn(size=0.0).any()
    assert not drawn(size=0.9999).any()


def drawn(x: float = 0.5, y: float = 0.5, size: float = 0.4, angle: float = 0.0) -> np.ndarray:
    """(32, 32) bool: where the shape is seen, against the same background without it."""
    track = Track(np.array([x, x]), np.array([y, y]), np.array([size, 0.0]), np.array([angle, angle]))
    rng = np.random.default_rng(17)  # a heart of strong contrast, with hardly any noise
    clip = motion._paint(rng, track, (32, 32)).astype(int)
    return np.abs(clip[0] - clip[1]).max(-1) > 40


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ""])
def test_written_clips_are_read_back(tmp_path: Path, suffix: str) -> None:
    if suffix:
        pytest.importorskip("av", reason="PyAV is not installed: pip install 'pyramidvit[video]'")
    write_motion(tmp_path / "motion", train=8, val=8, frames=6, size=(32, 48), seed=5, suffix=suffix)
    data = read_clip_data(tmp_path / "motion")
    assert data.classes == MOTION_CLASSES
    assert [len(data.splits[name]) for name in ("train", "val")] == [8, 8]
    made = {clip.label: clip.frames for clip in motion_clips(8, frames=6, size=(32, 48), seed=10)}
    for item in data.splits["train"]:
        read = ClipReader(ClipSampling(6, 1, None)).read(item.path)
        assert read.shape == (6, 32, 48, 3)
        difference = read.astype(int) - made[item.label]
        assert not difference.any() if not suffix else np.abs(difference @ [0.299, 0.587, 0.114]).mean() < 4  # videos halve colour
    with pytest.raises(UserError, match="exists already"):
        write_motion(tmp_path / "motion", train=8, val=8)
    with pytest.raises(UserError, match="at least one clip of each"):
        write_motion(tmp_path / "few", train=8, val=7)
