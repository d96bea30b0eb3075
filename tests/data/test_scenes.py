"""Generated pictures: the labels are exact, the seed decides everything, and only shape tells the class."""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.data.scenes import MASK_CLASSES, PILE_CLASSES, SCENE_CLASSES, SHAPES, piles, scenes, write_scenes
from pyramidvit.errors import UserError


def test_class_is_the_shape_with_most_visible_pixels_by_a_clear_margin():
    for scene in scenes(64, size=(64, 80), seed=1):
        counts = torch.bincount(scene.mask.labels.flatten().long(), minlength=len(MASK_CLASSES))[1:]
        second, first = counts.sort().values[-2:]
        assert int(counts.argmax()) == scene.label.label
        assert first >= 2 * second


@pytest.mark.parametrize("draw", [scenes, piles])
def test_boxes_instance_masks_and_semantic_mask_agree(draw):
    for scene in draw(64, size=(64, 80), seed=2):
        assert scene.boxes.masks is not None
        semantic = torch.zeros(64, 80, dtype=torch.uint8)
        assert scene.boxes.masks.sum(0).max() <= 1, "a pixel shows one object only"
        for box, label, mask in zip(scene.boxes.boxes, scene.boxes.labels, scene.boxes.masks, strict=True):
            ys, xs = torch.nonzero(mask, as_tuple=True)
            assert len(ys), "a hidden object must not be listed"
            assert box.tolist() == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            semantic[mask] = int(label) + 1
        assert torch.equal(semantic, scene.mask.labels)


def test_objects_occlude_each_other_and_some_are_cut_by_the_edge():
    """Otherwise the exactness under occlusion above would be shown on easy pictures only."""
    touching, at_edge = 0, 0
    for scene in scenes(64, seed=3):
        boxes = scene.boxes.boxes
        at_edge += int((boxes[:, 0] == 0).any())
        touching += any(
            bool((torch.minimum(a[2:], b[2:]) > torch.maximum(a[:2], b[:2])).all()) for a, b in itertools.combinations(boxes, 2)
        )
    assert touching > 20
    assert at_edge > 5


def test_piles_have_every_class_and_no_main_object():
    seen = list(piles(64, seed=4))
    labels = torch.cat([scene.boxes.labels for scene in seen])
    assert torch.bincount(labels, minlength=len(PILE_CLASSES)).min() > 50
    assert len(torch.bincount(labels)) == len(PILE_CLASSES)
    overlapping = 0
    for scene in seen:
        boxes = scene.boxes.boxes
        assert 2 <= len(boxes) <= 6, "four to six were drawn; some are hidden by others"
        overlapping += any(
            bool((torch.minimum(a[2:], b[2:]) > torch.maximum(a[:2], b[:2])).all()) for a, b in itertools.combinations(boxes, 2)
        )
    assert overlapping > 48


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_lie_within_the_unit_circle_and_are_negative_inside(name: str):
    y, x = np.mgrid[-1.5:1.5:121j, -1.5:1.5:121j]
    inside = SHAPES[name](x, y) < 0
    assert 0.1 < inside.mean() * 9 < np.pi
    assert (np.hypot(x, y)[inside] <= 1.001).all()


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not():
    first, again, other = (list(scenes(9, size=(48, 32), seed=seed)) for seed in (5, 5, 6))
    assert all(np.array_equal(a.image, b.image) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a.image, b.image) for a, b in zip(first, other, strict=True))
    assert np.array_equal(next(scenes(1, size=(48, 32), seed=5)).image, first[0].image), "the count must not matter"
    assert first[0].image.shape == (48, 32, 3)
    assert first[0].image.dtype == np.uint8


@pytest.mark.slow
def test_colour_does_not_tell_the_class():
    """A linear classifier on colour statistics stays near chance (1/8), so a network has to see shapes."""
    pictures = list(scenes(1200, size=(32, 32), seed=7))
    pixels = np.stack([scene.image for scene in pictures]).reshape(1200, -1, 3) / 255
    features = np.concatenate((pixels.mean(1), pixels.std(1), np.median(pixels, 1), np.ones((1200, 1))), axis=1)
    truth = np.array([scene.label.label for scene in pictures])
    weights = np.linalg.lstsq(features[:800], np.eye(len(SCENE_CLASSES))[truth[:800]], rcond=None)[0]
    assert ((features[800:] @ weights).argmax(1) == truth[800:]).mean() < 0.25


def _digest(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*.png"))}


def test_written_folders_are_balanced_and_reproducible_and_the_splits_differ(tmp_path: Path):
    for name in ("a", "b"):
        write_scenes(tmp_path / name, train=16, val=8, size=(32, 48), seed=3)
    files = _digest(tmp_path / "a")
    assert files == _digest(tmp_path / "b")
    assert len(set(files.values())) == 24
    for split, each in (("train", 2), ("val", 1)):
        assert [p.name for p in sorted((tmp_path / "a" / split).iterdir())] == list(SCENE_CLASSES)
        assert all(len(list((tmp_path / "a" / split / name).glob("*.png"))) == each for name in SCENE_CLASSES)
    with Image.open(next(iter((tmp_path / "a").rglob("*.png")))) as picture:
        assert (picture.size, picture.mode) == ((48, 32), "RGB")


def test_wrong_requests_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="at least 32"):
        next(scenes(1, size=(16, 64), seed=0))
    with pytest.raises(UserError, match="at least one scene of each"):
        write_scenes(tmp_path, train=16, val=4, size=(32, 32))
    assert not list(tmp_path.iterdir()), "nothing may be written before the request is known to be right"
    (tmp_path / "val").mkdir()
    with pytest.raises(UserError, match="exists already"):
        write_scenes(tmp_path, train=16, val=8, size=(32, 32))
