"""VOC, YOLO, VIA and object masks say the same as COCO; layouts as they come from the tools that write them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyramidvit.data.boxes import BoxData, read_box_data
from pyramidvit.errors import UserError


def picture(path: Path, width: int = 60, height: int = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 120, 30)).save(path)
    return path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def contents(data: BoxData, split: str = "train") -> dict[str, list[tuple[str, list[float]]]]:
    """File → (class, box)."""
    return {
        item.path.relative_to(data.root).as_posix(): [
            (data.classes[n], box.tolist()) for n, box in zip(item.labels, item.boxes, strict=True)
        ]
        for item in data.splits[split]
    }


def voc(name: str, *objects: tuple[str, Any, Any, Any, Any], size: bool = True, source: str = "", more: str = "") -> str:
    boxes = "".join(
        f"<object><name>{label}</name>{more}<bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for label, a, b, c, d in objects
    )
    sides = "<size><width>60</width><height>40</height></size>" if size else ""
    return f"<annotation><filename>{name}</filename><source><annotation>{source}</annotation></source>{sides}{boxes}</annotation>"


def test_voc_with_lists_of_names(tmp_path: Path) -> None:
    for name in "abc":
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
        write(tmp_path / "Annotations" / f"{name}.xml", voc(f"{name}.jpg", ("cat", 1, 2, 11, 12), ("dog", "3.5", 4, 20, 30)))
    write(tmp_path / "ImageSets" / "Main" / "train.txt", "a\nb\n\n")
    write(tmp_path / "ImageSets" / "Main" / "val.txt", "c\n")
    write(tmp_path / "ImageSets" / "Main" / "test.txt", "nowhere\n")
    data = read_box_data(tmp_path)
    objects = [("cat", [1, 2, 11, 12]), ("dog", [3.5, 4, 20, 30])]
    assert data.format == "VOC"
    assert contents(data) == {"JPEGImages/a.jpg": objects, "JPEGImages/b.jpg": objects}
    assert contents(data, "val") == {"JPEGImages/c.jpg": objects}
    assert [one.paths for one in data.findings if one.code == "unused-annotations"] == [("ImageSets/Main/test.txt",)]
    write(tmp_path / "ImageSets" / "Main" / "val.txt", "c\nd\n")
    with pytest.raises(UserError, match=r"(?s)1 name of the val list in ImageSets without xml.*\n    d$"):
        read_box_data(tmp_path)


def test_voc_beside_the_pictures_in_split_folders(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        picture(tmp_path / split / "a.png")
        write(tmp_path / split / "a.xml", voc("other.png", ("cat", 1, 2, 11, 12), size=False))
    data = read_box_data(tmp_path)
    assert contents(data, "val") == {"valid/a.png": [("cat", [1, 2, 11, 12])]}
    assert data.splits["val"][0].size == (40, 60)  # from the picture


def test_difficult_objects_and_the_numbering_of_the_voc_challenge(tmp_path: Path) -> None:
    text = voc("a.jpg", ("cat", 1, 1, 60, 40), source="PASCAL VOC2007", more="<difficult>1</difficult>")
    write(tmp_path / "Annotations" / "a.xml", text)
    picture(tmp_path / "JPEGImages" / "a.jpg")
    with pytest.raises(UserError, match="nothing can be learned"):  # from difficult objects alone
        read_box_data(tmp_path)
    easy = voc("b.jpg", ("cat", 1, 1, 60, 40), source="PASCAL VOC2007")
    write(tmp_path / "Annotations" / "b.xml", easy)
    picture(tmp_path / "JPEGImages" / "b.jpg")
    data = read_box_data(tmp_path)
    items = {item.path.name: item for split in data.splits.values() for item in split}
    assert [items[name].boxes.tolist() for name in ("a.jpg", "b.jpg")] == [[[0, 0, 60, 40]]] * 2
    assert [items[name].crowd.tolist() for name in ("a.jpg", "b.jpg")] == [[True], [False]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<annotation>", "no element found"),
        ('<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]><annotation>&y;</annotation>', "document type"),
        ("<annotation><object><name>a</name></object></annotation>", "no bndbox with xmin"),
        ("<annotation><object/></annotation>", "no name"),
        (voc("a.jpg", ("cat", "one", 1, 2, 3)), "could not convert"),
    ],
)
def test_damaged_xml_is_explained(tmp_path: Path, text: str, words: str) -> None:
    """S5: entities that grow without end are never opened."""
    write(tmp_path / "Annotations" / "a.xml", text)
    picture(tmp_path / "JPEGImages" / "a.jpg")
    with pytest.raises(UserError, match=rf"a.xml can't be used: .*{words}"):
        read_box_data(tmp_path)


def test_a_file_name_in_xml_does_not_leave_the_data(tmp_path: Path) -> None:
    write(tmp_path / "Annotations" / "a.xml", voc("../../secret.jpg", ("cat", 1, 1, 9, 9)))
    picture(tmp_path / "JPEGImages" / "b.jpg")
    with pytest.raises(UserError, match="outside of the data"):
        read_box_data(tmp_path)


@pytest.mark.parametrize("path", ["", "path: ../datasets/pets\n", "path: /home/someone/pets\n"])
@pytest.mark.parametrize(
    ("train", "val", "folders"),
    [
        ("images/train", "images/val", ("images/train", "images/val")),
        ("../train/images", "../valid/images", ("train/images", "valid/images")),
        ("train.txt", "val.txt", ("images/train", "images/val")),
    ],
)
def test_yolo_as_it_is_exported(tmp_path: Path, path: str, train: str, val: str, folders: tuple[str, str]) -> None:
    for folder in folders:
        labels = folder.replace("images", "labels")
        picture(tmp_path / folder / "a.png")
        picture(tmp_path / folder / "b.png")
        write(tmp_path / labels / "a.txt", "1 0.5 0.5 0.5 0.25\n\n0 0.1 0.1 0.2 0.1 0.2 0.5\n")
    if train == "train.txt":
        write(tmp_path / "train.txt", "./images/train/a.png\nimages/train/b.png\n")
        write(tmp_path / "val.txt", "images/val/a.png\nimages/val/b.png\n")
    write(tmp_path / "data.yaml", f"{path}train: {train}\nval: {val}\nnc: 2\nnames: [cat, dog]\n")
    data = read_box_data(tmp_path)
    objects = [("dog", [15, 15, 45, 25]), ("cat", [6, 4, 12, 20])]
    assert data.format == "YOLO"
    assert data.classes == ("cat", "dog")
    for split, folder in zip(("train", "val"), folders, strict=True):
        found = contents(data, split)
        assert list(found) == [f"{folder}/a.png", f"{folder}/b.png"]
        assert [name for name, _ in found[f"{folder}/a.png"]] == ["dog", "cat"]
        assert np.allclose([box for _, box in found[f"{folder}/a.png"]], [box for _, box in objects], atol=1e-5)
        assert found[f"{folder}/b.png"] == []  # no text: no objects


@pytest.mark.parametrize(
    ("yaml", "there", "words"),
    [
        ("train: ../other/images", "other/images/a.png", "leads outside"),
        ("train: /nowhere/images", "", "leads outside"),
        ("train: ..", "", "leads outside"),
        ("path: ../other\ntrain: images", "other/images/a.png", "says that its data is in ../other"),
        ("train: pets/images", "", "not in"),
        ("train: photos/images", "", "not in"),
        ("train: list.txt", "other/a.png", "leads outside"),
    ],
)
def test_yolo_paths_are_never_taken_for_other_ones(tmp_path: Path, yaml: str, there: str, words: str) -> None:
    """A folder outside was once replaced by any of a similar name inside."""
    picture(tmp_path / "pets" / "images" / "a.png")
    if there:
        picture(tmp_path / there)
    write(tmp_path / "pets" / "list.txt", "images/a.png\n../other/a.png\n")
    write(tmp_path / "pets" / "data.yaml", f"{yaml}\nnames: [cat]\n")
    with pytest.raises(UserError, match=words):
        read_box_data(tmp_path / "pets")


def test_yolo_paths_of_another_place_are_looked_for_beside_the_yaml_and_said(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for name in ("a", "b"):
        picture(root / "train" / "images" / f"{name}.png")
        write(root / "train" / "labels" / f"{name}.txt", "0 0.5 0.5 0.5 0.5\n")
    write(root / "data.yaml", "train: ../train/images\nnames: [cat]\n")
    (found,) = [one for one in read_box_data(root).findings if one.code == "moved-paths"]
    assert (found.level, found.paths, found.details) == ("warning", ("../train/images",), ("train/images",))
    for sound in ("path: train\ntrain: images", f"path: {root}\ntrain: {root}/train/images"):
        write(root / "data.yaml", f"{sound}\nnames: [cat]\n")
        data = read_box_data(root)
        assert (sum(map(len, data.splits.values())), data.findings) == (2, ())


def test_names_in_a_yolo_list_without_picture_are_refused_and_a_picture_named_twice(tmp_path: Path) -> None:
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
        write(tmp_path / "labels" / f"{name}.txt", "0 0.5 0.5 0.5 0.5\n")
    write(tmp_path / "data.yaml", "train: train.txt\nnames: [cat]\n")
    write(tmp_path / "train.txt", "images/a.png\nimages/gone.png\nimages/b.png\n")
    with pytest.raises(UserError, match=r"1 name of the train list train.txt without picture: correct the list.*\n    images/gone.png"):
        read_box_data(tmp_path)
    (found,) = read_box_data(tmp_path, strict=False).findings
    assert (found.level, found.code, found.paths) == ("error", "unknown-names", ("images/gone.png",))
    write(tmp_path / "train.txt", "images/a.png\nimages/b.png\n./images/a.png\n")
    with pytest.raises(UserError, match=r"1 picture is named more than once in train: name each once.*\n    images/a.png"):
        read_box_data(tmp_path)
    write(tmp_path / "train.txt", "images/gone.png\n")
    with pytest.raises(UserError, match="without picture"):
        read_box_data(tmp_path)


def test_yolo_polygons_are_outlines(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "b.png")
    for name in "ab":
        write(tmp_path / "labels" / f"{name}.txt", "0 0.1 0.1 0.3 0.1 0.3 0.6 0.1 0.6\n")
    write(tmp_path / "classes.txt", "cat\n")
    target = read_box_data(tmp_path, masks=True).splits["train"][0].target((40, 60))
    assert target.masks is not None
    assert int(target.masks.sum()) == 12 * 20
    assert np.allclose(target.boxes.numpy(), [[6, 4, 18, 24]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 0.5 0.5 0.5 0.5", "class 2 is not one of the 1 names"),
        ("0.5 0.5 0.5 0.5 0.5", "class 0.5"),
        ("0 0.5 0.5 0.5 0.5 0.9", "got 6 numbers"),
        ("0 0.5 0.5", "got 3 numbers"),
        ("cat 0.5 0.5 0.5 0.5", "could not convert"),
    ],
)
def test_wrong_yolo_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    picture(tmp_path / "images" / "a.png")
    write(tmp_path / "labels" / "a.txt", f"0 0.5 0.5 0.5 0.5\n{line}\n")
    write(tmp_path / "data.yaml", "train: images\nnames: {0: cat}\n")
    with pytest.raises(UserError, match=rf"Line 2 of .*a.txt can't be used: .*{words}"):
        read_box_data(tmp_path)


def test_yolo_pictures_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    write(tmp_path / "images" / "b.png", "no picture")
    write(tmp_path / "labels" / "a.txt", "0 0.5 0.5 0.5 0.5\n")
    write(tmp_path / "data.yaml", "train: images\nnames: [cat]\n")
    data = read_box_data(tmp_path)
    assert [(one.code, one.paths) for one in data.findings] == [("unread-pictures", ("images/b.png",))]


def test_a_yaml_runs_no_code_and_its_names_are_checked(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    for text, words in (
        ("train: images\nnames: !!python/object/apply:os.system ['touch done']\n", "Can't read"),
        ("train: images\nnames: {1: cat, 2: dog}\n", "numbered 0 to 1"),
        ("train: elsewhere\nnames: [cat]\n", "elsewhere of the data.yaml is not in"),
    ):
        write(tmp_path / "data.yaml", text)
        with pytest.raises(UserError, match=words):
            read_box_data(tmp_path)


def via(regions: Any, name: str = "a.png") -> dict[str, Any]:
    return {f"{name}123": {"filename": name, "size": 123, "regions": regions, "file_attributes": {}}}


def test_via_regions_of_all_shapes(tmp_path: Path) -> None:
    shapes = [
        {"name": "rect", "x": 5, "y": 6, "width": 10, "height": 8},
        {"name": "polygon", "all_points_x": [1, 9, 9], "all_points_y": [2, 2, 12]},
        {"name": "circle", "cx": 20, "cy": 20, "r": 4.0},
        {"name": "ellipse", "cx": 20, "cy": 20, "rx": 8, "ry": 2, "theta": math.pi / 2},
        {"name": "point", "cx": 1, "cy": 1},
    ]
    regions = {str(number): {"shape_attributes": shape, "region_attributes": {"class": "cell"}} for number, shape in enumerate(shapes)}
    for split in ("train", "val"):
        picture(tmp_path / split / "a.png")
        picture(tmp_path / split / "b.png")
        write(tmp_path / split / "via_region_data.json", json.dumps(via(regions) | via([], "b.png")))
    data = read_box_data(tmp_path, masks=True)
    assert data.format == "VIA"
    assert data.classes == ("cell",)
    target = data.splits["val"][0].target((40, 60))
    assert np.allclose(target.boxes.numpy(), [[5, 6, 15, 14], [1, 2, 9, 12], [16, 16, 24, 24], [18, 12, 22, 28]], atol=0.05)
    assert target.masks is not None
    assert np.allclose(target.masks.sum((1, 2)).numpy(), [80, 40, math.pi * 16, math.pi * 16], rtol=0.12)
    assert [one.message for one in data.findings] == ["Regions that enclose nothing are left out: 2 point."]
    assert len(data.splits["train"][1].labels) == 0


def test_via_classes_from_menus_and_check_boxes_and_none(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png")
    rect = {"name": "rect", "x": 5, "y": 6, "width": 10, "height": 8}
    attributes = [{"kind": "cat"}, {"type": {"dog": True, "cat": False}, "mood": "good"}, {}]
    regions = [{"shape_attributes": rect, "region_attributes": one} for one in attributes]
    project = {"_via_settings": {}, "_via_img_metadata": via(regions) | via(regions, "b.png")}
    path = write(tmp_path / "project.json", json.dumps(project))
    data = read_box_data(path)
    assert [name for name, _ in contents(data)["a.png" if "a.png" in contents(data) else "b.png"]] == ["cat", "dog", "object"]
    regions[0]["region_attributes"] = {"colour": "red", "mood": "good"}
    write(path, json.dumps(via(regions)))
    with pytest.raises(UserError, match="which of the attributes colour, mood"):
        read_box_data(path)


@pytest.mark.parametrize("layout", ["folder per picture", "folder per picture and split", "beside each other", "with classes"])
def test_one_mask_per_object(tmp_path: Path, layout: str) -> None:
    def mask(path: Path, left: int) -> None:
        array = np.zeros((40, 60), np.uint8)
        array[2:7, left : left + 10] = 255
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)

    for number in range(4):
        name = f"cell {number}"
        split = ("train", "val")[number % 2] if "split" in layout else "."
        if "folder" in layout:
            image, masks = tmp_path / split / name / "images" / f"{name}.png", tmp_path / split / name / "masks"
        else:
            image, masks = tmp_path / "images" / f"{name}.png", tmp_path / "masks" / name
        picture(image)
        mask((masks / "round" if "classes" in layout else masks) / "1.png", 0)
        mask((masks / "long" if "classes" in layout else masks) / "2.png", 20)
    data = read_box_data(tmp_path, masks=True)
    assert data.classes == (("long", "round") if "classes" in layout else ("object",))
    assert sum(len(items) for items in data.splits.values()) == 4
    assert data.made_split == ("split" not in layout)
    target = data.splits["val"][0].target((40, 60))
    assert sorted(target.boxes.tolist()) == [[0, 2, 10, 7], [20, 2, 30, 7]]
    assert target.masks is not None
    assert target.masks.sum((1, 2)).tolist() == [50, 50]


@pytest.mark.parametrize("masks", [True, False])
def test_a_mask_without_object_and_one_of_another_size_are_named(tmp_path: Path, masks: bool) -> None:
    """An all-black mask was once called not finite, and the picture blamed for the size of a mask."""
    for name in "abc":
        picture(tmp_path / "images" / f"{name}.png")
        for number, (size, value) in enumerate((((7, 9), 255), ((40, 60), 0), ((40, 60), 255))[2 * (name != "a") :]):
            path = tmp_path / "masks" / name / f"m{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full(size, value, np.uint8)).save(path)
    with pytest.raises(UserError) as refused:
        read_box_data(tmp_path, masks=masks)
    assert "images/a.png: the mask m0.png has 9 x 7 pixels, but its picture 60 x 40" in str(refused.value)
    assert "1 object whose mask holds no object: mend them, or pass --on-bad-box" in str(refused.value)
    assert "images/a.png: the mask m1.png is 0 everywhere" in str(refused.value)
    data = read_box_data(tmp_path, masks=masks, on_bad_box="fix")
    assert {one.code: one.level for one in data.findings} == {"box-mask": "warning", "box-blank": "warning"}
    target = next(item for items in data.splits.values() for item in items if item.path.stem == "a").target((40, 60))
    assert target.boxes.tolist() == [[0, 0, 60, 40]]


def test_coco_as_it_is_exported_and_published(tmp_path: Path) -> None:
    """train/_annotations.coco.json with its pictures; annotations/instances_val2017.json beside captions, pictures in val2017/."""
    entry = {"images": [{"id": 0, "file_name": "a.png", "height": 40, "width": 60}], "categories": [{"id": 0, "name": "cat"}]}
    content = json.dumps(entry | {"annotations": [{"id": 0, "image_id": 0, "category_id": 0, "bbox": [1, 2, 3, 4]}]})
    for split in ("train", "valid", "test"):
        picture(tmp_path / "exported" / split / "a.png")
        write(tmp_path / "exported" / split / "_annotations.coco.json", content)
        picture(tmp_path / "published" / f"{split}2017" / "a.png")
        write(tmp_path / "published" / "annotations" / f"instances_{split}2017.json", content)
        write(
            tmp_path / "published" / "annotations" / f"captions_{split}2017.json", json.dumps(entry | {"annotations": [{"caption": "a"}]})
        )
    for root, names in (("exported", ("train", "valid")), ("published", ("train2017", "valid2017"))):
        data = read_box_data(tmp_path / root)
        for split, name in zip(("train", "val"), names, strict=True):
            assert contents(data, split) == {f"{name}/a.png": [("cat", [1, 2, 4, 6])]}
        assert [one.code for one in data.findings] == ["unused-annotations"]  # the test split is never seen
    alone = read_box_data(tmp_path / "published" / "annotations" / "instances_train2017.json")
    assert [len(items) for items in alone.splits.values()] == [1, 0]


def test_two_sources_for_one_split_are_not_guessed_between(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    content = json.dumps({"images": [{"id": 1, "file_name": "a.png"}], "categories": [], "annotations": []})
    write(tmp_path / "one.json", content)
    write(tmp_path / "two.json", content)
    with pytest.raises(UserError, match=r"several sources of annotations for all: one.json, two.json"):
        read_box_data(tmp_path)


def places(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Keys that lead to every value in plain data."""
    below = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return ([above] if above else []) + [place for key, value in below for place in places(value, (*above, key))]


