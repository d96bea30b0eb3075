"""Detection and segmentation through the command line: several looks that find something, mistakes that are told at once, and stops."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit import weights
from pyramidvit.cli import main
from pyramidvit.config import RunConfig
from pyramidvit.data.dense_scenes import write_label_scenes, write_object_scenes
from pyramidvit.data.scenes import PILE_CLASSES
from pyramidvit.files import read_tensors
from pyramidvit.tasks.detect import DetectTask
from pyramidvit.tasks.segment import SegmentTask

SIDE = 64
SMALL_HEAD: dict[str, Any] = {"preset": "small", "width": 16}
VIEW: dict[str, Any] = {"resize": "fixed", "input_size": (SIDE, SIDE)}
QUICK = ["--batch-size", "4", "--workers", "0", "--threads", "1", "--warmup-epochs", "0", "--device", "cpu", "--eval-every", "1"]
QUICK += ["--resize", "fixed", "--input-size", "64x64", "--width", "16", "--drop-path-rate", "0.1"]


def run(*arguments: object) -> int:
    """The exit code of `pyramidvit arguments`."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[tuple[str, float, list[float]]]:
    """Class, score and box (left, top, width, height) of what `predict` finds, best first."""
    capsys.readouterr()
    assert run("predict", *arguments, "--json", "--device", "cpu") == 0
    return [(one["class"], one["score"], one["bbox"]) for one in json.loads(capsys.readouterr().out)["objects"]]


def among(one: tuple[str, float, list[float]], others: list[tuple[str, float, list[float]]]) -> bool:
    """Whether it is there but for rounding."""
    return any(
        one[0] == name and one[1] == pytest.approx(score, abs=1e-4) and one[2] == pytest.approx(box, abs=0.02)
        for name, score, box in others
    )


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    """Weights that find things of all sorts anywhere: random, with a wide spread of scores."""
    head = SMALL_HEAD | {"score_threshold": 0.01, "max_per_image": 30}
    config = RunConfig.model_validate({"task": "detect", "head": head, "dense": VIEW})
    torch.manual_seed(0)
    task = DetectTask(config, tuple(PILE_CLASSES))
    model = task.model()
    with torch.no_grad():
        model.get_parameter("classes.weight").normal_(std=0.2)
    path = tmp_path_factory.mktemp("weights") / "detector.safetensors"
    weights.save(path, model.state_dict(), task.weights_meta({}))
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> dict[str, Path]:
    """A picture of the network's size, its mirror image, and a wide one, with smooth colours everywhere."""
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 255, (8, 20, 3), np.uint8)
    wide = np.asarray(Image.fromarray(noise).resize((160, SIDE), Image.Resampling.BICUBIC))
    arrays = {"plain": wide[:, :SIDE], "mirrored": wide[:, SIDE - 1 :: -1], "wide": wide}
    for name, array in arrays.items():
        Image.fromarray(np.ascontiguousarray(array)).save(folder / f"{name}.png")
    return {name: folder / f"{name}.png" for name in arrays}


def test_one_look_however_it_is_asked_for_finds_the_same(detector, photos, capsys):
    plain = found(capsys, detector, photos["plain"])
    assert len(plain) == 30
    assert plain[0][1] > 1.5 * plain[-1][1]
    for looks in (["--scales", "1"], ["--tile", "128"]):
        assert found(capsys, detector, photos["plain"], *looks) == plain


def test_with_flips_a_mirrored_picture_gives_mirrored_objects(detector, photos, capsys):
    """The two looks are the same two pictures, in the other order."""
    one = found(capsys, detector, photos["plain"], "--flip")
    other = found(capsys, detector, photos["mirrored"], "--flip")
    assert len(one) == len(other) > 0
    assert one != found(capsys, detector, photos["plain"])
    for (name, score, (left, *rest)), (name2, score2, (left2, *rest2)) in zip(one, other, strict=True):
        assert (name, score) == (name2, pytest.approx(score2, abs=1e-4))
        assert left == pytest.approx(SIDE - left2 - rest2[1], abs=0.02)
        assert rest == pytest.approx(rest2, abs=0.02)


