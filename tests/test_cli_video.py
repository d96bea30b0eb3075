"""Whole paths of clips through the command line, on generated motion."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import pyramidvit
from pyramidvit.cli import main
from pyramidvit.data.motion import MOTION_CLASSES, motion_clips, write_motion
from pyramidvit.files import read_tensors

pytest.importorskip("av")

QUICK = [
    "--size",
    "32x32",
    "-b",
    "8",
    "--workers",
    "0",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--frames",
    "4",
    "--fps",
    "10",
    "--stride",
    "2",
]
QUICK += ["--no-segments", "--warmup-epochs", "0", "--hflip", "0"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips of each motion to train on and one held out, 0.8 seconds each."""
    folder = tmp_path_factory.mktemp("data") / "motion"
    write_motion(folder, train=16, val=8, frames=8, size=(40, 48), seed=1)
    return folder


@pytest.fixture(scope="module")
def trained(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert run("train", clips, "--runs", runs, "--name", "first", "--epochs", 2, *QUICK) == 0
    return runs / "video" / "first"


def test_a_run_of_clips_is_complete(trained: Path):
    """The task is found out from the data, the small preset names the network, and the run folder is as for pictures."""
    settings = (trained / "config.yaml").read_text()
    assert settings.startswith("task: video\n")
    assert "name: mvit_mini_8x2  # preset small" in settings
    for name in ("report.html", "README.md", "metrics.csv", "data.json", "log.txt", "plots/confusion.png"):
        assert (trained / name).stat().st_size > 0, name
    assert json.loads((trained / "data.json").read_text())["classes"] == list(MOTION_CLASSES)
    assert len(list(trained.glob("predictions/*.png"))) == 6
    report = (trained / "report.html").read_text()
    assert "Video classification" in report
    assert "Worst clips" in report


def test_check_decodes_clips(clips: Path, tmp_path: Path, capsys):
    """PB-60: a file that only sounds is found before the training."""
    assert run("check", clips, "--json") == 0
    assert json.loads(capsys.readouterr().out)["counts"]["train"] == dict.fromkeys(MOTION_CLASSES, 2)
    shutil.copytree(clips, tmp_path / "clips")
    broken = next((tmp_path / "clips" / "train" / "left").glob("*.mp4"))
    broken.write_bytes(b"nothing of a video")
    assert run("check", tmp_path / "clips") == 2
    assert broken.name in capsys.readouterr().out


@pytest.mark.slow
def test_stopped_and_resumed_is_bit_equal(clips: Path, tmp_path: Path):
    """With two views of each clip, mixing and everything random on, from the middle of an epoch, by another number of workers."""
    flags = [*QUICK, "--epochs", 2, "--repeats", 2, "--save-every", 1, "--keep-checkpoints", 20, "--runs", tmp_path]
    assert run("train", clips, *flags, "--name", "straight") == 0
    straight, stopped = tmp_path / "video" / "straight", tmp_path / "video" / "stopped"
    shutil.copytree(straight, stopped)
    for file in sorted((stopped / "checkpoints").glob("*.safetensors")):
        if int(file.stem.split("-")[1]) > 1:
            file.unlink()
    assert run("train", "--resume", stopped, "--workers", 1) == 0
    one, other = (read_tensors(sorted((path / "checkpoints").glob("*.safetensors"))[-1])[0] for path in (straight, stopped))
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert (straight / "metrics.csv").read_bytes() == (stopped / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_evaluation_has_the_views_that_are_asked_for(trained: Path, clips: Path, capsys):
    """PB-65: several views per video, one answer; the numbers of one view are those of the training log."""
    found = {}
    for flags in ((), ("--clips", 2, "--crops", 3), ("--shuffle-frames",)):
        assert run("evaluate", trained, "--json", "--workers", 0, "--device", "cpu", *flags) == 0
        found[flags] = json.loads(capsys.readouterr().out)
        assert (found[flags]["n"], found[flags]["split"]) == (8, "val")
    *_, best = csv.DictReader((trained / "metrics.csv").read_text().splitlines())  # the only epoch that was measured
    assert found[()]["loss"] == pytest.approx(float(best["val_loss"]), rel=1e-5)
    assert len({round(one["loss"], 6) for one in found.values()}) == 3
    assert run("evaluate", trained, clips / "val", "--workers", 0, "--device", "cpu") == 0
    assert "8 clips)" in said(capsys)


@pytest.mark.slow
def test_bad_clips_are_left_out_and_counted(trained: Path, clips: Path, tmp_path: Path, capsys):
    """PB-60, PB-57: the reason and the path, and no other clip in its place."""
    shutil.copytree(clips / "val", tmp_path / "val")
    bad = next((tmp_path / "val" / "up").glob("*.mp4"))
    bad.write_bytes(b"")
    assert run("evaluate", trained, tmp_path / "val", "--workers", 0, "--device", "cpu") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "empty (0 bytes)" in message
    assert bad.name in message
    assert run("evaluate", trained, tmp_path / "val", "--workers", 0, "--device", "cpu", "--on-bad-sample", "skip", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 7
    assert [one["path"] for one in result["skipped"]] == [str(bad)]


def test_predict_names_actions_and_draws_film_strips(trained: Path, clips: Path, tmp_path: Path, capsys):
    """Files, folders and a list; a file that can't be read is named and the others are done."""
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"?")
    out = tmp_path / "out"
    assert run("predict", trained, clips / "val" / "left", bad, "--out", out, "--device", "cpu") == 2
    captured = capsys.readouterr()
    assert "bad.mp4" in captured.err
    assert "left/" in captured.out
    (picture,) = out.glob("*.png")
    with Image.open(picture) as strip:
        assert strip.width >= 384
    assert run("predict", trained, clips / "val" / "left", "--json", "--top", 3, "--device", "cpu") == 0
    (line,) = capsys.readouterr().out.splitlines()
    top = json.loads(line)["top"]
    assert len(top) == 3
    assert {one["class"] for one in top} <= set(MOTION_CLASSES)


def test_a_timeline_says_what_happens_when(trained: Path, clips: Path, tmp_path: Path, capsys):
    video = next((clips / "val" / "left").glob("*.mp4"))
    assert run("predict", trained, video, "--window", 0.8, "--hop", 0.2, "--json", "--device", "cpu") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["duration"] == pytest.approx(0.8)
    assert [(one["start"], one["end"]) for one in found["windows"]] == [(0.0, 0.8)]
    assert (found["actions"][0]["start"], found["actions"][-1]["end"]) == (0.0, pytest.approx(0.8))
    assert run("predict", trained, video, "--timeline", "--out", tmp_path, "--device", "cpu") == 0
    assert (tmp_path / f"{video.stem}.png").exists()
    assert run("predict", trained, video, "--window", 0.1, "--device", "cpu") == 2
    assert "at least the 0.80 s" in " ".join(capsys.readouterr().err.split())


def test_one_line_of_python_predicts(trained: Path, tmp_path: Path):
    """A path, frames as an array, or a folder of frames: the same answer for the same frames."""
    predictor = pyramidvit.load(trained, device="cpu")
    clip = next(iter(motion_clips(1, frames=8, size=(40, 48), seed=5)))
    write_motion(tmp_path, train=8, val=8, frames=8, size=(40, 48), seed=1, suffix="")
    folder = next((tmp_path / "val" / "up").iterdir())
    assert predictor(folder).prediction.path == str(folder)
    frames = clip.frames.repeat(3, 0)  # at 30 per second, that of arrays
    result = predictor(frames)
    assert result.prediction.probabilities.sum() == pytest.approx(1)
    result.save(tmp_path / "array.png")
    with pytest.raises(pyramidvit.UserError, match=r"\(T, H, W, 3\) uint8"):
        predictor(frames[0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m", "pvt_v2_b0"], "takes pictures, and the data are clips: choose --model mvit_base_16x4"),
        (["-m", "timm/resnet18"], "takes pictures"),
        (["--reader", "torchcodec", "--short-side", "32"], "torchcodec"),
        (["--reader", "torchcodec"], "pip install 'pyramidvit[torchcodec]'"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(clips: Path, tmp_path: Path, capsys, monkeypatch, flags, message):
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    if "timm/resnet18" in flags:
        pytest.importorskip("timm")
    for dry in ([], ["--dry-run"]):
        assert run("train", clips, "--runs", tmp_path / "runs", *QUICK, *flags, *dry) == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "runs").exists()


def test_a_plan_of_clips_without_data(capsys):
    assert run("train", "--dry-run", "--task", "video", "-m", "mvit_base_16x4", "--device", "cpu", "--size", "32x32", "--frames", 4) == 0
    assert "3 channels, 4x32x32" in said(capsys)


@pytest.mark.slow
def test_the_demo_measures_with_and_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Both numbers are printed and in the report, for the clips as they are and for shuffled frames."""
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--task", "video", "--train-pictures", 64, "--epochs", 1) == 0
    text = said(capsys)
    assert "Frames as they are: top-1" in text
    assert "Frames in random order: top-1" in text
    assert "Is time used?" in next(tmp_path.glob("runs/video/*/report.html")).read_text()
