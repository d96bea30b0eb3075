"""Whatever happens to a picture happens to its boxes, masks and label maps: painted objects are found where the truth says they are."""

from dataclasses import replace

import pytest
import torch

from pyramidvit.config import DenseConfig, validate
from pyramidvit.data.dense_targets import IGNORE, crop_target, flip_target, one_class_rules, resize_target
from pyramidvit.data.dense_transforms import distort, eval_transform, kept_size, train_transform
from pyramidvit.errors import UserError
from pyramidvit.geometry import masks_to_boxes
from pyramidvit.types import BoxTarget, MaskTarget, Preprocess, Sample

PLAIN = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
BOXES = torch.tensor([[8, 10, 40, 30], [60, 4, 90, 50], [20, 44, 36, 60.0]])


def painted(height: int = 64, width: int = 100) -> Sample:
    """A dark picture with a red, a green and a blue rectangle, which are its objects."""
    image, masks = torch.zeros(3, height, width, dtype=torch.uint8), torch.zeros(3, height, width).bool()
    for mask, channel, (x1, y1, x2, y2) in zip(masks, image, BOXES.int().tolist(), strict=True):
        channel[y1:y2, x1:x2] = 255
        mask[y1:y2, x1:x2] = True
    areas = masks.flatten(1).sum(1).float()
    target = BoxTarget(BOXES.clone(), torch.tensor([0, 1, 2]), masks, torch.tensor([False, True, False]), areas)
    return Sample(image, target, "painted.png", (height, width))


def as_labels(sample: Sample) -> Sample:
    assert isinstance(sample.target, BoxTarget)
    assert sample.target.masks is not None
    labels = torch.zeros(sample.size, dtype=torch.uint8)
    for number, mask in enumerate(sample.target.masks, 1):
        labels[mask] = number
    return replace(sample, target=MaskTarget(labels))


def found(image: torch.Tensor, number: int) -> torch.Tensor:
    """Where a picture shows an object (H, W)."""
    return image[number] > 0.5


