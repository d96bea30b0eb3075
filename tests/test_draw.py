"""Pictures for people: any picture and any name can be drawn, and what is drawn is what was predicted."""

import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from pyramidvit.draw import (
    BLUE,
    GREEN,
    LARGEST,
    RED,
    SMALLEST,
    TRACK,
    annotate_classes,
    confusion_picture,
    contact_sheet,
    curves_picture,
    shorten,
    shown,
    typeset,
)
from pyramidvit.types import ClassScores

HOSTILE = ("Ölpumpe größe", "猫", "$\\frac{1}$", "<script>alert(1)</script>", "tab\tnew\nline", "x" * 5000, "\udc80", "")


def scores(probabilities: list[float], classes: tuple[str, ...] | None = None, path: str = "photo.jpg") -> ClassScores:
    return ClassScores(path, classes or tuple(f"class {i}" for i in range(len(probabilities))), torch.tensor(probabilities))


def pixels_of(picture: Image.Image, colour: str, below: int = 0) -> np.ndarray:
    """Coordinates (n, 2) as (row, column) of the pixels that have exactly this colour."""
    return np.argwhere((np.asarray(picture)[below:] == ImageColor.getrgb(colour)).all(axis=2))


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (3, 5000), (5000, 3), (32, 48), (1500, 2100)])
@pytest.mark.parametrize("channels", [1, 3, 4, 13])
def test_any_picture_becomes_one_of_a_size_to_look_at(size: tuple[int, int], channels: int):
    picture = annotate_classes(np.full((*size, channels), 90, np.uint8), scores([0.7, 0.3]), "class 0")
    assert 384 <= picture.width <= LARGEST
    assert 100 <= picture.height <= 2 * LARGEST
    assert len(pixels_of(picture, "#5a5a5a")) > 100, "the picture itself must be visible"


def test_small_pictures_are_enlarged_by_whole_factors_and_keep_their_pixels():
    image = np.random.default_rng(0).integers(0, 256, (50, 100, 3), np.uint8)
    picture = np.asarray(shown(image))
    factor = SMALLEST // 100
    assert np.array_equal(picture, image.repeat(factor, 0).repeat(factor, 1))


def test_pictures_of_a_usual_size_are_shown_as_they_are():
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    assert np.array_equal(np.asarray(annotate_classes(image, scores([1.0])))[:480, :640], image)


def test_two_channels_are_grey_and_further_bands_are_left_out():
    image = np.arange(400 * 400 * 5, dtype=np.uint8).reshape(400, 400, 5)
    assert np.array_equal(np.asarray(shown(image)), image[..., :3])
    assert np.array_equal(np.asarray(shown(image[..., :2])), image[..., :1].repeat(3, 2))


def test_bars_are_as_long_as_the_probabilities():
    picture = annotate_classes(np.zeros((400, 800, 3), np.uint8), scores([0.6, 0.3, 0.1]))
    bars = pixels_of(picture, BLUE)
    rows = np.split(np.unique(bars[:, 0]), np.flatnonzero(np.diff(np.unique(bars[:, 0])) > 1) + 1)
    lengths = [np.ptp(bars[np.isin(bars[:, 0], row), 1]) for row in rows]
    assert len(lengths) == 3
    assert lengths[1] / lengths[0] == pytest.approx(0.5, abs=0.03)
    assert lengths[2] / lengths[0] == pytest.approx(1 / 6, abs=0.03)


