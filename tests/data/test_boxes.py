"""Annotated objects become valid items: classes by name, boxes inside their pictures, splits that repeat."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.data.box_items import BoxItem, judge
from pyramidvit.data.boxes import BoxData, box_fingerprint, read_box_data
from pyramidvit.data.image import ReadOptions, read_image
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.geometry import decode_rle, encode_mask

WIDTH, HEIGHT = 60, 40
Annotation = dict[str, Any]


def picture(path: Path, width: int = WIDTH, height: int = HEIGHT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 120, 30)).save(path)
    return path


def coco(root: Path, name: str, annotations: list[Annotation], categories: dict[Any, str] | None = None, pictures: int = 2) -> Path:
    """A json with pictures 1, 2 … whose annotations get ids and, where none is given, picture 1 and the first category."""
    categories = categories or {1: "cat"}
    images = [{"id": i, "file_name": f"{name}{i}.png", "width": WIDTH, "height": HEIGHT} for i in range(1, pictures + 1)]
    for entry in images:
        picture(root / "images" / entry["file_name"])
    first = next(iter(categories))
    entries = [{"id": number, "image_id": 1, "category_id": first} | entry for number, entry in enumerate(annotations, 1)]
    path = root / f"instances_{name}.json"
    declared = [{"id": key, "name": value} for key, value in categories.items()]
    path.write_text(json.dumps({"images": images, "annotations": entries, "categories": declared}))
    return path


def only(data: BoxData, split: str = "train") -> BoxItem:
    """The picture that has the objects."""
    (item,) = (item for item in data.splits[split] if len(item.labels))
    return item


def names(data: BoxData, split: str) -> list[str]:
    return [data.classes[label] for item in data.splits[split] for label in item.labels]


def test_train_and_val_are_matched_by_name_whatever_the_ids(tmp_path: Path) -> None:
    """PB-40: the same names under exchanged ids."""
    boxes = [{"bbox": [1, 1, 9, 9], "category_id": 1}, {"bbox": [20, 1, 9, 9], "category_id": 2}]
    coco(tmp_path, "train", boxes, {1: "cat", 2: "dog"})
    coco(tmp_path, "val", boxes, {1: "dog", 2: "cat"})
    data = read_box_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert names(data, "train") == ["cat", "dog"]
    assert names(data, "val") == ["dog", "cat"]
    assert data.ids == {"cat": 1, "dog": 2}
    assert not data.made_split


@pytest.mark.parametrize("ids", [(0, 1, 2), (1, 2, 3), (90, 1, 5), ("7", "b", 3.0)])
def test_category_ids_may_be_any(tmp_path: Path, ids: tuple[Any, ...]) -> None:
    """PB-39: from 0, from 1, with gaps, text; inside they are counted on, outside they are as they were."""
    coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9], "category_id": key} for key in ids], dict(zip(ids, "abc", strict=True)))
    data = read_box_data(tmp_path)
    assert sorted(names(data, "train") + names(data, "val")) == ["a", "b", "c"]
    assert data.ids == dict(zip("abc", ids, strict=True))
    assert list(data.classes) == {(90, 1, 5): ["b", "c", "a"], ("7", "b", 3.0): ["c", "a", "b"]}.get(ids, ["a", "b", "c"])


def test_an_undeclared_category_is_an_error_with_counts(tmp_path: Path) -> None:
    """PB-39."""
    coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9], "category_id": 7}] * 3, {1: "cat"})
    with pytest.raises(UserError, match=r"7 \(3 objects\).*Declared are 1"):
        read_box_data(tmp_path)


def test_picture_ids_may_be_text_in_one_place_and_numbers_in_the_other(tmp_path: Path) -> None:
    path = coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9], "image_id": "2"}])
    assert len(only(read_box_data(path)).labels) == 1


def test_annotation_ids_do_not_matter(tmp_path: Path) -> None:
    """PB-81: from 0 and repeated."""
    coco(tmp_path, "train", [{"id": key, "bbox": [key + 1, 1, 9, 9 + n]} for n, key in enumerate((0, 0, 3))])
    assert len(only(read_box_data(tmp_path, val_share=0.5)).labels) == 3


def test_pictures_without_objects_stay(tmp_path: Path) -> None:
    """PB-41: they are what the network learns to leave alone."""
    coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9]}], pictures=3)
    coco(tmp_path, "val", [], pictures=2)
    data = read_box_data(tmp_path)
    target = data.splits["val"][0].target((HEIGHT, WIDTH))
    assert [len(data.splits[split]) for split in ("train", "val")] == [3, 2]
    assert target.boxes.shape == (0, 4)
    assert target.boxes.dtype == torch.float32
    assert target.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("box", "kind", "mended"),
    [
        ((-10, 5, 10, 15), "overhang", (0, 5, 10, 15)),
        ((-0.4, 5, 60.9, 15), None, (0, 5, 60, 15)),
        ((70, 5, 90, 15), "outside", None),
        ((-20, 5, 0, 15), "outside", None),
        ((10, 15, 5, 20), "inverted", (5, 15, 10, 20)),
        ((0, 0, 0, 0), "empty", None),
        ((3, 4, 9, 4), "empty", None),
        ((3, math.nan, 9, 4), "not-finite", None),
        ((3, 4, math.inf, 9), "not-finite", None),
        ((3, 4, 9, 9), None, (3, 4, 9, 9)),
    ],
)
def test_boxes_are_judged(box: Any, kind: str | None, mended: Any) -> None:
    """PB-43, PB-44, PB-45: the far edge is known before the near one is cut, so that a box never grows."""
    assert judge(box, (HEIGHT, WIDTH)) == (kind, mended)


@pytest.mark.parametrize("policy", ["fix", "drop"])
def test_bad_boxes_are_refused_mended_or_dropped_with_counts(tmp_path: Path, policy: Any) -> None:
    """PB-43, PB-45."""
    coco(tmp_path, "train", [{"bbox": [-10, 5, 20, 10]}, {"bbox": [0, 0, 0, 0]}, {"bbox": [70, 1, 5, 5]}, {"bbox": [5, 5, 6, 7]}])
    with pytest.raises(UserError, match=r"(?s)1 object reaching out.*train1.png: cat at \(-10, 5, 10, 15\) of 60 x 40.*--on-bad-box fix"):
        read_box_data(tmp_path, val_share=0.5)
    data = read_box_data(tmp_path, val_share=0.5, on_bad_box=policy)
    clean = [[5, 5, 11, 12]]
    assert only(data).boxes.tolist() == (clean if policy == "drop" else [[0, 5, 10, 15], *clean])
    assert sorted(one.code for one in data.findings) == ["box-empty", "box-outside", "box-overhang"]
    assert {one.level for one in data.findings} == {"warning"}


def test_a_box_that_is_not_finite_is_never_mended(tmp_path: Path) -> None:
    """PB-45."""
    coco(tmp_path, "train", [{"bbox": [math.nan, 5, 20, 10]}, {"bbox": [5, 5, 6, 7]}])
    with pytest.raises(UserError, match="not finite"):
        read_box_data(tmp_path, on_bad_box="fix")
    assert len(only(read_box_data(tmp_path, on_bad_box="drop")).labels) == 1
    found = read_box_data(tmp_path, strict=False).findings
    assert [(one.code, one.level) for one in found] == [("box-not-finite", "error")]


def test_corner_boxes_in_coco_are_recognised_and_refused(tmp_path: Path) -> None:
    """PB-44: (left, top, right, bottom) where (left, top, width, height) is expected."""
    rng = np.random.default_rng(0)
    corners = [[*map(int, start), int(start[0]) + 12, int(start[1]) + 11] for start in rng.integers((25, 16), (46, 28), (20, 2))]
    coco(tmp_path, "train", [{"bbox": box} for box in corners])
    for policy in ("error", "fix", "drop"):
        with pytest.raises(UserError, match=r"fit as \(left, top, right, bottom\)"):
            read_box_data(tmp_path, on_bad_box=policy)
    sound = [{"bbox": [left, top, right - left, bottom - top]} for left, top, right, bottom in corners]
    coco(tmp_path, "train", sound)
    assert len(only(read_box_data(tmp_path)).labels) == 20


@pytest.mark.parametrize(
    ("given", "areas"),
    [
        ([{}, {}], [50, 30]),
        ([{"area": 0}, {"area": None}], [50, 30]),
        ([{"area": 1}, {"area": 1}], [50, 30]),
        ([{"area": 42.5}, {"area": 5000}], [42.5, 30]),
        ([{"area": 42.5, "iscrowd": 1}, {"area": 30, "iscrowd": 0}], [42.5, 30]),
    ],
)
def test_areas_are_those_of_the_boxes_when_missing_or_impossible(tmp_path: Path, given: list[Annotation], areas: list[float]) -> None:
    """PB-82: absent, 0, constant or too large; a missing iscrowd means no."""
    coco(tmp_path, "train", [given[0] | {"bbox": [1, 1, 10, 5]}, given[1] | {"bbox": [1, 1, 6, 5]}])
    target = only(read_box_data(tmp_path)).target((HEIGHT, WIDTH))
    assert target.areas is not None
    assert target.areas.tolist() == areas
    assert target.crowd is not None
    assert target.crowd.tolist() == [given[0].get("iscrowd") == 1, False]


def test_polygons_and_both_kinds_of_run_lengths_become_the_same_mask(tmp_path: Path) -> None:
    mask = torch.zeros(HEIGHT, WIDTH).bool()
    mask[3:8, 10:20] = True
    flat = [0, *np.flatnonzero(np.diff(mask.T.reshape(-1).numpy(), prepend=False)).tolist(), HEIGHT * WIDTH]
    plain = {"size": [HEIGHT, WIDTH], "counts": np.diff(flat).tolist()}
    packed = {"size": [HEIGHT, WIDTH], "counts": encode_mask(mask).counts.decode()}
    polygon = [[10, 3, 20, 3, 20, 8, 10, 8]]
    coco(
        tmp_path, "train", [{"segmentation": one, "bbox": [10, 3, 10, 5]} for one in (polygon, plain, packed)] + [{"segmentation": polygon}]
    )
    target = only(read_box_data(tmp_path, masks=True)).target((HEIGHT, WIDTH))
    assert target.masks is not None
    assert target.masks.equal(mask.expand(4, -1, -1))
    assert target.boxes.tolist() == [[10, 3, 20, 8]] * 4  # the last one, from its polygon
    assert target.areas is not None
    assert target.areas.tolist() == [50] * 4
    assert only(read_box_data(tmp_path)).target((HEIGHT, WIDTH)).masks is None


@pytest.mark.parametrize(
    ("segmentation", "code", "words"),
    [
        (None, "box-no-mask", "without an outline"),
        ([], "box-no-mask", "without an outline"),
        ([[1, 1, 5, 5]], "box-mask", "three points"),
        ([[1, 1, math.nan, 5, 3, 3]], "box-mask", "not finite"),
        ({"size": [9, 9], "counts": [81]}, "box-mask", "9 x 9"),
        ({"size": [HEIGHT, WIDTH], "counts": [5, 10**15]}, "box-mask", "add up"),
        ({"size": [HEIGHT, WIDTH], "counts": "oooooooooooo"}, "box-mask", "damaged"),
        ({"size": [HEIGHT, WIDTH]}, "box-mask", "counts"),
    ],
)
def test_unusable_outlines_matter_only_where_masks_are_learned(tmp_path: Path, segmentation: Any, code: str, words: str) -> None:
    """S5: run lengths are checked before memory is taken for them."""
    coco(tmp_path, "train", [{"bbox": [1, 1, 5, 5], "segmentation": segmentation}, {"segmentation": [[2, 2, 9, 2, 9, 9]]}])
    with pytest.raises(UserError, match=words):
        read_box_data(tmp_path, masks=True)
    data = read_box_data(tmp_path, masks=True, on_bad_box="fix")
    assert [one.code for one in data.findings] == [code]
    assert len(only(data).labels) == 1
    assert len(only(read_box_data(tmp_path)).labels) == 2


@pytest.mark.parametrize(
    ("annotation", "code"),
    [
        ({}, "box-no-box"),
        ({"segmentation": [[1, 1, 5]]}, "box-mask"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}}, "box-blank"),
    ],
)
def test_an_object_that_is_nowhere_is_refused_or_left_out_for_what_it_lacks(tmp_path: Path, annotation: Annotation, code: str) -> None:
    coco(tmp_path, "train", [annotation, {"bbox": [5, 5, 6, 7]}])
    found = read_box_data(tmp_path, strict=False).findings
    assert [(one.code, one.level) for one in found] == [(code, "error")]
    assert "not finite" not in found[0].message
    assert only(read_box_data(tmp_path, on_bad_box="fix")).boxes.tolist() == [[5, 5, 11, 12]]


def test_run_lengths_of_another_picture_are_found_where_the_json_gives_no_size(tmp_path: Path) -> None:
    path = coco(tmp_path, "train", [{"bbox": [1, 1, 5, 5], "segmentation": {"size": [9, 9], "counts": [40, 41]}}])
    content = json.loads(path.read_text())
    for entry in content["images"]:
        del entry["width"], entry["height"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="its mask is 9 x 9 pixels, the picture 60 x 40"):
        read_box_data(tmp_path, masks=True)


def test_a_picture_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = coco(tmp_path, "train", [{"bbox": [1, 1, 5, 5], "image_id": i} for i in (1, 2, 3)], pictures=3)
    content = json.loads(path.read_text())
    content["images"][2]["file_name"] = "train1.png"
    path.write_text(json.dumps(content))
    for policy in ("error", "fix", "drop"):
        with pytest.raises(UserError, match=r"(?s)1 picture is named more than once in all.*images/train1.png: under the ids 1, 3"):
            read_box_data(tmp_path / "instances_train.json", on_bad_box=policy)
    found = read_box_data(path, strict=False).findings
    assert [(one.level, one.code, one.paths) for one in found] == [("error", "named-twice", ("images/train1.png",))]
    content["images"][2] = content["images"][2] | {"id": "1", "file_name": "train3.png"}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"gives 1 id to several pictures: 1 is train1.png and train3.png"):
        read_box_data(tmp_path)


def test_a_network_sees_its_own_numbers_whatever_those_of_the_data(tmp_path: Path) -> None:
    """Evaluation elsewhere: classes by name, those that the network doesn't know refused."""
    boxes = [{"bbox": [1, 1, 9, 9], "category_id": 1}, {"bbox": [20, 1, 9, 9], "category_id": 2}]
    coco(tmp_path, "val", boxes, {1: "dog", 2: "cat"})
    assert only(read_box_data(tmp_path, classes=["cat", "dog"]), "val").labels.tolist() == [1, 0]
    with pytest.raises(UserError, match=r"'dog' \(1 objects\).*Known are 2 classes: cat, cow"):
        read_box_data(tmp_path, classes=["cat", "cow"])


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../b.png", "..\\secret.png", ""])
def test_a_file_name_does_not_leave_the_data(tmp_path: Path, name: str) -> None:
    path = coco(tmp_path / "data", "train", [])
    picture(tmp_path / "secret.png")
    content = json.loads(path.read_text())
    content["images"][1]["file_name"] = name
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"outside of the data.*instances_train.json"):
        read_box_data(tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"images": [{}], "annotations": [], "categories": []}', "damaged"),
        ('{"images": [{"id": 1, "file_name": "train1.png"}], "annotations": [{"image_id": 1}], "categories": []}', "category_id"),
        (
            '{"images": [{"id": 1, "file_name": "train1.png"}], "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3]}],'
            ' "categories": [{"id": 1, "name": "a"}]}',
            "four numbers",
        ),
        (
            '{"images": [{"id": 1, "file_name": "train1.png"}], "annotations": [{"image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4]}],'
            ' "categories": [{"id": 1, "name": "a"}]}',
            "does not list",
        ),
        ('{"images": [{"id": 1, "file_name": "gone.png"}], "annotations": [], "categories": []}', "nowhere"),
        ('{"images": [], "annotations": [], "categories": []}', "no pictures"),
    ],
)
def test_damaged_files_are_explained(tmp_path: Path, content: str, words: str) -> None:
    coco(tmp_path, "train", [])
    (tmp_path / "instances_train.json").write_text(content)
    with pytest.raises(UserError, match=words):
        read_box_data(tmp_path)


