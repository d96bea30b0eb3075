"""Exported detections are what the COCO tools read: the same objects, the same precision."""

import json
from pathlib import Path

import pytest
import torch
from hotcoco import COCO, COCOeval

from pyramidvit.coco_results import coco_results, write_coco_document, write_coco_results
from pyramidvit.errors import UserError
from pyramidvit.geometry import encode_mask, rle_area
from pyramidvit.metrics import DetectionMetric
from pyramidvit.types import BoxTarget, Detections

CLASSES, IDS = ("cat", "dog"), (90, 5)


def case(number: int, *, masks: bool = True) -> tuple[Detections, BoxTarget]:
    generator = torch.Generator().manual_seed(number)
    corners = torch.rand(5, 2, generator=generator) * 40
    boxes = torch.cat((corners, corners + 10 + torch.rand(5, 2, generator=generator) * 30), dim=1)
    labels = torch.randint(2, (5,), generator=generator)
    noisy = (boxes + torch.randn(boxes.shape, generator=generator)).clamp(min=0)
    scores = torch.rand(5, generator=generator).sort(descending=True).values
    bitmaps = torch.zeros(5, 80, 90, dtype=torch.bool)
    for bitmap, (x, y, right, bottom) in zip(bitmaps, noisy.int().tolist(), strict=True):
        bitmap[y:bottom, x:right] = True
    rles = tuple(map(encode_mask, bitmaps)) if masks else None
    return Detections(f"{number}.jpg", CLASSES, (80, 90), noisy, labels, scores, rles), BoxTarget(boxes, labels)


def test_the_file_has_the_precision_that_we_measure(tmp_path: Path):
    """PB-39: the data set's own ids, gaps and order included, not our labels."""
    cases = [case(number) for number in range(6)]
    metric = DetectionMetric(CLASSES)
    metric.update([found for found, _ in cases], [truth for _, truth in cases])
    image_ids = {f"{number}.jpg": 1000 - 7 * number for number in range(6)}
    write_coco_results(tmp_path / "results.json", [found for found, _ in cases], image_ids, IDS)
    annotations = []
    for found, truth in cases:
        for (x, y, right, bottom), label in zip(truth.boxes.double().tolist(), truth.labels.tolist(), strict=True):
            box, number = [x, y, right - x, bottom - y], len(annotations) + 1
            ids = {"id": number, "image_id": image_ids[found.path], "category_id": IDS[label]}
            annotations.append(ids | {"bbox": box, "area": box[2] * box[3], "iscrowd": 0})
    truth = COCO(
        {
            "images": [{"id": number, "height": 80, "width": 90} for number in image_ids.values()],
            "categories": [{"id": number, "name": name} for number, name in zip(IDS, CLASSES, strict=True)],
            "annotations": annotations,
        }
    )
    evaluator = COCOeval(truth, truth.load_res(str(tmp_path / "results.json")), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    precision = (evaluator.eval or {})["precision"][:, :, :, 0, 2]
    assert float(precision[precision > -1].mean()) == pytest.approx(metric.compute().headline[1], abs=1e-12)


def test_entries_hold_boxes_scores_and_masks_without_loss():
    found, _ = case(0)
    entries = json.loads(json.dumps(coco_results(found, "a b", IDS)))
    assert len(entries) == len(found)
    sides = torch.tensor([entry["bbox"] for entry in entries], dtype=torch.float64)
    assert torch.allclose(sides[:, 2:] + sides[:, :2], found.boxes[:, 2:].double(), atol=1e-6)
    assert torch.equal(torch.tensor([entry["score"] for entry in entries]), found.scores)
    assert {entry["image_id"] for entry in entries} == {"a b"}
    assert [entry["category_id"] for entry in entries] == [IDS[label] for label in found.labels]
    assert found.masks is not None
    assert entries[0]["segmentation"] == {"size": [80, 90], "counts": found.masks[0].counts.decode()}
    assert "segmentation" not in coco_results(case(0, masks=False)[0], 1, IDS)[0]


def test_pictures_without_an_id_are_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"1 of 2 pictures have no image id, for instance 1\.jpg"):
        write_coco_results(tmp_path / "results.json", [case(0)[0], case(1)[0]], {"0.jpg": 1}, IDS)
    with pytest.raises(ValueError, match="2 classes need as many category ids"):
        coco_results(case(0)[0], 1, (1, 2, 3))


def test_a_document_of_its_own_has_the_area_of_masks_where_there_are_masks(tmp_path: Path):
    masked, boxed = case(0)[0], case(1, masks=False)[0]
    for found in (masked, boxed):
        write_coco_document(tmp_path / "found.json", [found, found])
        entries = json.loads((tmp_path / "found.json").read_text())["annotations"]
        assert [entry["image_id"] for entry in entries] == [1] * 5 + [2] * 5
        sides = found.boxes[:, 2:] - found.boxes[:, :2]
        areas = sides.prod(1).tolist() if found.masks is None else [rle_area(mask) for mask in found.masks]
        assert [entry["area"] for entry in entries] == pytest.approx(areas * 2, rel=1e-6)
    assert [rle_area(mask) for mask in masked.masks or ()] != pytest.approx((masked.boxes[:, 2:] - masked.boxes[:, :2]).prod(1).tolist())
