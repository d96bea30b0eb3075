"""Film strips and timelines: what is where on the pictures."""

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.draw import annotate_clip, annotate_timeline, film_strip, mosaic
from pyramidvit.types import ClassScores, Film, Timeline


def film(frames: int, height: int = 30, width: int = 40, channels: int = 3) -> Film:
    """Frame t has the value 20 t."""
    values = np.broadcast_to(np.arange(frames, dtype=np.uint8)[:, None, None, None] * 20, (frames, height, width, channels))
    return Film(values, np.arange(frames) / 10, frames / 10)


def row(picture: Image.Image, y: int) -> list[int]:
    """Values of the frames that are met along a row, in order."""
    line = np.asarray(picture)[y, :, 0].tolist()
    return [value for value, before in zip(line[1:], line, strict=False) if value != before and value < 250]


def test_frames_stand_in_the_order_of_their_times():
    """Also where clips were read in another order; evenly chosen from more than eight, with the first and the last."""
    whole = film(12)
    assert row(film_strip(whole), 20) == [0, 40, 60, 100, 120, 160, 180, 220]
    backwards = Film(whole.frames[::-1], whole.times[::-1].copy(), whole.duration)
    assert row(film_strip(backwards), 20) == row(film_strip(whole), 20)


def test_the_same_moment_is_shown_once():
    held = film(3)
    held = Film(held.frames[[0, 1, 2, 2, 2]], held.times[[0, 1, 2, 2, 2]], held.duration)
    assert row(film_strip(held), 20) == [0, 20, 40]


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (1, 1), (720, 1280)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_any_shape_can_be_drawn(size: tuple[int, int], channels: int):
    height, width = size
    scores = ClassScores("a/b.mp4", ("x", "y"), torch.tensor([0.25, 0.75]))
    picture = annotate_clip(film(2, height, width, channels), scores, "y")
    assert 384 <= picture.width <= 1280
    assert picture.height < 800


def test_a_timeline_is_high_where_a_class_is_probable():
    """The first half belongs to the first class, the second half to the second one."""
    probabilities = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.2, 0.8, 0.0]])
    what = Timeline("a.mp4", ("walk", "run", "sit"), (0.0, 1.0, 2.0, 3.0), 1.0, 4.0, probabilities)
    picture = np.asarray(annotate_timeline(film(8), what)).astype(int)
    blue = (picture == (0, 114, 178)).all(-1)
    orange = (picture == (230, 159, 0)).all(-1)
    assert np.nonzero(blue)[1].max() < np.nonzero(orange)[1].min() + 2
    assert blue.any(1).sum() > orange.any(1).sum()  # 0.9 is higher than 0.8
    assert what.actions() == [(0.0, 2.0, "walk", pytest.approx(0.9)), (2.0, 4.0, "run", pytest.approx(0.8))]


def test_four_moments_row_by_row():
    frames = film(16, 2, 2).frames
    picture = mosaic(list(frames))[::2, ::2, 0]
    assert picture.tolist() == [[40, 120], [200, 24]]  # frames 2, 6, 10 and 14, whose value is 280 - 256


def test_films_and_timelines_are_checked():
    with pytest.raises(ValueError, match="as many times"):
        Film(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(3), 1.0)
    with pytest.raises(ValueError, match="at least one window"):
        Timeline("a", ("x",), (), 1.0, 1.0, torch.zeros(0, 1))
