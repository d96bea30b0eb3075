"""What makes training on boxes or label maps go wrong is found and said before training."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from pyramidvit.config import DenseConfig
from pyramidvit.data.anchor_fit import Anchors, fit_anchors
from pyramidvit.data.boxes import read_box_data
from pyramidvit.data.dense_check import check_box_data, check_mask_data
from pyramidvit.data.findings import CheckReport, Finding, class_findings, render
from pyramidvit.data.image import ReadOptions
from pyramidvit.data.masks import read_mask_data

SIDE = 64
SAME_SIZE = DenseConfig(short=SIDE, long=SIDE)


def picture(path: Path, seed: int, width: int = SIDE, height: int = SIDE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)).save(path)


def boxes(root: Path, split: str, *annotations: dict[str, Any], pictures: int = 6, names: tuple[str, ...] = ("cat", "dog")) -> None:
    """Pictures of ``split``, two objects in each but the last, and what is given beside."""
    images = [{"id": i, "file_name": f"{split}{i}.png", "width": SIDE, "height": SIDE} for i in range(pictures)]
    for i, entry in enumerate(images):
        picture(root / "images" / entry["file_name"], i + 100 * len(split))
    regular = [{"image_id": i, "category_id": k, "bbox": [4 + 30 * k, 6, 26, 28]} for i in range(pictures - 1) for k in range(len(names))]
    categories = [{"id": k, "name": name} for k, name in enumerate(names)]
    content = {"images": images, "annotations": [*regular, *({"image_id": 0, "category_id": 0} | one for one in annotations)]}
    (root / f"instances_{split}.json").write_text(json.dumps(content | {"categories": categories}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    boxes(tmp_path, "train", pictures=8)
    boxes(tmp_path, "val")
    return tmp_path


def check(root: Path, **settings: Any) -> CheckReport:
    return check_box_data(read_box_data(root, strict=False), ReadOptions(), **({"view": SAME_SIZE, "workers": 2} | settings))


def finding(report: CheckReport, code: str) -> Finding:
    found = [one for one in report.findings if one.code == code]
    assert len(found) == 1, [one.code for one in report.findings]
    return found[0]


def text(report: CheckReport) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(report))
    return captured.get()


def test_sound_objects_are_ready(root: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = check(root, on_progress=lambda *step: steps.append(step))
    assert report.ok
    assert report.counts == {"train": {"cat": 7, "dog": 7}, "val": {"cat": 5, "dog": 5}}
    assert [one.code for one in report.findings] == ["empty-pictures", "empty-pictures"]
    assert steps == [(i, 14) for i in range(1, 15)]
    assert report.tables[0].rows[0] == ("all", 27, 27, 27, 24, 0, 0)
    content = json.loads(json.dumps(report.to_json()))
    assert content["counted"] == "objects"
    assert content["anchors"]["present"] == content["anchors"]["proposed"]
    assert "1 of 8 pictures of train without objects" in text(report)


def test_bad_boxes_are_errors_with_their_places(root: Path) -> None:
    """PB-43, PB-44, PB-45."""
    boxes(root, "train", {"bbox": [0, 0, 0, 0]}, {"bbox": [50, 50, 40, 9]}, {"bbox": [500, 5, 4, 4]}, pictures=8)
    report = check(root)
    assert not report.ok
    assert finding(report, "box-empty").paths == ("images/train0.png",)
    assert finding(report, "box-overhang").details == ("cat at (50, 50, 90, 59) of 64 x 64",)
    assert "pass --on-bad-box fix or drop" in finding(report, "box-outside").message
    mended = check_box_data(read_box_data(root, on_bad_box="fix"), ReadOptions(), view=SAME_SIZE)
    assert mended.ok
    assert finding(mended, "box-overhang").level == "warning"


def test_files_that_are_missing_damaged_unused_doubled_or_of_another_size(root: Path) -> None:
    (root / "images" / "train1.png").unlink()
    (root / "images" / "train2.png").write_bytes((root / "images" / "train3.png").read_bytes()[:100])
    (root / "images" / "val1.png").write_bytes((root / "images" / "train4.png").read_bytes())
    picture(root / "images" / "train5.png", 5, 70, 50)
    picture(root / "images" / "other.png", 6)
    report = check(root)
    assert finding(report, "damaged").paths == ("images/train1.png", "images/train2.png")
    assert finding(report, "damaged").details[0] == "there is no such file."
    assert finding(report, "other-size").paths == ("images/train5.png",)
    assert "64 x 64 pixels, but it has 70 x 50" in finding(report, "other-size").details[0]
    assert finding(report, "duplicate-splits").paths == ("images/val1.png",)
    assert finding(report, "unused-pictures").paths == ("images/other.png",)


def test_classes_that_one_split_lacks(root: Path) -> None:
    boxes(root, "val", {"category_id": 2, "bbox": [1, 1, 9, 9]}, names=("cat", "dog", "cow", "pig"))
    boxes(root, "train", {"category_id": 3, "bbox": [1, 1, 9, 9]}, pictures=8, names=("cat", "dog", "cow", "pig"))
    content = json.loads((root / "instances_train.json").read_text())
    content["annotations"] = [one for one in content["annotations"] if one["category_id"] in (0, 3)]
    (root / "instances_train.json").write_text(json.dumps(content))
    report = check(root)
    assert finding(report, "untrained").details == ("dog", "cow")
    assert finding(report, "untrained").level == "error"
    val = json.loads((root / "instances_val.json").read_text())
    val["annotations"] = [one for one in val["annotations"] if one["category_id"] == 0]
    (root / "instances_val.json").write_text(json.dumps(val))
    assert finding(check(root), "unmeasured").details == ("pig",)


def test_a_class_that_a_drawn_split_took_out_of_training_is_a_warning() -> None:
    counts = {"train": {"cat": 9, "dog": 0}, "val": {"cat": 3, "dog": 1}}
    levels = {drawn: {one.code: one.level for one in class_findings(counts, drawn=drawn)}["untrained"] for drawn in (True, False)}
    assert levels == {True: "warning", False: "error"}


def test_a_made_split_leaves_every_class_something_to_learn_from(tmp_path: Path) -> None:
    boxes(tmp_path, "all", {"category_id": 2, "image_id": 3, "bbox": [1, 1, 9, 9]}, pictures=9, names=("cat", "dog"))
    content = json.loads((tmp_path / "instances_all.json").read_text())
    content["categories"].append({"id": 2, "name": "rare"})
    (tmp_path / "instances_all.json").write_text(json.dumps(content))
    for seed in range(20):
        data = read_box_data(tmp_path, val_share=0.5, seed=seed)
        assert sum(2 in item.labels for item in data.splits["train"]) == 1
        assert len(data.splits["val"]) == 4


def test_objects_that_no_anchor_reaches_are_counted_and_anchors_proposed(root: Path) -> None:
    """PB-80: 6 x 6 pixels under anchors of 32 and more."""
    content = json.loads((root / "instances_train.json").read_text())
    for number, one in enumerate(content["annotations"]):
        one["bbox"] = [8 * (number % 7) + 5, 13, 6, 6]
    (root / "instances_train.json").write_text(json.dumps(content))
    report = check(root)
    found = finding(report, "anchors")
    assert found.level == "warning"
    assert "100% of the training objects overlap no anchor by half" in found.message
    assert "--anchor-scale" in found.message
    proposed = report.facts["anchors"]["proposed"]
    assert proposed["reached"] == 1
    assert 6 / 8 / 1.5 < proposed["scale"] < 6 / 8 * 1.5
    assert report.facts["anchors"]["present"]["reached"] == 0
    larger = check(root, view=DenseConfig(short=512, long=512))
    assert larger.facts["anchors"]["present"]["reached"] == 1


def test_best_overlap_equals_that_of_all_anchors_one_by_one() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(10, 90, (30, 2))
    some = np.concatenate((corners, corners + rng.uniform(3, 60, (30, 2))), 1)
    anchors = Anchors((8, 16), 2.0, 2, (0.5, 1.0))
    every: list[tuple[float, ...]] = []
    for stride in anchors.strides:
        for y, x in np.ndindex(200 // stride, 200 // stride):
            for size in (2 * stride, 2 * stride * 2**0.5):
                every += [
                    (x * stride - w / 2, y * stride - h / 2, x * stride + w / 2, y * stride + h / 2)
                    for w, h in ((size / ratio**0.5, size * ratio**0.5) for ratio in anchors.ratios)
                ]
    a = np.array(every)
    left, right = np.maximum(some[:, None, :2], a[:, :2]), np.minimum(some[:, None, 2:], a[:, 2:])
    inner = (right - left).clip(0).prod(-1)
    union = (some[:, 2:] - some[:, :2]).prod(1)[:, None] + (a[:, 2:] - a[:, :2]).prod(1) - inner
    assert np.allclose(anchors.best_iou(some), (inner / union).max(1))


def test_anchors_that_fit_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    corners, sides = rng.uniform(0, 600, (500, 2)), rng.uniform(40, 200, (500, 1))
    fit = fit_anchors(np.concatenate((corners, corners + sides), 1), Anchors())
    assert fit is not None
    assert fit.proposed == fit.present == Anchors()
    assert fit.reached == (1, 1)
    assert fit_anchors(np.zeros((0, 4)), Anchors()) is None


def masks(root: Path, split: str, values: np.ndarray, pictures: int = 6, mask_side: int = SIDE) -> None:
    for i in range(pictures):
        picture(root / "images" / split / f"{i}.png", i + 100 * len(split))
        path = root / "masks" / split / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.repeat(mask_side // 2, 0).repeat(mask_side // 2, 1)).save(path)


def check_masks(root: Path, **settings: Any) -> CheckReport:
    return check_mask_data(read_mask_data(root, strict=False, **settings), ReadOptions(), workers=2)


def test_sound_masks_are_ready_with_the_share_of_each_class(tmp_path: Path) -> None:
    for split in ("train", "val"):
        masks(tmp_path, split, np.array([[0, 1], [1, 255]], np.uint8))
    report = check_masks(tmp_path, classes=["ground", "tree"])
    assert report.ok
    assert report.findings == ()
    assert report.counts == {"train": {"ground": 6, "tree": 6}, "val": {"ground": 6, "tree": 6}}
    assert report.tables[0].rows == (("tree", "66.67%", "66.67%"), ("ground", "33.33%", "33.33%"), ("ignored (of all)", "25.00%", "25.00%"))
    assert "pictures showing class" in text(report)


def test_masks_with_strange_values_or_of_another_size_are_listed(tmp_path: Path) -> None:
    """PB-51, PB-53."""
    masks(tmp_path, "train", np.array([[0, 1], [1, 7]], np.uint8))
    masks(tmp_path, "val", np.array([[0, 1], [1, 1]], np.uint8), mask_side=32)
    report = check_masks(tmp_path, classes=["ground", "tree"])
    found = finding(report, "bad-mask")
    assert found.level == "error"
    assert len(found.paths) == 12
    assert "values of no class: 7 (1024 pixels)" in found.details[0]
    assert "32 x 32 pixels, but its picture 0.png has 64 x 64" in found.details[6]


def test_binary_and_mostly_ignored_masks_are_found(tmp_path: Path) -> None:
    """PB-48: 255 is the ignored value, so foreground in 255 teaches nothing."""
    for split in ("train", "val"):
        masks(tmp_path, split, np.array([[0, 255], [255, 255]], np.uint8))
    report = check_masks(tmp_path, classes=["ground", "tree"])
    assert finding(report, "binary-masks").level == "error"
    assert "75% of all pixels are 255" in finding(report, "mostly-ignored").message
    mapped = check_masks(tmp_path, classes=["ground", "tree"], value_map={255: 1})
    assert mapped.ok
    assert mapped.counts["train"] == {"ground": 6, "tree": 6}


@pytest.mark.slow
def test_real_data_is_checked(shared: Path) -> None:
    blood = check_box_data(read_box_data(shared / "data" / "bccd", on_bad_box="drop"), ReadOptions(), workers=2)
    assert blood.ok
    assert blood.counts["train"] == {"Platelets": 209, "RBC": 2381, "WBC": 214}
    nuclei = check_mask_data(read_mask_data(shared / "data" / "nuclei"), ReadOptions(), workers=2)
    assert nuclei.ok
