"""Semantic masks: pairs by name, values that mean what is declared, nothing ignored in silence."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.data.mask_items import MaskCode, MaskItem
from pyramidvit.data.masks import MaskData, mask_fingerprint, read_mask_data
from pyramidvit.errors import BadFileError, UserError

VALUES = np.array([[0, 1, 2], [2, 255, 0]], np.uint8)


def picture(path: Path, width: int = 3, height: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 120, 30)).save(path)
    return path


def mask(path: Path, values: np.ndarray = VALUES, mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    if mode == "P":
        image.putpalette([10, 10, 10] * 256)  # all of one colour: only the numbers count
    (image if mode in ("L", "P") else image.convert(mode)).save(path)
    return path


def labels(data: MaskData, split: str = "train") -> list[list[list[int]]]:
    return [item.target((2, 3)).labels.tolist() for item in data.splits[split]]


def names(data: MaskData, split: str) -> list[tuple[str, str]]:
    return [(item.path.relative_to(data.root).as_posix(), item.mask.relative_to(data.root).as_posix()) for item in data.splits[split]]


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "RGB"])
def test_values_of_all_kinds_of_files_are_the_classes(tmp_path: Path, mode: str) -> None:
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.jpg")
        mask(tmp_path / "masks" / f"{name}.png", VALUES, mode)
    data = read_mask_data(tmp_path, classes=["x", "y", "z"])
    assert labels(data) == labels(data, "val") == [VALUES.tolist()]
    assert data.splits["val"][0].target((2, 3)).labels.dtype == torch.uint8


def test_colours_become_classes_and_strange_ones_are_named(tmp_path: Path) -> None:
    colours = {"road": (128, 0, 0), "sky": (0, 0, 128), "ignore": (0, 0, 0)}
    values = np.array([[(128, 0, 0), (0, 0, 128), (0, 0, 0)]] * 2, np.uint8)
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.jpg")
        mask(tmp_path / "masks" / f"{name}.png", values, "RGB")
    data = read_mask_data(tmp_path, colours=colours)
    assert data.classes == ("road", "sky")
    assert labels(data) == [[[0, 1, 255]] * 2]
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\nroad,128,0,0\nsky,0,0,128\nignore,0,0,0\n")
    assert labels(read_mask_data(tmp_path)) == [[[0, 1, 255]] * 2]
    with pytest.raises(BadFileError, match=r"colours of no class: \(0, 0, 128\) 2 pixels"):
        labels(read_mask_data(tmp_path, colours={"road": (128, 0, 0), "ignore": (0, 0, 0)}))
    (tmp_path / "class_dict.csv").unlink()
    with pytest.raises(BadFileError, match="no colours of classes are given"):
        labels(read_mask_data(tmp_path, classes=["road"]))


def test_reduce_zero_ignores_zero_and_keeps_what_is_ignored() -> None:
    code = MaskCode(("wall", "floor"), reduce_zero=True)
    assert code.labels(Path("a"), VALUES).tolist() == [[255, 0, 1], [1, 255, 255]]


def test_binary_masks_of_0_and_255_are_refused_until_255_has_a_class(tmp_path: Path) -> None:
    """PB-48: 255 would be ignored, and nothing learned."""
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.jpg")
        mask(tmp_path / "masks" / f"{name}.png", np.array([[0, 255, 255], [0, 0, 255]], np.uint8))
    with pytest.raises(UserError, match=r"nothing would be learned: pass --mask-map 255:1"):
        read_mask_data(tmp_path, classes=["background", "polyp"])
    data = read_mask_data(tmp_path, value_map={255: 1})
    assert data.classes == ("background", "foreground")
    assert labels(data) == [[[0, 1, 1], [0, 0, 1]]]
    with_bits = mask(tmp_path / "masks" / "a.png", np.array([[0, 255, 255], [0, 0, 255]], np.uint8), "1")
    assert MaskItem(with_bits, with_bits, data.code).target((2, 3)).labels.tolist() == [[0, 1, 1], [0, 0, 1]]


def test_values_beyond_the_classes_name_file_values_and_pixels() -> None:
    """PB-51: before the first step, not deep in a loss."""
    values = np.array([[0, 7, 7], [1, 9, 255]], np.uint8)
    with pytest.raises(BadFileError, match=r"spot.png.*7 \(2 pixels\), 9 \(1 pixels\); known are 3 classes, 0 to 2 \(x, y, z\)"):
        MaskCode(("x", "y", "z")).labels(Path("spot.png"), values)
    with pytest.raises(UserError, match="255 classes at most"):
        MaskCode(tuple(map(str, range(256))))


@pytest.mark.parametrize("layout", ["beside", "same folder", "splits below", "splits above"])
def test_pairs_are_found_in_all_layouts(tmp_path: Path, layout: str) -> None:
    """PB-53: spaces, other letters, capital suffixes, another ending."""
    for name in ("photo 1", "fängt an", "C"):
        for split in ("train", "val"):
            image, target = {
                "beside": ("images", "masks"),
                "same folder": ("", ""),
                "splits below": (f"images/{split}ing", f"annotations/{split}ing")
                if split == "train"
                else (f"images/{split}", f"annotations/{split}"),
                "splits above": (f"{split}/img", f"{split}/mask"),
            }[layout]
            ending = "_mask" if layout in ("same folder", "splits above") else ""
            picture(tmp_path / image / f"{name}.JPG")
            mask(tmp_path / target / f"{name}{ending}.PNG")
    data = read_mask_data(tmp_path)
    pairs = names(data, "train") + names(data, "val")
    assert len(pairs) == (6 if "splits" in layout else 3)
    assert all(Path(path).stem == Path(target).stem.removesuffix("_mask") for path, target in pairs)
    assert data.made_split == ("splits" not in layout)
    assert [one.code for one in data.findings] == ["unnamed-classes"]


def test_pictures_without_mask_and_masks_without_picture_are_listed(tmp_path: Path) -> None:
    """PB-53."""
    for name in "abc":
        picture(tmp_path / "images" / f"{name}.png")
    for name in "abd":
        mask(tmp_path / "masks" / f"{name}.png")
    with pytest.raises(UserError, match=r"1 picture has no mask of the same name in masks/: add or remove. images/c.png"):
        read_mask_data(tmp_path)
    found = {one.code: (one.level, one.paths) for one in read_mask_data(tmp_path, strict=False).findings}
    assert found["no-mask"] == ("error", ("images/c.png",))
    assert found["unused-masks"] == ("note", ("masks/d.png",))


def test_a_mask_of_another_size_names_both_sizes(tmp_path: Path) -> None:
    """PB-53."""
    path, target = picture(tmp_path / "a.png", 5, 4), mask(tmp_path / "b.png")
    with pytest.raises(BadFileError, match=r"b.png: the mask has 3 x 2 pixels, but its picture a.png has 5 x 4"):
        MaskItem(path, target, MaskCode(("x", "y", "z"))).target((4, 5))


def test_a_mask_of_the_stored_picture_turns_with_it(tmp_path: Path) -> None:
    """PB-34."""
    array = np.zeros((2, 3, 3), np.uint8)
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(array).save(tmp_path / "a.png", exif=exif)
    item = MaskItem(tmp_path / "a.png", mask(tmp_path / "b.png"), MaskCode(("x", "y", "z")))
    assert item.target((3, 2)).labels.tolist() == np.rot90(VALUES, -1).tolist()
    assert item.target((2, 3)).labels.tolist() == VALUES.tolist()


def test_masks_that_lose_values_or_are_damaged_are_refused(tmp_path: Path) -> None:
    code = MaskCode(("x", "y", "z"))
    jpeg = picture(tmp_path / "a.jpg")
    with pytest.raises(BadFileError, match="keeps values"):
        MaskItem(jpeg, jpeg, code).target((2, 3))
    cut = mask(tmp_path / "a.png", np.tile(VALUES, (40, 40)))
    cut.write_bytes(cut.read_bytes()[:60])
    with pytest.raises(BadFileError, match=r"a.png"):
        MaskItem(cut, cut, code).target((80, 120))


@pytest.mark.parametrize(
    ("file", "content", "classes"),
    [
        ("classes.txt", "x\ny\nz\n", ("x", "y", "z")),
        ("class_names.json", ["x", "y", "z"], ("x", "y", "z")),
        ("labels.json", {"0": "x", "2": "z", "1": "y"}, ("x", "y", "z")),
        ("labels.json", {"x": 1, "y": 0, "z": 2}, ("y", "x", "z")),
        ("classes.json", {"classes": [{"name": "x"}, {"name": "y"}, {"name": "z"}]}, ("x", "y", "z")),
        ("notes.txt", "nothing", ("0", "1", "2")),
    ],
)
def test_class_names_come_from_a_file_or_from_the_values(tmp_path: Path, file: str, content: Any, classes: tuple[str, ...]) -> None:
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png")
    (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    assert read_mask_data(tmp_path).classes == classes
    (tmp_path / file).write_text(json.dumps({"0": "x", "5": "y"}))
    if file.endswith(".json"):
        with pytest.raises(UserError, match="without gaps"):
            read_mask_data(tmp_path)


def test_splits_come_from_coco_files_when_there_are(tmp_path: Path) -> None:
    for name in "abcd":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png")
    for split, chosen in (("train", "ac"), ("val", "d")):
        images = [{"id": name, "file_name": f"{name}.png"} for name in chosen]
        (tmp_path / f"instances_{split}.json").write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    data = read_mask_data(tmp_path)
    assert [path for path, _ in names(data, "train")] == ["images/a.png", "images/c.png"]
    assert [path for path, _ in names(data, "val")] == ["images/d.png"]
    assert not data.made_split


@pytest.mark.parametrize("source", ["names", "json"])
def test_names_in_lists_without_picture_are_an_error(tmp_path: Path, source: str) -> None:
    """They were once left out in silence, as were lists without one of the other split."""
    for name in "abc":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png")
    listed = ("a.png", "gone.png", "sub/b")
    if source == "names":
        file = tmp_path / "ImageSets" / "Segmentation" / "train.txt"
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(listed))
    else:
        file = tmp_path / "instances_train.json"
        images = [{"id": name, "file_name": name} for name in listed]
        file.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    with pytest.raises(UserError, match=rf"2 names of the train list .*{file.name} without picture and mask: .* gone.png, sub/b"):
        read_mask_data(tmp_path)
    data = read_mask_data(tmp_path, strict=False)
    assert [one.paths for one in data.findings if one.code == "unknown-names"] == [("gone.png", "sub/b")]
    assert [path for split in data.splits for path, _ in names(data, split)] == ["images/a.png"]


@pytest.mark.parametrize("reduce_zero", [False, True])
def test_a_network_finds_its_classes_by_name(tmp_path: Path, reduce_zero: bool) -> None:
    """Values of other data were once taken for the network's numbers."""
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png", VALUES + reduce_zero * (VALUES != 255).astype(np.uint8))
    (tmp_path / "classes.txt").write_text("tree\nroad\nsky\n")
    same = read_mask_data(tmp_path, reduce_zero=reduce_zero, trained=["tree", "road", "sky"])
    assert mask_fingerprint(same) == mask_fingerprint(read_mask_data(tmp_path, reduce_zero=reduce_zero))
    assert labels(same) == [VALUES.tolist()]
    other = read_mask_data(
        tmp_path, classes=["road", "car", "tree", "sky"], reduce_zero=reduce_zero, trained=["road", "car", "tree", "sky"]
    )
    assert other.classes == ("road", "car", "tree", "sky")
    assert labels(other) == [[[2, 0, 3], [3, 255, 2]]]
    assert labels(MaskData.from_json(other.to_json())) == labels(other)
    with pytest.raises(UserError, match=r"1 classes that the network does not have: sky.*knows 3 classes: road, tree, skies.*classes.txt"):
        read_mask_data(tmp_path, trained=["road", "tree", "skies"])
    mask(tmp_path / "masks" / "a.png", np.full((2, 3), 3 + reduce_zero, np.uint8))
    with pytest.raises(BadFileError, match=r"3 \(6 pixels\); known are 3 classes, 0 to 2 \(tree, road, sky\)"):
        [item.target((2, 3)) for split in other.splits.values() for item in split]


