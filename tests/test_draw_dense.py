"""Boxes, masks and label maps on pictures: what is drawn is what was predicted, at its place, legible on any picture."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.draw import LARGEST, annotate_detections, annotate_segmentation, class_colours, precision_recall_picture
from pyramidvit.draw.plots import short_count
from pyramidvit.geometry import encode_mask
from pyramidvit.types import BoxTarget, Detections, MaskTarget, SegMap

CLASSES = ("cat", "dog", "Ölpumpe")
HOSTILE = ("猫", "$\\frac{1}$", "_hidden", "tab\tnew\nline", "x" * 5000, "\udc80", "")


def found(
    *objects: tuple[float, ...], size: tuple[int, int] = (400, 500), masks: bool = False, classes: tuple[str, ...] = CLASSES
) -> Detections:
    """Objects as (x, y, right, bottom, label, score)."""
    table = torch.tensor(objects).reshape(-1, 6)
    bitmaps = torch.zeros(len(table), *size, dtype=torch.bool)
    for bitmap, (x, y, right, bottom) in zip(bitmaps, table[:, :4].int().tolist(), strict=True):
        bitmap[y:bottom, x:right] = True
    rles = tuple(map(encode_mask, bitmaps)) if masks else None
    return Detections("photo.jpg", classes, size, table[:, :4], table[:, 4].long(), table[:, 5], rles)


def places_of(picture: Image.Image, colour: tuple[int, int, int]) -> np.ndarray:
    """Coordinates (n, 2) as (row, column) of the pixels that have exactly this colour."""
    return np.argwhere((np.asarray(picture) == colour).all(axis=2))


def test_boxes_are_drawn_at_their_place_in_the_colour_of_their_class():
    picture = annotate_detections(np.full((400, 500, 3), 90, np.uint8), found((50, 60, 150, 260, 1, 0.9), (300, 100, 400, 300, 2, 0.8)))
    for label, box in ((1, (60, 50, 259, 149)), (2, (100, 300, 299, 399))):
        places = places_of(picture.crop((0, 0, 500, 400)), class_colours(3)[label])
        inside = places[places[:, 0] >= box[0]]
        assert (*inside.min(axis=0), *inside.max(axis=0)) == box
    assert len(places_of(picture, class_colours(3)[0])) == 0, "no cat was found"


@pytest.mark.parametrize("factor", [4, 0.1])
def test_boxes_follow_when_the_picture_is_enlarged_or_shrunk(factor: float):
    """Small pictures are shown larger and large ones smaller; boxes keep their place on what is seen."""
    H, W = round(400 * factor), round(500 * factor)
    scaled = tuple(factor * side for side in (100, 100, 300, 300))
    picture = annotate_detections(np.full((H, W, 3), 90, np.uint8), found((*scaled, 0, 0.9), size=(H, W)), legend=False)
    places = places_of(picture, class_colours(1)[0])
    low, high = places[places[:, 0] >= picture.height // 4].min(axis=0), places.max(axis=0)
    assert low / picture.height == pytest.approx([0.25, 0.25], abs=0.02)
    assert high / picture.height == pytest.approx([0.75, 0.75], abs=0.02)
    assert max(picture.size) <= LARGEST


def test_masks_are_half_transparent_and_the_best_lies_on_top():
    image = np.full((400, 500, 3), 200, np.uint8)
    picture = annotate_detections(image, found((100, 100, 300, 300, 0, 0.9), (100, 100, 400, 300, 1, 0.5), masks=True), legend=False)
    colours = np.array(class_colours(2))
    alone, both = np.asarray(picture)[200, 350], np.asarray(picture)[200, 200]
    assert np.abs(alone - (0.5 * 200 + 0.5 * colours[1])).max() <= 1
    assert np.abs(both - (0.5 * np.asarray(alone, float) + 0.5 * colours[0])).max() <= 1


def test_weak_findings_are_left_out_and_counted():
    image = np.full((400, 500, 3), 90, np.uint8)
    strong, weak = (50, 60, 150, 260, 1, 0.9), (300, 100, 400, 300, 2, 0.2)
    both = annotate_detections(image, found(strong, weak))
    assert len(places_of(both, class_colours(3)[2])) == 0
    alone = annotate_detections(image, found(strong))
    assert np.array_equal(np.asarray(both)[:400], np.asarray(alone)[:400])
    assert not np.array_equal(np.asarray(both)[400:], np.asarray(alone)[400:]), "the legend says that there is more"
    assert len(places_of(annotate_detections(image, found(strong, weak), min_score=0.1), class_colours(3)[2])) > 0


def test_true_objects_are_dashed_boxes_whatever_was_found():
    image = np.full((400, 500, 3), 90, np.uint8)
    truth = BoxTarget(torch.tensor([[50.0, 60, 150, 260]]), torch.tensor([0]))
    strip = np.asarray(annotate_detections(image, found(), truth, legend=False))[100:240, 50]
    assert {tuple(pixel) for pixel in strip.tolist()} == {(255, 255, 255), (28, 33, 39)}, "white and dark in turn"


def test_many_small_objects_stay_visible():
    """Their names would hide them all."""
    boxes = [(x, y, x + 8, y + 8, 0, 0.9) for x in range(10, 480, 20) for y in range(10, 380, 20)]
    picture = np.asarray(annotate_detections(np.full((400, 500, 3), 90, np.uint8), found(*boxes), legend=False))
    assert (picture == 90).all(axis=2).mean() > 0.5
    for x, y, *_ in boxes:
        assert (picture[y + 3 : y + 5, x + 3 : x + 5] == 90).all()


def test_names_do_not_cover_each_other():
    """Three objects at one place have three names above, inside and below."""
    one = annotate_detections(np.full((400, 500, 3), 90, np.uint8), found((100, 100, 300, 300, 0, 0.9)), legend=False)
    three = annotate_detections(
        np.full((400, 500, 3), 90, np.uint8), found(*((100, 100, 300, 300, 0, score) for score in (0.9, 0.8, 0.7))), legend=False
    )
    colour = class_colours(1)[0]
    assert len(places_of(three, colour)) > len(places_of(one, colour)) * 1.3


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (33, 50), (1500, 2100)])
@pytest.mark.parametrize("channels", [1, 4])
def test_any_picture_can_be_drawn_on(size: tuple[int, int], channels: int):
    image = np.full((*size, channels), 90, np.uint8)
    detections = found((0, 0, size[1], size[0], 0, 0.9), size=size, masks=True)
    truth = BoxTarget(detections.boxes, detections.labels)
    assert max(annotate_detections(image, detections, truth).size) <= 2 * LARGEST
    labels = torch.ones(size, dtype=torch.uint8)
    annotate_segmentation(image, SegMap("a.png", CLASSES, labels), MaskTarget(labels))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn(name: str):
    image, classes = np.zeros((40, 50, 3), np.uint8), (name, "b")
    annotate_detections(image, found((0, 0, 30, 30, 0, 0.9), size=(40, 50), classes=classes))
    annotate_segmentation(image, SegMap(f"{name}.png", classes, torch.zeros(40, 50, dtype=torch.uint8)))
    precision_recall_picture(Curves(classes, np.full((2, 101), 0.5)))


def test_label_maps_tint_the_picture_in_the_colours_of_the_legend():
    """PB-49: colours in a preview differed from the declared ones, and masks of 0 and 1 looked black."""
    labels = torch.zeros(400, 500, dtype=torch.uint8)
    labels[:, 250:] = 1
    picture = annotate_segmentation(np.full((400, 500, 3), 200, np.uint8), SegMap("a.png", ("background", "cell"), labels))
    pixels = np.asarray(picture)
    assert (pixels[200, 100] == 200).all(), "the background stays as it is"
    colour = class_colours(2)[1]
    assert np.abs(pixels[200, 400] - (0.5 * 200 + 0.5 * np.array(colour))).max() <= 1
    assert len(places_of(picture.crop((0, 400, 500, picture.height)), colour)) > 50, "the legend has the same colour"


def test_the_truth_of_a_label_map_stands_beside_it():
    labels, true = torch.zeros(400, 500, dtype=torch.uint8), torch.full((400, 500), 255, dtype=torch.uint8)
    picture = annotate_segmentation(np.full((400, 500, 3), 200, np.uint8), SegMap("a.png", CLASSES, labels), MaskTarget(true))
    assert picture.width > 1000
    grey = np.asarray(picture)[200, 800].astype(int)
    assert np.ptp(grey) < 15, "pixels without a label are grey"


def test_colours_of_classes_differ_and_do_not_depend_on_their_number():
    colours = class_colours(150)
    assert len(set(colours)) == 150
    assert class_colours(20) == colours[:20]
    table = np.array(colours[:80], float)
    distances = np.linalg.norm(table[:, None] - table[None], axis=2) + 1000 * np.eye(80)
    assert distances.min() > 25
    assert len(class_colours(6000)) == 6000


@dataclass(frozen=True)
class Curves:
    classes: tuple[str, ...]
    curves: np.ndarray


@pytest.mark.slow
def test_precision_recall_curves_are_drawn_for_any_number_of_classes():
    falling = np.linspace(1, 0.2, 101)
    for K in (1, 3, 40):
        curves = Curves(tuple(f"c{k}" for k in range(K)), np.tile(falling, (K, 1)))
        with Image.open(io.BytesIO(precision_recall_picture(curves))) as picture:
            assert 400 < picture.height < picture.width < 1400
    absent = np.vstack((falling, np.full(101, np.nan)))
    precision_recall_picture(Curves(("a", "b"), absent))
    with pytest.raises(ValueError, match="no class has an object"):
        precision_recall_picture(Curves(("a",), absent[1:]))


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (9999, "9999"), (12_345, "12k"), (3_400_000, "3.4M"), (24_000_000, "24M")])
def test_counts_of_pixels_fit_into_the_cells_of_a_confusion_matrix(count: int, text: str):
    assert short_count(count) == text