RECIPES = {
    "plain": DenseConfig(short=64, long=200, flip_x=0),
    "flips": DenseConfig(short=64, long=200, flip_x=0.5, flip_y=0.5),
    "larger": DenseConfig(short=151, long=1000),
    "fixed": DenseConfig(resize="fixed", input_size=(96, 130)),
    "jitter and crop": DenseConfig(short=64, long=200, scale=(0.7, 2.0), random_crop=(60, 60), flip_y=0.5),
    "shorts": DenseConfig(shorts=(64, 96, 128), long=1333),
    "crop first": DenseConfig(shorts=(64, 96), long=200, crop_first=0.7, crop_shorts=(80, 120), crop_sides=(40, 70)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_boxes_and_masks_lie_on_the_objects_they_belong_to(name: str) -> None:
    transform = train_transform(RECIPES[name], PLAIN)
    seen = 0
    for seed in range(20):
        torch.manual_seed(seed)
        sample = transform(painted())
        target = sample.target
        assert isinstance(target, BoxTarget)
        assert target.masks is not None
        assert target.crowd is not None
        assert target.areas is not None
        assert sample.image.dtype == torch.float32
        assert target.masks.shape[1:] == sample.image.shape[1:]
        assert sample.size == (64, 100)  # of the original
        seen += len(target.labels)
        for box, label, mask, crowd, area in zip(target.boxes, target.labels, target.masks, target.crowd, target.areas, strict=True):
            shown = found(sample.image, int(label))
            assert (shown ^ mask).sum() <= 2 * (box[2:] - box[:2]).sum() + 4  # a pixel along the outline
            assert (box - masks_to_boxes(mask[None])[0]).abs().max() <= 1.5
            assert bool(crowd) == (int(label) == 1)
            assert float(area) == pytest.approx(int(mask.sum()), rel=0.15, abs=60)
        shown = [number for number in range(3) if found(sample.image, number).any()]
        assert shown == target.labels.tolist()
    assert seen >= 40


@pytest.mark.parametrize("name", RECIPES)
def test_label_maps_lie_on_the_picture(name: str) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        sample = train_transform(RECIPES[name], PLAIN)(as_labels(painted()))
        assert isinstance(sample.target, MaskTarget)
        labels = sample.target.labels
        assert labels.dtype == torch.uint8
        assert labels.shape == sample.image.shape[1:]
        assert set(labels.unique().tolist()) <= {0, 1, 2, 3, IGNORE}
        for number in range(3):
            assert (found(sample.image, number) ^ (labels == number + 1)).float().mean() < 0.02


def test_the_truth_and_the_picture_change_together_or_not_at_all() -> None:
    """Boxes without masks go the same way as boxes with them."""
    sample = painted()
    assert isinstance(sample.target, BoxTarget)
    bare = replace(sample, target=replace(sample.target, masks=None))
    for seed in range(10):
        results = []
        for one in (sample, bare):
            torch.manual_seed(seed)
            results.append(train_transform(RECIPES["jitter and crop"], PLAIN)(one))
        with_masks, without = results
        assert with_masks.image.equal(without.image)
        assert isinstance(with_masks.target, BoxTarget)
        assert isinstance(without.target, BoxTarget)
        assert with_masks.target.labels.equal(without.target.labels)
        assert torch.allclose(with_masks.target.boxes, without.target.boxes, atol=1.5)


def test_a_crop_may_leave_nothing() -> None:
    """PB-41: and what is left of an object has the box of its visible part."""
    target = painted().target
    assert isinstance(target, BoxTarget)
    nothing = crop_target(target, 0, 44, (30, 10))
    assert isinstance(nothing, BoxTarget)
    assert nothing.masks is not None
    assert (nothing.boxes.shape, nothing.masks.shape, len(nothing.labels)) == ((0, 4), (0, 30, 10), 0)
    part = crop_target(target, 20, 30, (30, 40))
    assert isinstance(part, BoxTarget)
    assert part.boxes.tolist() == [[0, 0, 10, 10], [30, 0, 40, 30], [0, 24, 6, 30]]
    assert part.areas is not None
    assert part.areas.tolist() == [100, 300, 36]


def test_an_oblique_object_gets_the_box_of_what_is_seen_of_it() -> None:
    mask = torch.eye(40).bool()[None]
    target = BoxTarget(torch.tensor([[0, 0, 40, 40.0]]), torch.tensor([0]), mask)
    part = crop_target(target, 0, 10, (20, 30))
    assert isinstance(part, BoxTarget)
    assert part.boxes.tolist() == [[0, 10, 10, 20]]
    hidden = crop_target(target, 0, 30, (20, 10))  # its box reaches in, none of its pixels does
    assert isinstance(hidden, BoxTarget)
    assert len(hidden.labels) == 0


def test_whole_objects_keep_their_annotated_boxes_in_crops() -> None:
    """Masks are whole pixels; annotated boxes need not be."""
    target = painted().target
    assert isinstance(target, BoxTarget)
    target = replace(target, boxes=target.boxes + 0.25)
    part = crop_target(target, 2, 3, (60, 90))
    assert isinstance(part, BoxTarget)
    assert part.boxes[0].tolist() == [5.25, 8.25, 37.25, 28.25]


def test_flips_undo_themselves_and_boxes_move_by_the_width() -> None:
    target = painted().target
    assert isinstance(target, BoxTarget)
    for axis in (-1, -2):
        once = flip_target(target, axis, (64, 100))
        twice = flip_target(once, axis, (64, 100))
        assert isinstance(once, BoxTarget)
        assert isinstance(twice, BoxTarget)
        assert once.masks is not None
        assert masks_to_boxes(once.masks).equal(once.boxes)
        assert twice.boxes.equal(target.boxes)


def test_resizing_scales_each_axis_and_areas_by_both() -> None:
    target = resize_target(painted().target, (64, 100), (128, 50))
    assert isinstance(target, BoxTarget)
    assert target.boxes[0].tolist() == [4, 20, 20, 60]
    assert target.areas is not None
    assert target.areas[0] == 640


@pytest.mark.parametrize(
    ("size", "result"),
    [((480, 640), (800, 1067)), ((427, 640), (800, 1199)), ((300, 1000), (400, 1333)), ((1000, 300), (1333, 400)), ((5, 4000), (32, 1333))],
)
def test_sizes_are_those_of_the_published_detectors(size: tuple[int, int], result: tuple[int, int]) -> None:
    """Short side 800, long side at most 1333, each rounded to the nearest."""
    assert kept_size(size, 800, 1333) == result


def test_evaluation_resizes_the_picture_alone() -> None:
    sample = painted()
    seen = eval_transform(DenseConfig(short=96, long=1333), PLAIN)(sample)
    assert seen.image.shape == (3, 96, 150)
    assert seen.target is sample.target
    assert seen.size == (64, 100)
    upwards = eval_transform(DenseConfig(short=96, long=1333, multiple=32), PLAIN)(sample)
    assert upwards.image.shape == (3, 96, 160)
    fixed = eval_transform(DenseConfig(resize="fixed", input_size=(64, 64), scale=(0.5, 2), random_crop=(32, 32)), PLAIN)(sample)
    assert fixed.image.shape == (3, 64, 64)


def test_small_pictures_are_padded_to_the_crop() -> None:
    """Zeros after normalising, ignored in the label map, nothing in masks of objects."""
    grey = Preprocess(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    augment = DenseConfig(short=64, long=100, random_crop=(96, 128), flip_x=0)
    labels = train_transform(augment, grey)(as_labels(painted()))
    assert isinstance(labels.target, MaskTarget)
    assert labels.image.shape == (3, 96, 128)
    assert (labels.image[:, 64:] == 0).all()
    assert (labels.image[:, :64, 100:] == 0).all()
    assert (labels.target.labels[64:] == IGNORE).all()
    assert (labels.target.labels[:64, 100:] == IGNORE).all()
    assert (labels.target.labels[:64, :100] != IGNORE).all()
    boxes = train_transform(augment, grey)(painted())
    assert isinstance(boxes.target, BoxTarget)
    assert boxes.target.masks is not None
    assert boxes.target.masks.shape == (3, 96, 128)
    assert boxes.target.boxes.equal(BOXES)


def test_crops_that_one_class_rules_are_drawn_again() -> None:
    labels = torch.zeros(64, 64, dtype=torch.uint8)
    labels[:, 48:] = 1
    sample = Sample(torch.zeros(3, 64, 64, dtype=torch.uint8), MaskTarget(labels), "a", (64, 64))
    shares = {}
    for limit in (1.0, 0.75):
        augment = DenseConfig(short=64, long=64, random_crop=(32, 32), most_of_one=limit)
        targets = []
        for seed in range(40):
            torch.manual_seed(seed)
            targets.append(train_transform(augment, PLAIN)(sample).target)
        shares[limit] = sum(one_class_rules(target, 0.75) for target in targets) / 40
    assert shares[1.0] > 0.4
    assert shares[0.75] < 0.1


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_distortion_stays_in_range_and_changes_pictures(channels: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(channels, 20, 30, generator=generator)
    image = (image * 255).to(torch.uint8) if dtype == torch.uint8 else image
    before, changed = image.clone(), 0
    for seed in range(20):
        torch.manual_seed(seed)
        result = distort(image)
        assert (result.dtype, result.shape) == (dtype, image.shape)
        assert 0 <= float(result.min()) <= float(result.max()) <= (255 if dtype == torch.uint8 else 1)
        changed += not result.equal(image)
    assert changed >= 10
    assert image.equal(before)


def test_the_same_seed_gives_the_same_view_and_another_another() -> None:
    """Of torch's global generator, which the loader seeds."""
    transform = train_transform(RECIPES["jitter and crop"].model_copy(update={"distort": True}), PLAIN)
    views = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        views.append(transform(painted()).image)
    assert views[0].equal(views[1])
    assert not views[0].equal(views[2])


def test_the_sample_that_went_in_is_not_changed() -> None:
    sample, fresh = painted(), painted()
    train_transform(RECIPES["jitter and crop"], PLAIN)(sample)
    assert sample.image.equal(fresh.image)
    assert isinstance(sample.target, BoxTarget)
    assert sample.target.boxes.equal(BOXES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"short": 16}, "dense.short: .* greater than or equal to 32, got 16"),
        ({"scale": (2.0, 1.0)}, "dense.scale: the first value must not be above the second"),
        ({"flip_x": 1.5}, "dense.flip_x: .* less than or equal to 1"),
        ({"multiple": 0}, "dense.multiple: .* greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_explained(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        validate({"dense": settings}, "a test")


def test_a_picture_of_other_channels_is_refused() -> None:
    with pytest.raises(UserError, match="has 3 channels, but mean and std have 4"):
        train_transform(DenseConfig(), Preprocess.for_channels(4))(painted())