def test_masks_without_names_say_what_their_values_are_taken_for(tmp_path: Path) -> None:
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png")
    (found,) = read_mask_data(tmp_path, trained=["tree", "road", "sky"]).findings
    assert (found.level, found.code) == ("warning", "unnamed-classes")
    assert "0 tree, 1 road, 2 sky" in found.message
    assert read_mask_data(tmp_path, trained=["0", "1", "2", "3"]).findings == ()


def test_saved_data_comes_back_and_its_fingerprint_follows_masks_and_meaning(tmp_path: Path) -> None:
    for name in "abcdef":
        picture(tmp_path / "images" / f"{name}.png")
        mask(tmp_path / "masks" / f"{name}.png")
    data = read_mask_data(tmp_path, classes=["x", "y"], value_map={2: 255}, colours={"x": (1, 2, 3)}, seed=5)
    again = MaskData.from_json(json.loads(json.dumps(data.to_json())))
    assert (again.code, again.splits, again.made_split) == (data.code, data.splits, True)
    before = mask_fingerprint(data)
    assert mask_fingerprint(again) == before
    assert len(data.splits["val"]) == 1
    assert mask_fingerprint(read_mask_data(tmp_path, classes=["x", "y"], value_map={2: 1})) != before
    mask(tmp_path / "masks" / "a.png", np.zeros((2, 3), np.uint8))
    assert mask_fingerprint(again) != before
    with pytest.raises(UserError, match="not one that we wrote"):
        MaskData.from_json(data.to_json() | {"splits": {"train": [["../a.png", "b.png"]], "val": []}})
    assert len(pickle.dumps(data.splits["train"][0])) < 1000


def test_real_masks_read(shared: Path) -> None:
    nuclei = read_mask_data(shared / "data" / "nuclei")
    assert [len(nuclei.splits[split]) for split in ("train", "val")] == [120, 40]
    assert nuclei.splits["val"][0].target((256, 256)).labels.unique().tolist() == [0, 1]
    scenes = read_mask_data(shared / "data" / "coco_open")
    assert len(scenes.classes) == 108
    assert scenes.classes[0] == "person"