@pytest.mark.parametrize("value", [None, -1, 1e308, math.nan, "", [], {}, [[]], 10**30, "gone"])
@pytest.mark.parametrize("kind", ["coco", "via"])
def test_any_value_in_any_place_is_read_or_refused_in_words(tmp_path: Path, kind: str, value: Any) -> None:
    """No file brings a traceback, whatever is wrong in it; "gone" takes the entry out."""
    outlines: list[Any] = [[[1, 1, 5, 1, 5, 5]], {"size": [40, 60], "counts": [5, 6, 2389]}]
    annotations = [
        {"image_id": i, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 12, "segmentation": one} for i, one in enumerate(outlines)
    ]
    images = [{"id": i, "file_name": f"{name}.png", "width": 60, "height": 40} for i, name in enumerate("ab")]
    rect = {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}, "region_attributes": {"class": "cat"}}
    sound = {"coco": {"images": images, "categories": [{"id": 1, "name": "cat"}], "annotations": annotations}, "via": via([rect])}[kind]
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    for place in places(sound):
        content = json.loads(json.dumps(sound))
        holder = content
        for key in place[:-1]:
            holder = holder[key]
        if value == "gone":
            del holder[place[-1]]
        else:
            holder[place[-1]] = value
        path = write(tmp_path / "annotations.json", json.dumps(content))
        try:
            data = read_box_data(path, masks=True, strict=False)
            targets = [item.target((40, 60)) for items in data.splits.values() for item in items]
        except UserError:
            continue
        assert all(np.isfinite(target.boxes.numpy()).all() for target in targets)
