"""Average precision against pycocotools' own numbers and against pencil and paper, and the cases that trap other evaluators."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.geometry import decode_rle, encode_mask, polygons_to_rle, rle_from_counts
from pyramidvit.metrics import DetectionMetric, DetectionResult
from pyramidvit.types import BoxTarget, Detections, Rle

CLASSES = ("cat", "dog", "Ölpumpe")
SIZE = (120, 160)


def found(*objects: tuple[float, ...], path: str = "a.jpg", masks: bool = False, classes: tuple[str, ...] = CLASSES) -> Detections:
    """Objects as (x, y, right, bottom, label, score)."""
    table = torch.tensor(objects).reshape(-1, 6)
    rles = tuple(encode_mask(bitmap) for bitmap in bitmaps(table[:, :4])) if masks else None
    return Detections(path, classes, SIZE, table[:, :4], table[:, 4].long(), table[:, 5], rles)


def truth(*objects: tuple[float, ...], masks: bool = False, crowd: list[bool] | None = None) -> BoxTarget:
    """Objects as (x, y, right, bottom, label)."""
    table = torch.tensor(objects).reshape(-1, 5)
    marked = None if crowd is None else torch.tensor(crowd)
    return BoxTarget(table[:, :4], table[:, 4].long(), bitmaps(table[:, :4]) if masks else None, marked)


def bitmaps(boxes: torch.Tensor) -> torch.Tensor:
    masks = torch.zeros(len(boxes), *SIZE, dtype=torch.bool)
    for mask, (x, y, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y:bottom, x:right] = True
    return masks


def evaluate(predictions: list[Detections], targets: list[BoxTarget], *, masks: bool = False) -> DetectionResult:
    metric = DetectionMetric(predictions[0].classes, masks)
    metric.update(predictions, targets)
    return metric.compute()


def coco_case(folder: Path, kind: str) -> tuple[list[Detections], list[BoxTarget], dict[str, float]]:
    """The example of the COCO tools as our typed values: gaps in the category ids, crowds, polygons and run lengths."""
    reference = json.loads((folder / "reference.json").read_text())
    data = json.loads((folder / reference["ground_truth"]).read_text())
    results = json.loads((folder / reference[kind]["results"]).read_text())
    classes = tuple(c["name"] for c in data["categories"])
    label = {c["id"]: k for k, c in enumerate(data["categories"])}
    predictions, targets = [], []
    for image in data["images"]:
        size = (image["height"], image["width"])
        true = [a for a in data["annotations"] if a["image_id"] == image["id"]]
        rles = [to_rle(a["segmentation"], size) for a in true]
        targets.append(
            BoxTarget(
                xyxy([a["bbox"] for a in true]),
                torch.tensor([label[a["category_id"]] for a in true], dtype=torch.int64),
                torch.stack(list(map(decode_rle, rles))) if rles else torch.zeros(0, *size, dtype=torch.bool),
                torch.tensor([bool(a["iscrowd"]) for a in true], dtype=torch.bool),
                torch.tensor([a["area"] for a in true], dtype=torch.float32),
            )
        )
        ours = [r for r in results if r["image_id"] == image["id"]]
        labels = torch.tensor([label[r["category_id"]] for r in ours], dtype=torch.int64)
        scores = torch.tensor([r["score"] for r in ours], dtype=torch.float32)
        masks = None
        if kind == "segm":
            masks = tuple(Rle(tuple(r["segmentation"]["size"]), r["segmentation"]["counts"].encode()) for r in ours)
        boxes = torch.zeros(len(ours), 4) if kind == "segm" else xyxy([r["bbox"] for r in ours])
        predictions.append(Detections(image["file_name"], classes, size, boxes, labels, scores, masks))
    return predictions, targets, reference[kind]["stats"]


def to_rle(segmentation: list | dict, size: tuple[int, int]) -> Rle:
    if isinstance(segmentation, list):
        return polygons_to_rle([np.array(polygon, dtype=float) for polygon in segmentation], size)
    return rle_from_counts(size, segmentation["counts"])


def xyxy(boxes: list[list[float]]) -> torch.Tensor:
    table = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    return torch.cat((table[:, :2], table[:, :2] + table[:, 2:]), dim=1).float()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_the_twelve_numbers_are_those_of_pycocotools(shared: Path, kind: str):
    predictions, targets, expected = coco_case(shared / "data" / "coco_eval", kind)
    result = evaluate(predictions, targets, masks=kind == "segm")
    numbers = (result.mask or result.box).numbers
    assert list(numbers) == list(expected)
    assert numbers == pytest.approx(expected, abs=1e-9)
    classes = [row.ap for row in result.main.per_class if row.ap is not None]
    assert np.mean(classes) == pytest.approx(expected["AP"])
    assert len(classes) == len({int(k) for t in targets if t.crowd is not None for k in t.labels[~t.crowd]})


@pytest.mark.parametrize("masks", [False, True])
def test_perfect_predictions_score_one(masks: bool):
    """PB-81: the object with annotation id 0 was counted as missed; ids never leave the adapter here, and the first object counts."""
    objects = [(10, 10, 40, 40, 0), (50, 20, 90, 100, 1), (100, 60, 110, 70, 0)]
    predictions = [found(*((*o, 0.9) for o in objects), masks=masks), found(path="b.jpg", masks=masks)]
    result = evaluate(predictions, [truth(*objects, masks=masks), truth(masks=masks)], masks=masks)
    for precision in (result.box, result.mask) if masks else (result.box,):
        assert precision is not None
        assert {name: precision.numbers[name] for name in ("AP", "AP50", "AP75", "APsmall", "APmedium", "AR100")} == pytest.approx(
            dict.fromkeys(("AP", "AP50", "AP75", "APsmall", "APmedium", "AR100"), 1.0)
        )
        assert precision.numbers["APlarge"] is None, "no object is large"
    assert result.headline == ("mask_ap" if masks else "box_ap", pytest.approx(1.0))
    assert result.best is not None
    assert (result.best.f1, result.worst) == (1.0, ())


def test_a_single_object_in_a_single_picture_counts():
    """PB-81: with one picture, one class and one object all ids are 0 in a naive numbering."""
    result = evaluate([found((0, 0, 10, 10, 0, 0.5), classes=("one",))], [truth((0, 0, 10, 10, 0))])
    assert result.box.numbers["AP"] == pytest.approx(1)


def test_average_precision_by_hand():
    """Two objects; right, wrong, right in order of score: precision 1 up to recall 0.5, then 2/3."""
    objects = [(0, 0, 20, 20, 0), (50, 50, 70, 70, 0)]
    guesses = [(0, 0, 20, 20, 0, 0.9), (100, 100, 120, 120, 0, 0.8), (50, 50, 70, 70, 0, 0.7)]
    result = evaluate([found(*guesses)], [truth(*objects)])
    assert result.box.numbers["AP50"] == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)
    assert result.box.numbers["AR1"] == pytest.approx(0.5)
    assert result.box.curves[0] == pytest.approx([1] * 51 + [2 / 3] * 50)
    assert np.isnan(result.box.curves[1:]).all()
    assert result.best is not None
    assert result.best.score == pytest.approx(0.7)
    assert (result.best.precision, result.best.recall, result.best.f1) == pytest.approx((2 / 3, 1, 0.8))


def test_overlap_decides_at_each_threshold():
    """Half of the width is hit: overlap 0.75 counts up to 0.75, that is at 6 of 10 thresholds."""
    result = evaluate([found((0, 0, 30, 40, 0, 0.9))], [truth((0, 0, 40, 40, 0))])
    assert (result.box.numbers["AP"], result.box.numbers["AP75"]) == pytest.approx((0.6, 1.0))


def test_crowds_are_neither_missed_nor_wrong():
    crowd, target = (60, 60, 150, 110, 0), (0, 0, 30, 30, 0)
    inside = (70, 70, 90, 90, 0, 0.95)
    result = evaluate([found(inside, (0, 0, 30, 30, 0, 0.5))], [truth(target, crowd, crowd=[False, True])])
    assert result.box.numbers["AP"] == pytest.approx(1)
    assert (result.objects, result.crowds, result.box.per_class[0].objects, result.worst) == (1, 1, 1, ())
    without = evaluate([found(inside, (0, 0, 30, 30, 0, 0.5))], [truth(target)])
    assert without.box.numbers["AP"] == pytest.approx(0.5)


def test_a_size_without_objects_has_no_number():
    result = evaluate([found((0, 0, 100, 110, 1, 0.9))], [truth((0, 0, 100, 110, 1))])
    numbers = result.to_json()["box"]
    assert [numbers[name] for name in ("APsmall", "APmedium", "APlarge", "ARsmall")] == [None, None, pytest.approx(1), None]
    cat = result.box.per_class[0]
    assert (cat.objects, cat.ap, cat.f1, cat.score) == (0, None, None, None)
    assert result.tables()[1].rows[0] == (0, "cat", 0, *(None,) * 9)


@pytest.mark.parametrize("areas", [[0.0, 0.0], [float("nan"), 0.0], None])
def test_areas_that_are_missing_are_those_of_the_objects(areas: list[float] | None):
    """PB-82: area 0 put all objects among the small ones."""
    target = truth((0, 0, 20, 20, 0), (20, 0, 160, 110, 0))
    target = replace(target, areas=None if areas is None else torch.tensor(areas))
    numbers = evaluate([found((0, 0, 20, 20, 0, 0.9))], [target]).box.numbers
    assert (numbers["APsmall"], numbers["APmedium"], numbers["APlarge"]) == (pytest.approx(1), None, 0)


def test_annotated_areas_decide_the_size():
    """A thin diagonal object may be small in a large box."""
    target = replace(truth((0, 0, 120, 120, 0)), areas=torch.tensor([500.0]))
    numbers = evaluate([found((0, 0, 120, 120, 0, 0.9))], [target]).box.numbers
    assert (numbers["APsmall"], numbers["APlarge"]) == (pytest.approx(1), None)


def test_masks_are_measured_by_their_pixels():
    """The boxes agree and the masks do not."""
    target = truth((0, 0, 40, 40, 0), masks=True)
    half = encode_mask(bitmaps(torch.tensor([[0, 0, 20, 40]]))[0])
    result = evaluate([replace(found((0, 0, 40, 40, 0, 0.9)), masks=(half,))], [target], masks=True)
    assert result.mask is not None
    assert (result.box.numbers["AP"], result.mask.numbers["AP50"], result.mask.numbers["AP75"]) == (pytest.approx(1), pytest.approx(1), 0)


def test_batches_order_and_processes_do_not_matter():
    """PB-90: every picture once, whoever saw it. Rows cross process borders as bytes, and stay small."""
    generator = torch.Generator().manual_seed(0)
    pictures, targets = [], []
    for number in range(21):
        corners = torch.rand(6, 2, generator=generator) * 60
        boxes = torch.cat((corners, corners + 20 + torch.rand(6, 2, generator=generator) * 30), dim=1).round()
        labels = torch.randint(3, (6,), generator=generator)
        noisy = boxes + torch.randint(-3, 4, boxes.shape, generator=generator)
        noisy = noisy.clamp(min=0)
        scores = torch.rand(6, generator=generator)
        masks = tuple(encode_mask(bitmap) for bitmap in bitmaps(noisy))
        pictures.append(Detections(f"{number:02}.jpg", CLASSES, SIZE, noisy, labels, scores, masks))
        targets.append(BoxTarget(boxes, labels, bitmaps(boxes)))
    whole = evaluate(pictures, targets, masks=True)
    ranks = [DetectionMetric(CLASSES, True) for _ in range(2)]
    for rank, metric in enumerate(ranks):
        for number in range(rank, 21, 2):
            metric.update(pictures[number : number + 1], targets[number : number + 1])
        metric.update([], [])
    sent = pickle.dumps(ranks[1].rows)
    assert len(sent) / 10 < 12_000, "bytes per picture"
    ranks[0].rows = pickle.loads(sent) + ranks[0].rows
    together = ranks[0].compute()
    assert together.to_json() == whole.to_json()
    assert 0.1 < whole.headline[1] < 0.95


def test_worst_pictures_are_those_with_most_mistakes_at_the_best_threshold():
    good = found((0, 0, 20, 20, 0, 0.9), path="good.jpg")
    poor = found((0, 0, 20, 20, 1, 0.95), (50, 50, 70, 70, 0, 0.9), (90, 90, 110, 110, 0, 0.1), path="poor.jpg")
    result = evaluate([good, poor], [truth((0, 0, 20, 20, 0)), truth((0, 0, 20, 20, 0), (50, 50, 70, 70, 0))])
    assert result.best is not None
    assert result.best.score == pytest.approx(0.9)
    (worst,) = result.worst
    assert (worst.path, worst.missed, worst.wrong, worst.f1) == ("poor.jpg", 1, 1, 0.5)
    assert len(worst.found) == 2, "what the threshold hides is not drawn"
    assert torch.equal(worst.truth.boxes, torch.tensor([[0.0, 0, 20, 20], [50, 50, 70, 70]]))


def test_nothing_found_at_all_is_zero():
    result = evaluate([found(), found(path="b.jpg")], [truth((0, 0, 20, 20, 2)), truth()])
    assert result.best is not None
    assert (result.headline, result.best.f1) == (("box_ap", 0.0), 0.0)
    assert [poor.path for poor in result.worst] == ["a.jpg"]


@pytest.mark.parametrize("target", [truth(masks=True), truth((0, 0, 20, 20, 0), masks=True, crowd=[True])])
@pytest.mark.parametrize("detections", [(), ((30, 30, 39, 39, 0, 0.5),)])
@pytest.mark.parametrize("masks", [False, True])
def test_without_an_object_there_is_no_precision_and_a_reason(target: BoxTarget, detections: tuple[tuple[float, ...], ...], masks: bool):
    """An evaluation on empty pictures stopped the training once."""
    result = evaluate([found(*detections, masks=True)] * 2, [target] * 2, masks=masks)
    assert math.isnan(result.headline[1])
    assert (result.numbers, result.best, result.worst) == ({}, None, ())
    text = json.loads(json.dumps(result.to_json(), allow_nan=False))
    kind = "mask" if masks else "box"
    assert (text[f"{kind}_ap"], text[kind]["AP"], text["best"]) == (None, None, None)
    assert "none of the 2 pictures has a single object" in text["reason"]


def test_results_carry_the_users_class_names():
    """PB-93: result tables showed the default names of another data set."""
    result = evaluate([found((0, 0, 20, 20, 2, 0.9))], [truth((0, 0, 20, 20, 2))])
    assert [row[1] for row in result.tables()[1].rows] == list(CLASSES)
    text = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert text["classes"] == list(CLASSES)
    assert text["box_ap"] == text["box"]["AP"] == result.headline[1]
    assert set(result.numbers) == {"box_ap", "box_ap50", "box_ap75", "box_ar100", "best_score"}


def test_what_can_not_be_evaluated_is_refused():
    with pytest.raises(UserError, match="no picture was read"):
        DetectionMetric(CLASSES).compute()
    with pytest.raises(UserError, match=r"a\.jpg has label 3"):
        evaluate([found()], [truth((0, 0, 9, 9, 3))])
    with pytest.raises(UserError, match="not finite"):
        evaluate([found((0, 0, float("nan"), 9, 0, 0.5))], [truth()])
    with pytest.raises(UserError, match="boxes but no masks"):
        evaluate([found(masks=True)], [truth((0, 0, 9, 9, 0))], masks=True)
    with pytest.raises(ValueError, match="without masks"):
        evaluate([found((0, 0, 9, 9, 0, 0.5))], [truth(masks=True)], masks=True)
    with pytest.raises(ValueError, match="other classes"):
        DetectionMetric(("x",)).update([found()], [truth()])
    with pytest.raises(ValueError, match="name of its own"):
        DetectionMetric(())
