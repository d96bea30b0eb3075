"""The command line on real pictures with COCO's annotations: ids with gaps, crowds, an empty picture, a grey one. Skips without data."""

import json
import shutil
from pathlib import Path

import pytest

from pyramidvit.cli import main
from pyramidvit.data.boxes import read_box_data
from pyramidvit.geometry import rle_area, rle_box
from pyramidvit.types import Rle

TINY = ["--epochs", 1, "--batch-size", 8, "--workers", 0, "--threads", 1, "--warmup-epochs", 0, "--device", "cpu"]
TINY += ["--resize", "fixed", "--input-size", "64x64", "--width", 16]
EMPTY, GREY = "000000000508", "000000000086"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(scope="module")
def photos(shared) -> Path:
    return shared / "data" / "coco_open"


@pytest.fixture(scope="module")
def annotated(photos) -> dict:
    return json.loads((photos / "instances.json").read_text())


def test_objects_are_those_of_the_json(photos, annotated):
    """Category ids have gaps, so a class is where its name is; crowds, areas and boxes are kept; a picture without objects stays."""
    data = read_box_data(photos, masks=True)
    names = {category["id"]: category["name"] for category in annotated["categories"]}
    assert data.classes == tuple(names.values())
    assert data.ids == {name: number for number, name in names.items()}
    items = {item.id: item for items in data.splits.values() for item in items}
    assert len(items) == len(annotated["images"]) == 53
    expected: dict[int | str | None, list] = {image["id"]: [] for image in annotated["images"]}
    for one in annotated["annotations"]:
        expected[one["image_id"]].append((names[one["category_id"]], bool(one["iscrowd"]), float(one["area"]), one["bbox"]))
    for number, item in items.items():
        corners = zip(item.labels.tolist(), item.crowd.tolist(), item.areas.tolist(), item.boxes.tolist(), strict=True)
        found = [(data.classes[label], crowd, area, [x, y, right - x, bottom - y]) for label, crowd, area, (x, y, right, bottom) in corners]
        assert found == expected[number]
        assert item.shapes is not None
        for shape, area, box in zip(item.shapes, item.areas.tolist(), item.boxes.tolist(), strict=True):
            assert isinstance(shape, Rle)
            assert rle_area(shape) == area
            assert rle_box(shape) == tuple(box)
    assert not expected[508]
    assert len(items[508].labels) == 0


@pytest.fixture(scope="module", params=("detect", "instances", "segment"))
def trained(request, photos, tmp_path_factory) -> tuple[str, Path, Path]:
    """Task, data and run; of the label maps, whose 108 classes take long, some."""
    task, data, runs = request.param, photos, tmp_path_factory.mktemp("runs")
    if task == "segment":
        data = tmp_path_factory.mktemp("labels")
        for folder in ("images", "semantic"):
            (data / folder).mkdir()
            for path in sorted((photos / folder).iterdir())[:10]:
                shutil.copy(path, data / folder)
        shutil.copy(photos / "semantic_classes.json", data)
    assert run("train", data, "--task", task, "--runs", runs, "--name", "tiny", *TINY) == 0
    return task, data, runs / task / "tiny"


@pytest.mark.slow
def test_the_whole_path(trained, photos, annotated, tmp_path, capsys):
    """Check, train, evaluate, predict: every object is counted once, crowds apart, and what comes out is COCO's."""
    task, data, folder = trained
    assert run("check", data, "--task", task, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert run("evaluate", folder, "--split", "all", "--workers", 0, "--json", "--device", "cpu") == 0
    measured = json.loads(capsys.readouterr().out)
    pictures = [photos / "images" / f"{name}.jpg" for name in (EMPTY, GREY)]
    sizes = {image["file_name"]: [image["height"], image["width"]] for image in annotated["images"]}
    if task == "segment":
        assert (measured["n"], len(measured["classes"])) == (10, 108)
        assert run("predict", folder, *pictures, "--json", "--device", "cpu") == 0
    else:
        assert report["modes"] == {"RGB": 52, "L": 1}
        assert sum(count for counts in report["counts"].values() for count in counts.values()) == 355
        assert (measured["n"], measured["objects"], measured["crowds"]) == (53, 352, 3)
        file = tmp_path / "found.json"
        assert run("predict", folder, *pictures, "--json", "--coco", file, "--device", "cpu") == 0
        content = json.loads(file.read_text())
        assert [category["name"] for category in content["categories"]] == [one["name"] for one in annotated["categories"]]
        assert all(("segmentation" in entry) == (task == "instances") for entry in content["annotations"])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["size"] for answer in said] == [sizes[path.name] for path in pictures]