def test_several_sizes_keep_the_best_of_what_each_finds(detector, photos, capsys):
    looks = (["1", "0.75"], ["0.75"], ["1"])  # one in a batch, so that none is padded to the size of another
    both, small, large = (found(capsys, detector, photos["plain"], "--batch-size", 1, "--scales", *look) for look in looks)
    assert both[0][1] == pytest.approx(max(small[0][1], large[0][1]))
    assert all(among(one, small) or among(one, large) for one in both)
    assert not all(among(one, large) for one in both)
    assert not all(among(one, small) for one in both)


def test_tiles_find_what_lies_anywhere_in_a_wide_picture(detector, photos, capsys):
    objects = found(capsys, detector, photos["wide"], "--tile", SIDE)
    centres = [left + width / 2 for _, _, (left, _, width, _) in objects]
    assert min(centres) < SIDE < 160 - SIDE < max(centres)
    assert all(
        0 <= left <= left + width <= 160.01 and 0 <= top <= top + height <= SIDE + 0.01 for _, _, (left, top, width, height) in objects
    )
    first = found(capsys, detector, photos["plain"])  # the first tile
    assert any(among(one, objects) for one in first)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("photo.png/a.json", "Can't make the folder"),
        ("a.txt", "ends in '.txt'"),
        (".", "is a folder"),
        ("/proc/a.json", "Can't write to the folder"),
    ],
)
def test_where_the_json_goes_is_checked_before_the_first_picture(detector, photos, tmp_path, target, message, capsys):
    (tmp_path / "photo.png").write_bytes(photos["plain"].read_bytes())
    assert run("predict", detector, photos["plain"], "--json", "--coco", tmp_path / target, "--device", "cpu") == 2
    out, err = capsys.readouterr()
    assert out == ""  # no picture was looked at
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        ("segment", ["--anchor-scale", "3"], "--anchor-scale (head.anchor_scale)"),
        ("segment", ["--channels", "32", "--mask-depth", "2"], "Its head has --head-preset, --width, --channels, --strides."),
        ("detect", ["--channels", "32"], "--channels (head.channels): leave it out"),
        ("detect", ["--box-hidden", "32"], "--depth, --norm-groups, --strides, --anchor-scale, --anchor-octaves"),
        ("instances", ["--depth", "2"], "--box-hidden, --mask-depth, --samples, --proposals"),
        ("detect", ["--class-names", "a", "b"], "--class-names (data.class_names)"),
        ("segment", ["--on-bad-box", "fix"], "--on-bad-box (data.on_bad_box)"),
        ("classify", ["--width", "32"], "It has no such head."),
        ("classify", ["--short", "64"], "--short (dense.short)"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "train"])
def test_settings_of_another_task_are_refused(verb, task, flags, message, tmp_path, capsys):
    """They were once ignored, and people believed that they had changed something."""
    runs = ["--runs", tmp_path / "runs"] if verb == "train" else []
    assert run(verb, tmp_path, "--task", task, *flags, *runs) == 2
    assert message in said(capsys)
    assert not (tmp_path / "runs").exists()


