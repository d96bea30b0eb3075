"""Segmentation results against brute force, and the cases where evaluation scripts usually break."""

import json
import pickle

import numpy as np
import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.metrics import SegmentationMetric, SegmentationResult
from pyramidvit.metrics.pixels import pack, unpack
from pyramidvit.types import MaskTarget, SegMap

CLASSES = ("background", "cell", "Ölpumpe")
Pair = tuple[torch.Tensor, torch.Tensor]


def feed(metric: SegmentationMetric, pairs: list[Pair], start: int = 0) -> None:
    predictions = [SegMap(f"{number:03}.png", metric.classes, ours) for number, (ours, _) in enumerate(pairs, start)]
    metric.update(predictions, [MaskTarget(true) for _, true in pairs])


def evaluate(pairs: list[Pair], classes: tuple[str, ...] = CLASSES, **settings: int) -> SegmentationResult:
    metric = SegmentationMetric(classes, **settings)
    feed(metric, pairs)
    return metric.compute()


def maps(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.uint8)


def random_pairs(n: int, K: int, seed: int = 0) -> list[Pair]:
    """Blocks of classes, two in three pixels right, some without a label, sizes all different."""
    generator = torch.Generator().manual_seed(seed)
    pairs = list[Pair]()
    for number in range(n):
        size = (12 + number, 40 - number)
        true = torch.randint(K, size, generator=generator, dtype=torch.uint8)
        ours = torch.where(
            torch.rand(size, generator=generator) < 0.66, true, torch.randint(K, size, generator=generator, dtype=torch.uint8)
        )
        true[torch.rand(size, generator=generator) < 0.1] = 255
        pairs.append((ours, true))
    return pairs


@pytest.mark.parametrize("K", [2, 3, 9])
def test_every_number_equals_brute_force(K: int):
    pairs = random_pairs(6, K)
    result = evaluate(pairs, tuple(f"class {k}" for k in range(K)))
    ours, true = torch.cat([p.flatten() for p, _ in pairs]), torch.cat([t.flatten() for _, t in pairs])
    ours, true = ours[true != 255], true[true != 255]
    ious, dices, recalls = [], [], []
    for k, row in enumerate(result.per_class):
        both, a, b = (int(x.sum()) for x in ((ours == k) & (true == k), ours == k, true == k))
        assert (row.iou, row.dice) == (both / (a + b - both), 2 * both / (a + b))
        assert (row.recall, row.precision, row.pixels) == (both / b, both / a, b)
        assert row.pictures == sum(bool((t == k).any()) for _, t in pairs)
        per_picture = [2 * int(((p == k) & (t == k)).sum()) / int(((p == k) & (t != 255)).sum() + (t == k).sum()) for p, t in pairs]
        assert row.dice_per_picture == pytest.approx(np.mean(per_picture))
        ious.append(row.iou)
        dices.append(row.dice)
        recalls.append(row.recall)
        for other in range(K):
            assert result.confusion[k, other] == int(((true == k) & (ours == other)).sum())
    assert (result.miou, result.dice, result.mean_recall) == pytest.approx((np.mean(ious), np.mean(dices), np.mean(recalls)))
    assert result.pixel_accuracy == float((ours == true).double().mean())
    assert result.ignored == pytest.approx(1 - len(true) / sum(t.numel() for _, t in pairs))
    assert result.miou_in_truth == pytest.approx(result.miou)


def test_batches_order_and_processes_do_not_matter():
    """PB-86: the score changed with the batch size. PB-90: pictures counted twice across processes."""
    pairs = random_pairs(21, 3)
    whole = evaluate(pairs, worst=5)
    for batch in (1, 2, 5):
        metric = SegmentationMetric(CLASSES, worst=5)
        for start in range(0, 21, batch):
            feed(metric, pairs[start : start + batch], start)
        assert metric.compute().to_json() == whole.to_json()
    ranks = [SegmentationMetric(CLASSES, worst=5) for _ in range(2)]
    for number, pair in reversed(list(enumerate(pairs))):
        feed(ranks[number % 2], [pair], number)
    ranks[0].rows = pickle.loads(pickle.dumps(ranks[1].rows)) + ranks[0].rows
    assert ranks[0].compute().to_json() == whole.to_json()