def test_right_and_wrong_answers_differ_in_colour_and_in_text():
    image, guess = np.zeros((400, 400, 3), np.uint8), scores([0.6, 0.4])
    right, wrong, unknown = (annotate_classes(image, guess, truth) for truth in ("class 0", "class 1", None))
    seen = [[bool(len(pixels_of(picture, colour))) for colour in (GREEN, RED, BLUE)] for picture in (right, wrong, unknown)]
    assert seen == [[True, False, False], [True, True, False], [False, False, True]]
    heads = [np.asarray(picture)[400:430].mean(axis=2) for picture in (right, wrong, unknown)]
    assert all((heads[a] != heads[b]).sum() > 50 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_the_truth_has_a_row_even_when_it_is_not_among_the_five_best():
    image, guess = np.zeros((400, 400, 3), np.uint8), scores([0.4, 0.2, 0.15, 0.1, 0.09, 0.06])
    assert annotate_classes(image, guess, "class 5").height > annotate_classes(image, guess, "class 4").height


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn(name: str):
    others = ("a", "b")
    guess = scores([0.5, 0.3, 0.2], (name, *others), path=f"folder/{name}.jpg")
    for truth in (name, "a", "not a class of the model"):
        assert annotate_classes(np.zeros((20, 20, 3), np.uint8), guess, truth).width == 384
    contact_sheet([np.zeros((20, 20, 3), np.uint8)], [name])
    confusion_picture(Result((name, *others), np.eye(3, dtype=int)))


def test_text_never_reaches_the_bars():
    """Long names are cut with an ellipsis where the bars begin."""
    picture = annotate_classes(np.zeros((400, 400, 3), np.uint8), scores([0.001] * 3, ("w" * 200,) * 3))
    track = pixels_of(picture, TRACK, below=400)
    column = int(track[:, 1].min())
    assert (np.asarray(picture)[400:, column - 8 : column] == 255).all()


def test_shorten_keeps_the_ending_of_files():
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghij", 4) == "abcd…"
    assert shorten("abcdefgh.jpg", 8, keep_end=True) == "abcd….jpg"
    assert shorten("abc", 0) == "…"


def test_characters_that_no_font_has_become_boxes_and_others_stay():
    text, path = typeset("größe ✓ Привет")
    assert text == "größe ✓ Привет"
    assert Path(path).name == "DejaVuSans.ttf"
    assert typeset("a\x00b\U0010fffd") == ("a□b□", path)


@dataclass(frozen=True)
class Result:
    classes: tuple[str, ...]
    confusion: np.ndarray


def decode(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize("K", [1, 8, 61])
def test_confusion_pictures_stay_within_a_readable_size(K: int):
    data = confusion_picture(Result(tuple(f"class {i}" for i in range(K)), np.eye(K, dtype=int)))
    height, width, _ = decode(data).shape
    assert 400 <= height <= 1700
    assert 400 <= width <= 1850


def test_confusion_is_shaded_by_the_share_of_the_true_class():
    """Dark on the diagonal where all are right, whatever the size of the class; an empty row is grey, not white."""
    right = decode(confusion_picture(Result(("a", "b"), np.array([[1000, 0], [0, 1]]))))
    wrong = decode(confusion_picture(Result(("a", "b"), np.array([[0, 1000], [1, 0]]))))
    absent = decode(confusion_picture(Result(("a", "b"), np.array([[5, 0], [0, 0]]))))
    dark = (right.sum(axis=2) < 250) & (right[..., 2] > 90)
    rows, columns = np.nonzero(dark[:, : right.shape[1] // 2])
    corner = (rows.min() + 12, columns.min() + 12)
    assert wrong[corner].sum() > 700 > 250 > right[corner].sum()
    assert (absent == ImageColor.getrgb(TRACK)).all(axis=2).sum() > 5000


ROWS = [
    {"epoch": e, "step": 10 * e, "train_loss": 2 / e, "lr": 1e-3 / e, "top1": 1 - 1 / e, "note": "x", "seconds": 99.0} for e in (1, 2, 3)
]


def test_curves_have_a_panel_for_losses_shares_and_learning_rate():
    three = decode(curves_picture(ROWS)).shape[0]
    one = decode(curves_picture([{"epoch": row["epoch"], "train_loss": row["train_loss"]} for row in ROWS])).shape[0]
    assert three > 2 * one


def test_curves_cope_with_one_epoch_and_with_missing_evaluations():
    curves_picture(ROWS[:1])
    curves_picture([{**ROWS[0]}, {k: v for k, v in ROWS[1].items() if k != "top1"}, {**ROWS[2], "top1": None}])
    with pytest.raises(ValueError, match="no curve"):
        curves_picture([])


def test_contact_sheets_have_a_cell_per_picture():
    pictures = [np.full((30, 40, 3), 10 * i, np.uint8) for i in range(7)]
    sheet = contact_sheet(pictures, [str(i) for i in range(7)], [True] * 6 + [False], columns=3, side=100)
    assert sheet.size == (5 + 3 * 105, 5 + 3 * (100 + 14 + 5))
    assert all(len(pixels_of(sheet, f"#{10 * i:02x}{10 * i:02x}{10 * i:02x}")) > 5000 for i in range(1, 7))
    strip = np.asarray(sheet.crop((0, 105, sheet.width, 119))).astype(int)
    assert (strip[..., 1] > strip[..., 0] + 60).any(), "right answers have green captions"
    strip = np.asarray(sheet.crop((0, sheet.height - 19, 105, sheet.height))).astype(int)
    assert (strip[..., 0] > strip[..., 1] + 60).any(), "the wrong one has a red caption"


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match="uint8"):
        annotate_classes(np.zeros((4, 4, 3), np.float32), scores([1.0]))
    with pytest.raises(ValueError, match="at least one pixel"):
        annotate_classes(np.zeros((0, 4, 3), np.uint8), scores([1.0]))
    with pytest.raises(ValueError, match="at least one picture"):
        contact_sheet([], [])


@pytest.mark.slow
def test_pyplot_is_never_loaded():
    """Its figures are global state of the process: they leak memory in servers and fight with notebooks."""
    code = """
import sys
from pyramidvit.draw import curves_picture
assert "matplotlib" not in sys.modules, "loaded before it is needed"
curves_picture([{"epoch": 1, "lr": 1.0}])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