def alone(root: Path, *, val: bool = False) -> Path:
    """COCO data of one picture with an object, and with ``val`` of three without."""
    for split, count in {"train": 1, "val": 3 * val}.items():
        images = [{"id": i, "file_name": f"{split}{i}.png", "height": SIDE, "width": SIDE} for i in range(count)]
        for entry in images:
            (root / "images").mkdir(parents=True, exist_ok=True)
            colour = (90, 40 * int(entry["id"]), 30 if split == "train" else 200)
            Image.new("RGB", (SIDE, SIDE), colour).save(root / "images" / str(entry["file_name"]))
        objects = [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [9, 9, 30, 30]}] if split == "train" else []
        if count:
            content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]}
            (root / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def test_check_warns_of_what_cannot_be_measured(tmp_path, capsys):
    assert run("check", alone(tmp_path / "one"), "--task", "detect") == 0
    assert "warning: No validation pictures, so nothing will be measured" in said(capsys)
    assert run("check", alone(tmp_path / "more", val=True), "--task", "detect") == 0
    assert "warning: no single object in the 3 pictures of val" in said(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("val", [False, True])
def test_training_goes_on_where_nothing_can_be_measured(val, tmp_path, capsys):
    """The same verdict as that of `check`: a single picture, or no object to find in val; the last weights are kept."""
    data = alone(tmp_path / "data", val=val)
    assert run("train", data, "--task", "detect", "--runs", tmp_path, "--name", "a", "--epochs", 2, "--ema-decay", 0, *QUICK) == 0
    words = said(capsys)
    assert ("box AP does not exist" if val else "warning: No validation pictures") in words
    folder = tmp_path / "detect" / "a"
    last = sorted((folder / "checkpoints").iterdir())[-1]
    kept, trained = read_tensors(folder / "weights" / "best.safetensors")[0], read_tensors(last)[0]
    assert all(torch.equal(value, trained[f"model/{name}"]) for name, value in kept.items())
    if val:
        assert run("evaluate", folder, "--json", "--device", "cpu", "--workers", 0) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["box_ap"] is answer["box"]["AP"] is None
        assert "none of the 3 pictures has a single object" in answer["reason"]


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    """Random weights for the classes of the scenes, in their order."""
    config = RunConfig.model_validate({"task": "segment", "head": SMALL_HEAD, "dense": VIEW})
    folder = tmp_path_factory.mktemp("segmenter")
    write_label_scenes(folder / "data", train=1, val=2, size=(SIDE, SIDE), seed=1)
    task = SegmentTask(config, SegmentTask.read_data(folder / "data", config).classes)
    torch.manual_seed(0)
    weights.save(folder / "weights.safetensors", task.model().state_dict(), task.weights_meta({}))
    return folder


def test_a_segmenter_is_measured_by_names_whatever_the_numbers_of_the_data(segmenter, capsys):
    """The order of the names in the data was once taken for that of the network."""
    data = segmenter / "data"
    (file,) = [one for one in data.iterdir() if one.suffix in (".txt", ".json") and "class" in one.stem]
    before = file.read_text()
    evaluate = ["evaluate", segmenter / "weights.safetensors", data, "--device", "cpu", "--workers", 0, "--json"]
    assert run(*evaluate) == 0
    names = (first := json.loads(capsys.readouterr().out))["classes"]
    file.write_text(before.replace(names[1], "?").replace(names[2], names[1]).replace("?", names[2]))
    for path in (data / "masks").rglob("*.png"):
        exchanged = np.array([0, 2, 1, *range(3, 256)], np.uint8)
        Image.fromarray(exchanged[np.asarray(Image.open(path))]).save(path)
    assert run(*evaluate) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["per_class"] == first["per_class"]
    file.write_text(before.replace(names[1], "gearwheel"))
    assert run(*evaluate) == 2
    assert "classes that the network does not have: gearwheel" in said(capsys)


@pytest.mark.slow
def test_a_detector_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    """SIGKILL in the middle of an epoch, then --resume, against a run that nobody disturbed."""
    write_object_scenes(tmp_path / "data", train=16, val=2, size=(SIDE, SIDE), seed=1)
    flags = ["--task", "detect", "--runs", str(tmp_path), "--epochs", "3", "--save-every", "1", "--ema-decay", "0.9", *QUICK]
    assert run("train", tmp_path / "data", "--name", "straight", *flags) == 0
    command = [sys.executable, "-m", "pyramidvit", "train", str(tmp_path / "data"), "--name", "killed", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    straight, killed = tmp_path / "detect" / "straight", tmp_path / "detect" / "killed"
    deadline = time.monotonic() + 120
    while not list((killed / "checkpoints").glob("step-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == -signal.SIGKILL, output
    last = sorted(path.name for path in (straight / "checkpoints").iterdir())[-1]
    assert last not in {path.name for path in (killed / "checkpoints").iterdir()}
    assert run("train", "--resume", killed) == 0
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (straight / name).read_bytes() == (killed / name).read_bytes(), name
    for name in ("weights/best.safetensors", f"checkpoints/{last}"):
        one, other = read_tensors(straight / name)[0], read_tensors(killed / name)[0]
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == [], name
