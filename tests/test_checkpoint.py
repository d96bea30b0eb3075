"""Checkpoints survive kills, full disks and bad weights."""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pyramidvit import checkpoint
from pyramidvit.checkpoint import Progress, TrainState
from pyramidvit.errors import UserError
from pyramidvit.files import write_tensors


def state(step: int, **changes: object) -> TrainState:
    torch.manual_seed(step)
    tensors = {"model/w": torch.randn(50), "optimizer/w/exp_avg": torch.randn(50), "sums/loss": torch.tensor(0.1)}
    base = TrainState(
        progress=Progress(step=step, rows=[{"epoch": 1, "loss": 0.1 + 0.2}], best=1 / 3),
        tensors=tensors,
        scaler={"scale": 65536.0},
        config={"optim": {"lr": 1e-3}},
        classes=("a", "b"),
        fingerprint="abc",
        samples_per_step=8,
        steps_per_epoch=5,
    )
    return replace(base, **changes)


def same(a: TrainState, b: TrainState) -> bool:
    tensors = a.tensors.keys() == b.tensors.keys() and all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    return tensors and replace(a, tensors={}) == replace(b, tensors={})


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, state(7))
    assert path.name == "step-00000007.safetensors"
    assert same(checkpoint.load(path), state(7))
    assert checkpoint.load(path).part("optimizer").keys() == {"w/exp_avg"}


def test_the_newest_are_kept_and_never_fewer_than_two(tmp_path: Path) -> None:
    for step in range(5):
        checkpoint.save(tmp_path, state(step), keep=1)
    assert [path.name for path in checkpoint.paths(tmp_path)] == ["step-00000003.safetensors", "step-00000004.safetensors"]
    checkpoint.save(tmp_path, state(5), keep=3)
    assert len(checkpoint.paths(tmp_path)) == 3


def test_no_checkpoint_at_all_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) == (None, [])
    assert checkpoint.latest(tmp_path / "absent") == (None, [])


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1))
    newest = checkpoint.save(tmp_path, state(2))
    newest.write_bytes(newest.read_bytes()[:-10])
    found, notes = checkpoint.latest(tmp_path)
    assert found is not None
    assert same(found, state(1))
    assert len(notes) == 2
    assert "step-00000002" in notes[0]
    assert "damaged" in notes[0]
    assert notes[1] == "step-00000001.safetensors is used instead."
    again, notes = checkpoint.latest(tmp_path)
    assert again is not None
    assert same(again, state(1))
    assert notes == []
    checkpoint.save(tmp_path, state(2))
    assert len(checkpoint.paths(tmp_path)) == 2


def test_nothing_but_damaged_checkpoints_is_an_error_at_every_attempt(tmp_path: Path) -> None:
    """The first attempt sets them aside, which must not look like a run that has none yet."""
    whole = checkpoint.save(tmp_path, state(1)).read_bytes()
    for step in (1, 2):
        checkpoint.save(tmp_path, state(step)).write_bytes(b"")
    for _ in range(3):
        with pytest.raises(UserError, match="all are damaged") as caught:
            checkpoint.latest(tmp_path)
        assert "is used" not in str(caught.value)
    (tmp_path / "step-00000001.safetensors").write_bytes(whole)
    found, _ = checkpoint.latest(tmp_path)
    assert found is not None
    assert same(found, state(1))


def test_a_newer_format_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    path = checkpoint.save(tmp_path, state(1, version="99.1"))
    monkeypatch.undo()
    for read in (checkpoint.load, lambda path: checkpoint.latest(path.parent)):
        with pytest.raises(UserError, match=r"pyramidvit 99\.1 in checkpoint format 2.*Update pyramidvit"):
            read(path)
    assert path.exists()


def test_the_first_format_stays_readable() -> None:
    """The kept file was written by version 0.1.0; a change of layout must still read it."""
    old = checkpoint.load(Path(__file__).parent / "fixtures" / "checkpoint_format_1.safetensors")
    assert same(replace(old, torch="", version=""), state(7, torch="", version=""))


def test_other_safetensors_files_are_no_checkpoints(tmp_path: Path) -> None:
    write_tensors(tmp_path / "weights.safetensors", {"w": torch.ones(2)}, {"note": json.dumps({})})
    with pytest.raises(UserError, match="no checkpoint of a run"):
        checkpoint.load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_never_replace_a_checkpoint(tmp_path: Path, value: float) -> None:
    good = checkpoint.save(tmp_path, state(1))
    before = good.read_bytes()
    bad = state(1)
    with pytest.raises(UserError, match="w is not finite at step 1"):
        checkpoint.save(tmp_path, replace(bad, tensors={**bad.tensors, "model/w": torch.tensor([0.0, value, 1.0])}))
    assert good.read_bytes() == before


def test_a_full_disk_leaves_the_previous_checkpoint_and_no_temp(tmp_path: Path) -> None:
    good = checkpoint.save(tmp_path, state(1))
    before = good.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="File too large"):
            checkpoint.save(tmp_path, state(2, tensors={"model/w": torch.zeros(1_000_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == [good.name]
    assert good.read_bytes() == before


SAVER = """
import itertools, torch
from pyramidvit import checkpoint
torch.set_num_threads(1)
found, _ = checkpoint.latest(folder)
checkpoint.clean(folder)
for step in itertools.count(found.progress.step + 1 if found else 1):
    tensors = {"model/w": torch.full((200_000,), float(step)), "optimizer/w/exp_avg": torch.full((200_000,), -float(step))}
    checkpoint.save(folder, checkpoint.TrainState(checkpoint.Progress(step), tensors, None, {}, (), "", 1, 1))
    saved.send(step)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_kill_at_any_instant_leaves_a_loadable_checkpoint(tmp_path: Path, kills: int) -> None:
    """One process saves without pause and is killed at a random instant; what it reported as saved must be there, whole."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pyramidvit.checkpoint"])
    instants = random.Random(0)
    temps = 0
    for _ in range(kills):
        receiver, sender = processes.Pipe(duplex=False)
        saver = processes.Process(target=exec, args=(SAVER, {"folder": tmp_path, "saved": sender}))
        saver.start()
        sender.close()
        reported = receiver.recv()
        time.sleep(instants.uniform(0, 0.05))
        saver.kill()
        saver.join()
        with contextlib.suppress(EOFError):
            while True:
                reported = receiver.recv()
        receiver.close()
        temps += len(list(tmp_path.glob(".tmp-*")))
        found, notes = checkpoint.latest(tmp_path)
        assert found is not None
        assert not notes
        assert found.progress.step in (reported, reported + 1)
        assert found.tensors["model/w"].eq(found.progress.step).all()
        assert found.tensors["optimizer/w/exp_avg"].eq(-found.progress.step).all()
    assert temps > kills / 20, "the kills hardly ever hit a file that was being written, so this shows nothing"
    assert len(checkpoint.clean(tmp_path)) <= 1
    assert not list(tmp_path.glob(".tmp-*"))