def test_a_class_that_only_val_has_is_an_error(tmp_path: Path) -> None:
    coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9]}], {1: "cat"})
    coco(tmp_path, "val", [{"bbox": [1, 1, 9, 9]}], {1: "cta"})
    with pytest.raises(UserError, match=r"val split.*'cta' \(1 objects\).*Did you mean cat"):
        read_box_data(tmp_path)


def test_a_made_split_repeats_and_a_saved_one_is_read_again(tmp_path: Path) -> None:
    """A run that resumes has the same pictures in the same splits, even when others were added."""
    path = coco(tmp_path / "a", "train", [{"bbox": [1, 1, 9, 9], "image_id": i} for i in range(1, 7)], pictures=10)
    data = read_box_data(path, seed=3)
    assert data.made_split
    assert [len(data.splits[split]) for split in ("train", "val")] == [8, 2]
    assert sum(len(item.labels) for item in data.splits["val"]) == 1  # of those with objects and those without
    saved = json.loads(json.dumps(data.to_json() | {"other": 1}))
    for moved in (None, tmp_path / "a"):
        again = BoxData.from_json(saved, moved)
        assert box_fingerprint(again) == box_fingerprint(data)
        assert [item.path for item in again.splits["val"]] == [item.path for item in data.splits["val"]]
    coco(tmp_path / "a", "train", [{"bbox": [1, 1, 9, 8], "image_id": i} for i in range(1, 12)], pictures=11)
    changed = BoxData.from_json(saved)
    assert [item.path for item in changed.splits["val"]] == [item.path for item in data.splits["val"]]
    assert box_fingerprint(changed) != box_fingerprint(data)
    coco(tmp_path / "a", "train", [{"bbox": [1, 1, 9, 8]}], pictures=3)
    with pytest.raises(UserError, match=r"not in .* any more"):
        BoxData.from_json(saved)


