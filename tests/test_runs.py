"""The folder of a run."""

import getpass
import json
import os
import platform
from pathlib import Path

import pytest

from pyramidvit.config import RunConfig, resolve
from pyramidvit.errors import UserError
from pyramidvit.runs import RunFolder, environment


def test_names_count_up_and_never_meet_an_old_run(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, "classify", model="timm/resnet18")
    assert first.path == tmp_path / "classify" / "timm_resnet18-1"
    (tmp_path / "classify" / "timm_resnet18-7").mkdir()
    (tmp_path / "classify" / "timm_resnet18-old").mkdir()
    assert RunFolder.create(tmp_path, "classify", model="timm/resnet18").path.name == "timm_resnet18-8"
    assert first.checkpoints.is_dir()
    assert first.best_weights.parent.is_dir()


def test_a_folder_with_content_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "classify" / "mine").mkdir(parents=True)
    run = RunFolder.create(tmp_path, "classify", "mine")
    run.log("hello")
    with pytest.raises(UserError, match="--resume"):
        RunFolder.create(tmp_path, "classify", "mine")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "..", "a b", "-flag"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="can't be called"):
        RunFolder.create(tmp_path, "classify", name)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Can't make the run folder"):
        RunFolder.create(tmp_path / "file", "classify", "a")


def test_processes_agree_on_the_folder_and_one_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="--name"):
        RunFolder.create(tmp_path, "classify", model="b0")
    run = RunFolder.create(tmp_path, "classify", "shared")
    assert not run.path.exists()
    monkeypatch.setenv("RANK", "0")
    assert RunFolder.create(tmp_path, "classify", "shared") == run
    assert run.path.is_dir()


def test_opening_something_else_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run folder"):
        RunFolder.open(tmp_path / "absent")
    run = RunFolder.create(tmp_path, "classify", "a")
    with pytest.raises(UserError, match=r"no config\.yaml\.$"):
        RunFolder.open(run.path)
    run.write_config(RunConfig(), {})
    with pytest.raises(UserError, match=r"Did you mean .*classify/a"):
        RunFolder.open(tmp_path)
    assert RunFolder.open(run.path) == run


def test_settings_come_back_with_their_sources_beside_them(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    given = RunConfig.model_validate(
        {"optim": {"lr": 0.5}, "augment": {"size": (64, 96)}, "data": {"mean": (0.1,), "in_chans": 1}, "model": {"weights": "a  # b"}}
    )
    config, sources = resolve(given)
    run.write_config(config, sources)
    assert run.read_config() == config
    assert run.read_sources() == sources
    assert "lr: 0.5  # command line" in run.config_file.read_text()


def test_metrics_are_a_function_of_the_rows(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    assert run.read_metrics() == []
    rows = [{"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2, "loss": float("nan"), "val_top1": 1 / 3}]
    run.write_metrics(rows)
    assert (run.path / "metrics.csv").read_text() == "epoch,loss,val_top1\n1,0.30000000000000004,\n2,nan,0.3333333333333333\n"
    assert run.read_metrics() == [rows[0], {"epoch": 2, "loss": None, "val_top1": 1 / 3}]
    run.write_metrics(rows[:1])
    assert (run.path / "metrics.csv").read_text() == "epoch,loss\n1,0.30000000000000004\n"


def test_the_record_of_the_data_comes_back_or_is_missed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    with pytest.raises(UserError, match="data's record"):
        run.read_data()
    run.write_data({"fingerprint": "ü", "classes": ["a", "b"]})
    assert run.read_data() == {"fingerprint": "ü", "classes": ["a", "b"]}
    run.data_file.write_text("[1]")
    with pytest.raises(UserError, match="object"):
        run.read_data()


def test_a_file_in_place_of_a_folder_is_named_when_it_is_needed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    run.write_config(RunConfig(), {})
    run.plots.rmdir()
    run.plots.write_text("")
    assert RunFolder.open(run.path) == run
    with pytest.raises(UserError, match=r"plots: File exists"):
        run.make_folders()


def test_opening_a_run_writes_nothing(tmp_path: Path) -> None:
    """A run may lie on a read-only disk."""
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").write_config(RunConfig(), {})
    RunFolder.open(tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["config.yaml"]


@pytest.mark.parametrize("line", ["{", "7", '{"epoch": 2}}', "\udcff"])
def test_a_line_of_metrics_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    run.metrics_file.write_bytes(b'{"epoch": 1}\n' + os.fsencode(line) + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: expected a JSON object"):
        run.read_metrics()


def test_names_that_are_no_utf8_come_back_from_the_record_and_go_into_the_log(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    name = os.fsdecode(b"b\xff.png")
    run.write_data({"splits": {"train": [[name, 0]]}})
    assert run.read_data() == {"splits": {"train": [[name, 0]]}}
    run.log(f"Left out {name}")
    assert (run.path / "log.txt").read_text(encoding="utf-8").endswith("Left out b\\udcff.png\n")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    (run.path / "log.txt").mkdir()
    with pytest.raises(UserError, match=r"Can't write .*log\.txt"):
        run.log("hello")


def test_the_environment_holds_versions_and_no_names(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    run.write_env()
    text = (run.path / "env.json").read_text()
    assert json.loads(text) == environment()
    assert {"python", "torch", "torchvision", "pyramidvit", "cpu", "threads"} <= environment().keys()
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert f'"{getpass.getuser()}"' not in text


def test_the_model_card_says_what_the_numbers_are(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "classify", "a")
    result = {"n": 40, "top1": 0.625, "top1_interval": {"level": 0.95, "low": 0.5, "high": 0.75}, "chance": 0.5, "classes": ["x", "y"]}
    run.write_card(RunConfig(), ["x", "y"], {"train": 160, "val": 40}, result)
    card = (run.path / "README.md").read_text()
    for line in (
        "| top1 | 0.625 |",
        "| top1, 95% bootstrap interval | 0.5 to 0.75 |",
        "| chance | 0.5 |",
        "- train: 160 samples",
        "`x`, `y`",
    ):
        assert line in card, card
    assert f"pyramidvit predict {run.path} photo.jpg" in card