def test_one_picture_without_the_class_does_not_dominate():
    """PB-86: a mean of per-picture scores gave an empty picture with one wrong pixel the weight of all others."""
    full = torch.ones(20, 20, dtype=torch.uint8)
    full[:2] = 0
    empty, speck = torch.zeros(20, 20, dtype=torch.uint8), torch.zeros(20, 20, dtype=torch.uint8)
    speck[0, 0] = 1
    result = evaluate([(full, full), (speck, empty)], CLASSES[:2])
    cell = result.per_class[1]
    assert cell.iou == 360 / 361
    assert cell.dice_per_picture == 0.5, "the mean over pictures is there too, under its own name"


def test_a_class_absent_from_both_maps_of_a_picture_counts_as_one_per_picture():
    """PB-91: the rule for empty pictures is stated, and followed."""
    empty = torch.zeros(4, 4, dtype=torch.uint8)
    some = maps([0, 0, 1, 1], [0, 0, 1, 1])
    result = evaluate([(empty, empty), (some, some)], CLASSES[:2])
    assert result.per_class[1].dice_per_picture == 1
    overlap = result.tables()[0]
    assert any("absent from both maps counts as 1" in str(row[2]) for row in overlap.rows)


def test_absent_classes_are_left_out_and_both_means_are_given():
    """A class that is nowhere has no number; one that is only predicted is wrong in one mean and left out of the other."""
    true = maps([0, 0, 0, 0], [0, 0, 0, 0])
    ours = maps([0, 0, 0, 0], [0, 0, 1, 1])
    result = evaluate([(ours, true)])
    background, cell, pump = result.per_class
    assert (background.iou, cell.iou, pump.iou) == (0.75, 0.0, None)
    assert (cell.recall, cell.precision, pump.precision) == (None, 0.0, None)
    assert (result.miou, result.miou_in_truth) == (0.375, 0.75)
    assert result.dice_in_truth == 2 * 6 / 14


def test_pixels_without_a_label_count_nowhere():
    true, ours = maps([0, 255, 1, 1]), maps([0, 1, 1, 1])
    result = evaluate([(ours, true)], CLASSES[:2])
    assert (result.miou, result.pixel_accuracy, result.ignored) == (1.0, 1.0, 0.25)
    other = evaluate([(ours, maps([0, 9, 1, 1]))], CLASSES[:2], ignore=9)
    assert other.miou == 1.0


def test_masks_of_0_and_255_are_refused():
    """PB-85, PB-48: the foreground is lost when 255 is ignored, and IoU goes above 1 when it is not."""
    true = maps([0, 0, 255, 255])
    with pytest.raises(UserError, match="nothing but 0 and 255"):
        evaluate([(maps([0, 0, 1, 1]), true)], CLASSES[:2])
    with pytest.raises(UserError, match=r"000\.png has 2 pixels with label 255"):
        evaluate([(maps([0, 0, 1, 1]), true)], CLASSES[:2], ignore=254)
    with pytest.raises(UserError, match="No pixel has a label"):
        evaluate([(maps([0, 0]), maps([255, 255]))])


def test_labels_beyond_the_classes_are_named():
    """PB-51: an opaque assertion on the device; here the file, the value and the number of pixels."""
    with pytest.raises(UserError, match=r"The mask of 000\.png has 3 pixels with label 7, but the model knows 3 classes"):
        evaluate([(maps([0, 0, 0, 0]), maps([7, 7, 7, 0]))])


def test_chance_is_what_the_most_frequent_class_everywhere_reaches():
    pairs = random_pairs(5, 3)
    counts = torch.cat([true[true != 255] for _, true in pairs]).bincount()
    constant = [(torch.full_like(true, int(counts.argmax())), true) for _, true in pairs]
    assert evaluate(constant).miou == pytest.approx(evaluate(pairs).chance)


