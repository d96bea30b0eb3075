"""Whole paths through the command line, on small generated pictures."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import pyramidvit
from pyramidvit.cli import main
from pyramidvit.data.image import read_image
from pyramidvit.data.scenes import SCENE_CLASSES, write_scenes
from pyramidvit.files import read_tensors

QUICK = ["--size", "32x32", "--batch-size", "8", "--workers", "0", "--threads", "1", "--warmup-epochs", "0", "--device", "cpu"]
PLAIN = ["--mixup", "0", "--cutmix", "0", "--rand-ops", "0", "--erasing", "0", "--crop-scale", "1", "1", "--hflip", "0"]
PLAIN += ["--smoothing", "0", "--drop-path-rate", "0", "--weight-decay", "0"]


def run(*arguments: object) -> int:
    """The exit code of `pyramidvit arguments`."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    code = left.value.code
    assert isinstance(code, int)
    return code


def metrics(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Scenes in train/ and val/: 8 classes with two pictures to train on and one held out."""
    folder = tmp_path_factory.mktemp("data") / "scenes"
    write_scenes(folder, train=16, val=8, size=(40, 48), seed=1)
    return folder


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory) -> Path:
    """A finished run of two epochs."""
    runs = tmp_path_factory.mktemp("runs")
    assert run("train", pictures, "--runs", runs, "--name", "first", "--epochs", 2, *QUICK) == 0
    return runs / "classify" / "first"


def test_a_run_folder_is_complete(trained):
    """Everything design promises is there, and says what was given and what was default."""
    for name in ("config.yaml", "env.json", "data.json", "metrics.csv", "metrics.jsonl", "log.txt", "report.html", "README.md"):
        assert (trained / name).stat().st_size > 0, name
    assert "epochs: 2  # command line" in (trained / "config.yaml").read_text()
    assert "weight_decay: 0.05  # default" in (trained / "config.yaml").read_text()
    assert len(metrics(trained)) == 2
    assert {p.name for p in (trained / "plots").iterdir()} == {"confusion.png", "curves.png"}
    assert json.loads((trained / "data.json").read_text())["classes"] == list(SCENE_CLASSES)
    assert len(list((trained / "checkpoints").glob("*.safetensors"))) == 2


@pytest.mark.slow
def test_evaluate_uses_what_was_held_out_and_the_trained_names(trained, pictures, capsys):
    """PB-93; the numbers are those of the training log's best epoch."""
    assert run("evaluate", trained, "--json", "--device", "cpu", "--workers", 0) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["n"], result["split"]) == (8, "val")
    assert result["classes"] == list(SCENE_CLASSES)
    best = max(float(row["val_top1"]) for row in metrics(trained))
    assert result["top1"] == pytest.approx(best)
    assert run("evaluate", trained, pictures, "--split", "train", "--json", "--workers", 0) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 16
    assert run("evaluate", trained, pictures / "val", "--workers", 0) == 0
    assert "8 pictures, all of" in capsys.readouterr().out.replace("\n", " ")
    assert (trained / "evaluations" / "val-all" / "report.html").exists()


def test_predict_writes_pictures_and_json_and_goes_on_past_a_bad_file(trained, pictures, tmp_path, capsys):
    photo = next((pictures / "val").rglob("*.png"))
    assert run("predict", trained, photo, "--out", tmp_path / "out", "--device", "cpu") == 0
    with Image.open(tmp_path / "out" / f"{photo.stem}.png") as picture:
        assert picture.width >= 256
    assert str(photo) in capsys.readouterr().out.replace("\n", "")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    code = run("predict", trained, photo, tmp_path / "broken.jpg", str(pictures / "val" / "disc" / "*.png"), "--json", "-k", 2)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert [len(line.get("top", [])) for line in lines] == [2, 0, 2]
    assert "broken.jpg" in lines[1]["path"]
    assert "broken.jpg" in err


def test_the_weights_file_alone_is_enough(trained, pictures, tmp_path):
    file = shutil.copy(trained / "weights" / "best.safetensors", tmp_path / "w.safetensors")
    photo = next((pictures / "val").rglob("*.png"))
    alone, whole = pyramidvit.load(file, device="cpu"), pyramidvit.load(trained, device="cpu")
    assert torch.equal(alone(photo).prediction.probabilities, whole(photo).prediction.probabilities)
    array = read_image(photo)
    assert torch.equal(alone(array).prediction.probabilities, alone(photo).prediction.probabilities)
    single = [alone(path).prediction.probabilities for path in (pictures / "val").rglob("*.png")]
    together = [p.prediction.probabilities for p in alone(list((pictures / "val").rglob("*.png")))]
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_starts_from_weights(trained, pictures, tmp_path, capsys):
    """New classes get a new last layer; everything else comes from the file."""
    two = tmp_path / "two"
    for split in ("train", "val"):
        for name in ("disc", "star"):
            shutil.copytree(pictures / split / name, two / split / name)
    file = trained / "weights" / "best.safetensors"
    assert run("train", two, "--runs", tmp_path, "--name", "n", "--epochs", 1, "--weights", file, "--lr", "1e-12", *QUICK) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left at their random start" in said
    assert "head.bias, head.weight" in said
    before, after = read_tensors(file)[0], read_tensors(tmp_path / "classify" / "n" / "weights" / "best.safetensors")[0]
    assert before.keys() == after.keys()
    torch.testing.assert_close(after["backbone.stages.0.patches.weight"], before["backbone.stages.0.patches.weight"])
    assert after["head.weight"].shape == (2, before["head.weight"].shape[1])