def test_items_are_small_and_travel_to_workers(tmp_path: Path) -> None:
    coco(tmp_path, "train", [{"segmentation": [[2, 2, 9, 2, 9, 9]]}] * 5)
    item = only(read_box_data(tmp_path, masks=True))
    packed = pickle.dumps(item)
    assert len(packed) < 3000
    copy = pickle.loads(packed).target((HEIGHT, WIDTH))
    assert copy.masks.equal(item.target((HEIGHT, WIDTH)).masks)


@pytest.mark.parametrize("tag", [1, 3, 6, 8, 5, 7])
@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("annotated_upright", [True, False])
def test_annotations_follow_turned_photos(tmp_path: Path, tag: int, upright: bool, annotated_upright: bool) -> None:
    """PB-34: a marked corner is found through box and mask, in whichever space it was annotated and however the picture is read."""
    array = np.zeros((40, 60, 3), np.uint8)
    array[8:20, 4:12] = 255
    path = tmp_path / "images" / "a.png"
    path.parent.mkdir()
    exif = Image.Exif()
    exif[274] = tag
    Image.fromarray(array).save(path, exif=exif)
    if tag < 5:
        annotated_upright = upright  # sizes can't tell: the picture as it is read is meant
    annotated = read_image(path, ReadOptions(orientation=annotated_upright))[..., 0] > 0
    mask = encode_mask(torch.from_numpy(annotated))
    size, file = list(annotated.shape), tmp_path / "instances.json"
    images = [{"id": 1, "file_name": "a.png", "width": size[1], "height": size[0]}]
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "segmentation": {"size": size, "counts": mask.counts.decode()}}
    file.write_text(json.dumps({"images": images, "annotations": [annotation], "categories": [{"id": 1, "name": "spot"}]}))
    item = only(read_box_data(tmp_path, masks=True))
    image = read_image(path, ReadOptions(orientation=upright))[..., 0] > 0
    target = item.target((image.shape[0], image.shape[1]))
    assert target.masks is not None
    assert np.array_equal(target.masks[0].numpy(), image)
    rows, columns = np.nonzero(image)
    assert target.boxes.tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]