def test_the_interval_is_over_pictures():
    """Equal pictures leave no doubt, very different ones much; one picture says nothing about others."""
    good, poor = random_pairs(1, 2)[0], (maps([0, 0, 0, 0]), maps([1, 1, 1, 0]))
    pairs = random_pairs(20, 2)
    result = evaluate(pairs, CLASSES[:2])
    low, high = result.interval
    assert low < result.miou < high
    assert evaluate(pairs, CLASSES[:2]).interval == (low, high)
    alike = evaluate([good] * 20, CLASSES[:2])
    assert alike.interval == pytest.approx((alike.miou, alike.miou))
    mixed = evaluate([good, *[poor] * 200], CLASSES[:2]).interval
    assert mixed[1] - mixed[0] > 0.05
    assert evaluate([good], CLASSES[:2]).interval == (0.0, 1.0)


def test_outlines_agree_within_a_small_distance():
    """A square moved by one pixel has the same outline at this size, moved by twelve it has not."""
    true = torch.zeros(100, 100, dtype=torch.uint8)
    true[20:60, 20:60] = 1
    by_one, by_twelve = true.roll(1, 0), true.roll((12, 12), (0, 1))
    assert evaluate([(true, true)], CLASSES[:2]).boundary == 1
    assert evaluate([(by_one, true)], CLASSES[:2]).boundary == 1
    far = evaluate([(by_twelve, true)], CLASSES[:2]).boundary
    assert far is not None
    assert far < 0.2
    flat = torch.zeros_like(true)
    assert evaluate([(flat, true)], CLASSES[:2]).boundary == 0
    assert evaluate([(flat, flat)], CLASSES[:2]).boundary is None
    half = true.clone()
    half[:, 40:] = 255
    assert evaluate([(true, half)], CLASSES[:2]).boundary == 1, "where there is no label there is no outline"


def test_worst_pictures_come_with_their_maps():
    pairs = random_pairs(12, 3)
    pairs[4] = (pairs[4][1].clamp(max=2), pairs[4][1])  # perfect
    metric = SegmentationMetric(CLASSES, worst=4)
    feed(metric, pairs)
    assert sum(row.maps is not None for row in metric.rows) == 4
    alone = {f"{number:03}.png": evaluate([pair]).miou for number, pair in enumerate(pairs)}
    worst = metric.compute().worst
    assert [(poor.path, poor.miou) for poor in worst] == sorted(alone.items(), key=lambda item: item[1])[:4]
    for poor in worst:
        assert torch.equal(poor.prediction, pairs[int(poor.path[:3])][0].long())
        assert torch.equal(poor.truth, pairs[int(poor.path[:3])][1].long())


def test_maps_of_many_classes_are_packed_without_loss():
    labels = torch.arange(600).reshape(20, 30)
    assert torch.equal(unpack(pack(labels), (20, 30)), labels)


def test_results_carry_the_users_class_names_as_plain_data():
    """PB-93: result tables showed the default names of another data set."""
    result = evaluate(random_pairs(3, 3))
    assert [row[1] for row in result.tables()[1].rows] == list(CLASSES)
    text = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (text["miou"], text["classes"]) == (result.headline[1], list(CLASSES))
    assert set(result.numbers) == {"miou", "miou_in_truth", "dice", "pixel_accuracy", "mean_recall", "boundary"}


def test_what_can_not_be_evaluated_is_refused():
    with pytest.raises(UserError, match="no picture was read"):
        SegmentationMetric(CLASSES).compute()
    with pytest.raises(ValueError, match="prediction"):
        evaluate([(torch.zeros(4, 4), torch.zeros(4, 5))])
    with pytest.raises(ValueError, match="predicted with label 3"):
        evaluate([(maps([3, 0]), maps([0, 0]))])
    with pytest.raises(ValueError, match="other classes"):
        SegmentationMetric(("x",)).update([SegMap("a", CLASSES, maps([0]))], [MaskTarget(maps([0]))])
    with pytest.raises(ValueError, match="name of its own"):
        SegmentationMetric(())
