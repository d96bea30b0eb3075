"""What a person sees of a training."""

import builtins
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyramidvit import display
from pyramidvit.display import Display, duration
from pyramidvit.errors import UserError
from pyramidvit.runs import RunFolder


def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, terminal: bool, every: float) -> tuple[str, int]:
    """Ten steps; what was printed, and how often the loss was read."""
    monkeypatch.setattr(display, "BAR_SECONDS", every)
    monkeypatch.setattr(display, "PLAIN_SECONDS", every)
    text, reads = io.StringIO(), 0

    def loss() -> float:
        nonlocal reads
        reads += 1
        return 1.25

    console = Console(file=text, force_terminal=terminal, width=200)
    with Display(console, RunFolder(tmp_path), total_steps=10, step=0, tensorboard=False) as view:
        view.say("[hello] 3 of 4")
        for step in range(1, 11):
            view.step(step, step / 5, 8, 1e-3, loss)
        view.epoch({"epoch": 2, "step": 10, "lr": 1e-3, "train_loss": 1.25, "val_top1": 0.5}, epochs=2, is_best=True)
    return text.getvalue(), reads


def test_a_terminal_gets_a_bar_with_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = show(tmp_path, monkeypatch, terminal=True, every=0.0)
    assert "epoch 2.00  loss 1.2500  lr 1.00e-03" in text
    assert "samples/s" in text
    assert "10/10" in text
    assert "left" in text
    assert "epoch 2/2" in text


def test_a_file_gets_plain_lines_and_so_does_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, reads = show(tmp_path, monkeypatch, terminal=False, every=0.0)
    assert "\x1b" not in text
    assert "[hello] 3 of 4" in text
    assert "step 3/10  epoch 0.60  loss 1.2500" in text
    assert text.count(" left\n") == reads - 1 == 9
    assert "val_top1 0.5000" in text
    assert "best so far" in text
    assert [line.partition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()] == text.splitlines()


def test_the_loss_is_read_no_more_often_than_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, reads = show(tmp_path, monkeypatch, terminal=False, every=100.0)
    assert reads == 1


def test_pauses_are_no_part_of_the_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(display.time, "perf_counter", lambda: now)
    with Display(Console(quiet=True), RunFolder(tmp_path), total_steps=9, step=0, tensorboard=False) as view:
        now += 2
        view.step(1, 0.1, 10, 1e-3, lambda: 0.0)
        with view.pausing():
            now += 50
            assert view.samples_per_second == 5
        now += 2
        assert view.samples_per_second == 2.5


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with Display(Console(quiet=True), None, total_steps=1, step=0, tensorboard=True) as view:
        view.say("hello")
        view.step(1, 1.0, 1, 1e-3, lambda: 0.0)
    assert list(tmp_path.iterdir()) == []


def test_missing_tensorboard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'pyramidvit\[tensorboard\]'"):
        Display(Console(quiet=True), RunFolder(tmp_path), total_steps=1, step=0, tensorboard=True)


def test_durations_read_as_a_person_says_them() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3599, 3660)] == ["0 s", "59 s", "1 min 01 s", "59 min 59 s", "1 h 01 min"]