@pytest.mark.slow
def test_four_pictures_can_be_learned_by_heart(pictures, tmp_path, capsys):
    for split in ("train", "val"):
        for name in list(SCENE_CLASSES)[:4]:
            (tmp_path / "four" / split / name).mkdir(parents=True)
            shutil.copy(sorted((pictures / "train" / name).iterdir())[0], tmp_path / "four" / split / name / "a.png")
    flags = [*QUICK, *PLAIN, "--lr", "1e-3", "--reference-batch", 8]
    assert run("train", tmp_path / "four", "--runs", tmp_path, "--name", "heart", "--epochs", 25, *flags) == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "classify" / "heart", "--json", "--workers", 0) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == 1.0


@pytest.mark.slow
def test_stopped_and_resumed_is_as_if_never_stopped(pictures, tmp_path):
    """PB-66: SIGTERM in the middle, then --resume; weights and logs have the same bytes as those of an undisturbed run."""
    flags = [*QUICK, "--epochs", "3", "--accumulate", "2", "--ema-decay", "0.9", "--save-every", "1"]
    assert run("train", pictures, "--runs", tmp_path, "--name", "straight", *flags) == 0
    command = [sys.executable, "-m", "pyramidvit", "train", str(pictures), "--runs", str(tmp_path), "--name", "stopped", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checkpoints = tmp_path / "classify" / "stopped" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("step-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 143, output
    assert run("train", "--resume", tmp_path / "classify" / "stopped", "--workers", 1) == 0
    straight, stopped = tmp_path / "classify" / "straight", tmp_path / "classify" / "stopped"
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (straight / name).read_bytes() == (stopped / name).read_bytes(), name
    last = sorted(path.name for path in (straight / "checkpoints").iterdir())[-1]
    for name in ("weights/best.safetensors", f"checkpoints/{last}"):
        one, other = read_tensors(straight / name)[0], read_tensors(stopped / name)[0]
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == [], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Give the folder to train on"),
        (["train", "nowhere"], "There is no folder or CSV file nowhere"),
        (["train", "nowhere", "--lr", "-1"], "--lr: input should be greater than 0, got '-1'"),
        (["train", "nowhere", "--learning", "1"], "Unknown option"),
        (["train", "--resume", "nowhere"], "no run folder nowhere"),
        (["info", "pvt_v2_b9"], "did you mean pvt_v2_b5"),
        (["info", "pvt_v2_b0", "--size", "big"], "height x width"),
        (["info", "mvit_base_16x4", "--size", "16"], "greater than or equal to 32"),
        (["models", "zzz*"], "No network matches"),
        (["predict", "nowhere", "x.jpg"], "Expected a run folder"),
        (["evaluate", "nowhere"], "Expected a run folder"),
        (["tarin"], 'Did you mean "train"'),
    ],
)
def test_mistakes_get_one_clear_message(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_clip_networks_do_not_learn_from_pictures(pictures, tmp_path, capsys):
    assert run("train", pictures, "--runs", tmp_path, "--model", "mvit_small_16x4", *QUICK) == 2
    assert "takes clips" in capsys.readouterr().err


def test_evaluate_measures_what_it_is_given(trained, pictures, tmp_path, capsys):
    """A table beside the run's data is other data; the run's data moved elsewhere is still the run's, and keeps what was held out."""
    moved = shutil.copytree(pictures, tmp_path / "moved")
    table = moved / "wrong.csv"
    names = sorted(path.relative_to(moved) for path in (moved / "val").rglob("*.png"))
    table.write_text("".join(f"{name},{'star' if name.parent.name == 'disc' else 'disc'}\n" for name in names))
    assert run("evaluate", trained, table, "--json", "--workers", 0) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 8
    assert {row["name"]: row["n"] for row in result["per_class"] if row["n"]} == {"disc": 7, "star": 1}


@pytest.mark.slow
def test_own_split_is_kept_wherever_the_data_is(pictures, tmp_path, capsys):
    photos = shutil.copytree(pictures / "train", tmp_path / "photos")
    assert run("train", photos, "--runs", tmp_path, "--name", "own", "--epochs", 1, "--val-share", "0.5", *QUICK) == 0
    moved = photos.rename(tmp_path / "moved")
    capsys.readouterr()
    assert run("evaluate", tmp_path / "classify" / "own", moved, "--json", "--workers", 0) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8
    assert run("train", "--resume", tmp_path / "classify" / "own") == 2
    assert run("train", moved, "--resume", tmp_path / "classify" / "own", "--workers", 0) == 0


@pytest.mark.slow
def test_pictures_that_were_trained_on_are_pointed_out(trained, capsys):
    assert run("evaluate", trained, "--split", "train", "--workers", 0) == 0
    assert "16 of these pictures were trained on" in capsys.readouterr().out.replace("\n", " ")


def test_predict_overwrites_nothing(trained, pictures, tmp_path):
    """Neither a picture it reads, nor what it wrote before, nor one of its own numbered names."""
    source = next((pictures / "val").rglob("*.png"))
    for name in ("x/a.png", "y/a.png", "z/a-2.png"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(source, tmp_path / name)
    before = (tmp_path / "x" / "a.png").read_bytes()
    sources = [tmp_path / name for name in ("x/a.png", "y/a.png", "z/a-2.png")]
    assert run("predict", trained, *sources, "--out", tmp_path / "x") == 0
    assert (tmp_path / "x" / "a.png").read_bytes() == before
    assert len(list((tmp_path / "x").iterdir())) == 4


def test_what_cannot_work_leaves_no_run_behind(pictures, tmp_path, capsys):
    for flags in (["-m", "pvt_v2_b9"], ["--weights", "no.safetensors"], ["--precision", "fp16"], ["--mean", "0.5"]):
        assert run("train", pictures, "--runs", tmp_path / "runs", "--name", "x", *flags, *QUICK) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert run("train", "--resume", tmp_path, "--name", "x") == 2
    assert "leave --config, --name and --runs out" in capsys.readouterr().err


def test_a_missing_file_is_one_of_many(trained, pictures, capsys):
    source = next((pictures / "val").rglob("*.png"))
    assert run("predict", trained, source, "missing.jpg", source, "--json") == 2
    assert ["error" in json.loads(line) for line in capsys.readouterr().out.splitlines()] == [False, True, False]


def test_the_predictor_takes_paths_and_arrays_only(trained, pictures, tmp_path):
    predictor = pyramidvit.load(trained, device="cpu")
    for wrong in (torch.zeros(3, 8, 8), b"ab", 3):
        with pytest.raises(pyramidvit.UserError, match=r"path or an array"):
            predictor([wrong])  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(pyramidvit.UserError, match=r"expected \(H, W, 3\)"):
        predictor(read_image(next((pictures / "val").rglob("*.png")))[..., 0])
    with pytest.raises(pyramidvit.UserError, match=r"end the name in .png"):
        predictor(next((pictures / "val").rglob("*.png"))).save(tmp_path / "a.jpg")
    with pytest.raises(pyramidvit.UserError, match="at least 1"):
        pyramidvit.load(trained, batch_size=0)


def test_a_run_is_never_overwritten(trained, pictures, capsys):
    before = (trained / "metrics.csv").read_bytes()
    assert run("train", pictures, "--runs", trained.parents[1], "--name", "first", "--epochs", 1, *QUICK) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (trained / "metrics.csv").read_bytes() == before


def test_check_ends_with_2_when_training_would_be_wrong(pictures, tmp_path, capsys):
    assert run("check", pictures) == 0
    bad = shutil.copytree(pictures, tmp_path / "bad")
    (bad / "train" / "disc" / "cut.png").write_bytes(next((pictures / "train").rglob("*.png")).read_bytes()[:200])
    capsys.readouterr()
    assert run("check", bad, "--json") == 2
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert any("train/disc/cut.png" in path for finding in report["findings"] for path in finding["paths"])


@pytest.mark.slow
def test_a_bad_file_stops_training_with_its_name_or_is_left_out_and_counted(pictures, tmp_path, capsys):
    """PB-35: never a substitute sample."""
    bad = shutil.copytree(pictures, tmp_path / "bad")
    (bad / "train" / "disc" / "cut.png").write_bytes(next((pictures / "train").rglob("*.png")).read_bytes()[:200])
    assert run("train", bad, "--runs", tmp_path, "--name", "stop", "--epochs", 1, *QUICK) == 2
    assert "cut.png" in capsys.readouterr().err.replace("\n", "")
    flags = ["--on-bad-sample", "skip", "--max-bad-share", "0.2"]
    assert run("train", bad, "--runs", tmp_path, "--name", "skip", "--epochs", 1, *flags, *QUICK) == 0
    folder = tmp_path / "classify" / "skip"
    assert "cut.png" in (folder / "log.txt").read_text()
    assert "1 times one of the pictures was left out in training" in (folder / "report.html").read_text().replace("\n", " ")


@pytest.mark.slow
def test_settings_from_a_file_and_flags_over_it(pictures, tmp_path, capsys):
    settings = tmp_path / "small.yaml"
    settings.write_text("augment: {size: 32x48}\nloop: {epochs: 1, batch_size: 8, threads: 1}\ndata: {workers: 0}\n")
    assert run("train", pictures, "--config", settings, "--runs", tmp_path, "--name", "c", "--batch-size", 4) == 0
    text = (tmp_path / "classify" / "c" / "config.yaml").read_text()
    assert "epochs: 1  # small.yaml" in text
    assert "batch_size: 4  # command line" in text
    settings.write_text("augment: {sise: 32}\nloop: {epochs: 0}\n")
    assert run("train", pictures, "--config", settings) == 2
    err = capsys.readouterr().err
    assert "augment.sise" in err
    assert "loop.epochs" in err