def test_annotations_for_another_size_name_both(tmp_path: Path) -> None:
    """PB-34: and a worker can say which file it was."""
    coco(tmp_path, "train", [{"bbox": [1, 1, 9, 9]}])
    with pytest.raises(BadFileError, match=r"train1.png.*for a picture of 60 x 40 pixels, but it has 61 x 40"):
        only(read_box_data(tmp_path)).target((HEIGHT, WIDTH + 1))


def test_nothing_that_is_annotated_says_what_was_expected(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.png")
    with pytest.raises(UserError, match="expected COCO or VIA json"):
        read_box_data(tmp_path)
    with pytest.raises(UserError, match="no folder or file"):
        read_box_data(tmp_path / "dog")


@pytest.mark.slow
def test_real_data_reads(shared: Path) -> None:
    blood = read_box_data(shared / "data" / "bccd", on_bad_box="fix")
    assert blood.classes == ("Platelets", "RBC", "WBC")
    assert [(one.code, len(one.paths)) for one in blood.findings] == [("box-empty", 2)]
    assert [sum(len(item.labels) for item in blood.splits[split]) for split in ("train", "val")] == [2804, 1137]
    scenes = read_box_data(shared / "data" / "coco_open", masks=True)
    assert len(scenes.classes) == 80
    assert scenes.ids["toothbrush"] == 90
    items = [item for items in scenes.splits.values() for item in items]
    assert sum(int(item.crowd.sum()) for item in items) == 3
    item = max(items, key=lambda item: len(item.labels))
    assert item.size is not None
    target = item.target(item.size)
    assert target.masks is not None
    assert target.areas is not None
    assert target.masks.sum((1, 2)).tolist() == target.areas.tolist()
    assert item.shapes is not None
    assert decode_rle(item.shapes[0]).equal(target.masks[0])  # pyright: ignore[reportArgumentType]
