"""Whole paths through the command line for segmentation, detection and instances, on small generated scenes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pyramidvit
from pyramidvit.cli import main
from pyramidvit.data.dense_scenes import LABEL_CLASSES, write_label_scenes, write_object_scenes
from pyramidvit.data.scenes import PILE_CLASSES
from pyramidvit.files import read_tensors

QUICK = ["--batch-size", "4", "--workers", "0", "--threads", "1", "--warmup-epochs", "0", "--device", "cpu", "--eval-every", "1"]
QUICK += ["--resize", "fixed", "--input-size", "64x64", "--width", "16", "--drop-path-rate", "0.1"]
TASKS = ("segment", "detect", "instances")


def run(*arguments: object) -> int:
    """The exit code of `pyramidvit arguments`."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    code = left.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scenes")
    write_label_scenes(folder / "labels", train=8, val=3, size=(64, 80), seed=1)
    write_object_scenes(folder / "objects", train=8, val=3, size=(64, 80), seed=1)
    return {"segment": folder / "labels", "detect": folder / "objects", "instances": folder / "objects"}


@pytest.fixture(scope="module", params=TASKS)
def trained(request, data, tmp_path_factory) -> tuple[str, Path]:
    """A finished run of two epochs of each task."""
    task, runs = request.param, tmp_path_factory.mktemp("runs")
    assert run("train", data[task], "--task", task, "--runs", runs, "--name", "first", "--epochs", 2, *QUICK) == 0
    return task, runs / task / "first"


@pytest.mark.slow
def test_a_run_folder_is_complete(trained):
    _, folder = trained
    for name in ("config.yaml", "data.json", "metrics.csv", "report.html", "README.md", "weights/best.safetensors"):
        assert (folder / name).stat().st_size > 0, name
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 2
    assert all(np.isfinite(float(row["train_loss"])) for row in rows)
    assert "preset small" in (folder / "config.yaml").read_text()


@pytest.mark.slow
def test_evaluate_measures_the_held_out_pictures_again(trained, data, capsys):
    task, folder = trained
    assert run("evaluate", folder, "--json", "--device", "cpu") == 0
    again = json.loads(capsys.readouterr().out)
    last = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    headline = {"segment": "miou", "detect": "box_ap", "instances": "mask_ap"}[task]
    assert again["n"] == 3
    assert max(float(row[f"val_{headline}"]) for row in last) == pytest.approx(again[headline], abs=1e-6)
    assert run("evaluate", folder, data[task], "--split", "train", "--json", "--device", "cpu") == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8


@pytest.mark.slow
def test_predict_writes_pictures_and_json(trained, data, tmp_path, capsys):
    task, folder = trained
    photo = next((data[task] / "images").rglob("*.png"))
    assert run("predict", folder, photo, "--out", tmp_path, "--device", "cpu") == 0
    with Image.open(tmp_path / f"{photo.stem}.png") as drawn:
        assert drawn.width >= 80
    capsys.readouterr()
    for looks in ([], ["--tile", "64"], ["--flip"], ["--scales", "1", "0.75"]):
        assert run("predict", folder, photo, "--json", "--device", "cpu", *looks) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["size"] == [64, 80]
        assert ("shares" if task == "segment" else "objects") in answer


@pytest.mark.slow
def test_label_maps_and_coco_json_are_written(trained, data, tmp_path):
    task, folder = trained
    photos = sorted((data[task] / "images").rglob("*.png"))[:2]
    if task == "segment":
        assert run("predict", folder, *photos, "--out", tmp_path / "o", "--labels", tmp_path / "l", "--device", "cpu") == 0
        labels = np.asarray(Image.open(tmp_path / "l" / f"{photos[0].stem}.png"))
        assert labels.shape == (64, 80)
        assert labels.max() < len(LABEL_CLASSES)
        assert run("predict", folder, *photos, "--coco", tmp_path / "c.json") == 2
        return
    assert run("predict", folder, *photos, "--json", "--coco", tmp_path / "c.json", "--device", "cpu") == 0
    content = json.loads((tmp_path / "c.json").read_text())
    assert [image["file_name"] for image in content["images"]] == [str(photo) for photo in photos]
    assert [category["name"] for category in content["categories"]] == list(PILE_CLASSES)
    assert {entry["image_id"] for entry in content["annotations"]} <= {1, 2}
    assert run("predict", folder, *photos, "--labels", tmp_path / "l") == 2


@pytest.mark.slow
def test_the_weights_file_alone_predicts_the_same(trained, data, tmp_path):
    task, folder = trained
    photo = next((data[task] / "images").rglob("*.png"))
    file = tmp_path / "w.safetensors"
    file.write_bytes((folder / "weights" / "best.safetensors").read_bytes())
    alone, whole = (pyramidvit.load(place, device="cpu")(photo).to_json() for place in (file, folder))
    assert alone == whole


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_run_resumes_bit_for_bit(task, data, tmp_path):
    """One epoch, stopped there, and one more, against two at once."""
    common = ["train", data[task], "--task", task, "--runs", tmp_path, *QUICK, "--epochs", 2]
    assert run(*common, "--name", "straight") == 0
    assert run(*common, "--name", "stopped", "--save-every", 1) == 0
    folder = tmp_path / task / "stopped"
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    newest.unlink()
    assert run("train", "--resume", folder) == 0
    straight, resumed = (read_tensors(tmp_path / task / name / "weights" / "best.safetensors")[0] for name in ("straight", "stopped"))
    assert straight.keys() == resumed.keys()
    assert all(bool((straight[key] == resumed[key]).all()) for key in straight)


def test_data_that_can_teach_several_things_asks_for_the_task(data, capsys):
    assert run("train", data["instances"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--task detect" in said
    assert "--task instances" in said


def test_binary_masks_are_read_by_an_explicit_map(tmp_path, capsys):
    """0 and 255: without a map 255 is no label, and nothing would be learned."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for index in range(4):
        Image.new("RGB", (40, 40), (40 * index, 9, 9)).save(tmp_path / "images" / f"{index}.png")
        mask = np.zeros((40, 40), np.uint8)
        mask[index:20] = 255
        Image.fromarray(mask).save(tmp_path / "masks" / f"{index}.png")
    assert run("check", tmp_path) == 2
    assert "--mask-map 255:1" in " ".join(capsys.readouterr().out.split())
    assert run("check", tmp_path, "--mask-map", "255:1", "--class-names", "soil", "leaf") == 0
    assert "leaf" in capsys.readouterr().out
    assert run("check", tmp_path, "--mask-map", "255") == 2
    assert "255:1" in capsys.readouterr().err


@pytest.mark.parametrize("task", TASKS)
def test_check_looks_at_every_kind_of_data(task, data, capsys):
    assert run("check", data[task], "--task", task, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert set(report["counts"]) == {"train", "val"}
