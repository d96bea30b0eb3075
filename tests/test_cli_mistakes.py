"""A wrong value on the command line: one clear message that names the flag, exit code 2, nothing written."""

import pytest
from pydantic import BaseModel

from pyramidvit import cli
from pyramidvit.cli import main
from pyramidvit.errors import UserError

POSITIVE = "Must be >= 1."


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    code = left.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("demo --epochs -1", f'"-1" for --epochs. {POSITIVE}'),
        ("demo --epochs 0", f'"0" for --epochs. {POSITIVE}'),
        ("demo --train-pictures 0", '"0" for --train-pictures. Must be >= 64.'),
        ("demo --train-pictures -5", '"-5" for --train-pictures. Must be >= 64.'),
        ("demo --seed -1", '"-1" for --seed. Must be >= 0.'),
        ("check x --seed -1", '"-1" for --seed. Must be >= 0.'),
        ("check x --workers -1", "--workers: input should be greater than or equal to 0"),
        ("predict x y -b 0", f'"0" for -b. {POSITIVE}'),
        ("predict x y --batch-size -1", f'"-1" for --batch-size. {POSITIVE}'),
        ("predict x y -k 0", f'"0" for -k. {POSITIVE}'),
        ("predict x y --top -1", f'"-1" for --top. {POSITIVE}'),
        ("evaluate x --workers -1", '"-1" for --workers. Must be >= 0.'),
        ("evaluate x -b 0", f'"0" for -b. {POSITIVE}'),
        ("info pvt_v2_b0 --in-chans 0", f'"0" for --in-chans. {POSITIVE}'),
        ("info pvt_v2_b0 --num-classes 0", f'"0" for --num-classes. {POSITIVE}'),
        ("info pvt_v2_b0 --size 16", "--size: input should be greater than or equal to 32"),
        ("info pvt_v2_b0 --size big", "--size: expected height x width, such as 224x224 or 512x640, got 'big'"),
        ("train x --betas 0.9 1", "--betas: input should be less than 1, got '1'"),
        ("train x --lr inf", "--lr: input should be a finite number"),
        ("train x --mixup nan", "--mixup: input should be a finite number"),
        ("train x --mean 0.5 0.5 nan", "--mean: input should be a finite number"),
        ("train x --mean 0.5 red 0.5", "--mean: input should be a valid number"),
        ("train x --mean", "--mean requires at least 1 element"),
        ("train x --std 1 1 0", "--std: input should be greater than 0"),
        ("train x --crop-ratio 0 1", "--crop-ratio: input should be greater than 0"),
        ("train x --crop-ratio 2 1", "--crop-ratio: the first value must not be above the second"),
        ("train x --crop-scale 0.5 0.1", "--crop-scale: the first value must not be above the second"),
        ("train x --crop-scale 0 0", "--crop-scale: input should be greater than 0"),
        ("train x --value-range 1 0", "--value-range: the first value, which becomes 0, must be below the second"),
        ("train x --value-range 0 inf", "--value-range: input should be a finite number"),
    ],
)
def test_impossible_values_name_their_flag(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*line.split()) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("means", [["--mean", "0.5", "0.4", "-0.3"], ["--mean", "0.5", "--mean", "0.4", "--mean", "-0.3"]])
def test_mean_and_std_take_one_value_per_channel(means, monkeypatch):
    """As the help shows it: --mean FLOAT..."""
    seen = []

    def resolve(given, _):
        seen.append((given.data.mean, given.data.std))
        raise UserError("seen enough")

    monkeypatch.setattr("pyramidvit.verbs.train.resolve", resolve)
    assert run("train", "x", *means, "--std", "1", "2", "3") == 2
    assert seen == [((0.5, 0.4, -0.3), (1.0, 2.0, 3.0))]


def test_every_setting_of_several_values_takes_them_behind_one_flag(monkeypatch):
    """As `check` proposes: --anchor-ratios 0.6 1 1.6."""
    seen = []

    def resolve(given, _):
        seen.append((given.head.strides, given.head.anchor_ratios, given.optim.milestones))
        raise UserError("seen enough")

    monkeypatch.setattr("pyramidvit.verbs.train.resolve", resolve)
    assert run("train", "x", "--strides", "8", "16", "32", "--anchor-ratios", "0.6", "1", "1.6", "--milestones", "0.5", "0.9") == 2
    assert seen == [((8, 16, 32), (0.6, 1.0, 1.6), (0.5, 0.9))]


@pytest.mark.parametrize("content", ["model: pvt_v2_b1", "optim: 3", "optim: [0.1]"])
def test_a_file_with_a_value_in_place_of_a_section(content, capsys, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(content)
    assert run("train", "x", "--config", str(file), "--lr", "0.1", "--drop-path-rate", "0.1") == 2
    err = capsys.readouterr().err
    assert f"Settings from {file} are wrong" in err.replace("\n", "")
    assert f"{content.partition(':')[0]}: expected settings below it" in err


def test_an_empty_section_leaves_room_for_flags(capsys, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("optim:\nmodel:\n")
    assert run("train", "nowhere", "--config", str(file), "--lr", "0.1", "--drop-path-rate", "0.1") == 2
    assert "There is no folder or CSV file nowhere" in capsys.readouterr().err


def test_what_does_not_come_from_the_command_line_is_not_blamed_on_a_flag(monkeypatch):
    """A fault of ours stays one: it must not look like a wrong flag."""

    class Stored(BaseModel):
        lr: float

    monkeypatch.setattr(cli, "app", lambda *_, **__: Stored.model_validate({"lr": "broken"}))
    with pytest.raises(ValueError, match="1 validation error for Stored"):
        main(["models"])
