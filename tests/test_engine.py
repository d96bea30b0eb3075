"""The training loop, on a tiny task that trains in a second: what is learned, what is written, and what happens when things go wrong.

As a script it trains the tiny task in a process of its own: ``python test_engine.py FOLDER SETTINGS``, with settings as JSON.
"""

import atexit
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from pyramidvit import checkpoint, engine, weights
from pyramidvit.checkpoint import TrainState
from pyramidvit.config import RunConfig
from pyramidvit.data.folders import Item, read_class_data
from pyramidvit.data.samples import SampleDataset, SampleKey
from pyramidvit.engine import TrainResult, train
from pyramidvit.errors import UserError
from pyramidvit.files import read_tensors
from pyramidvit.losses import classification_loss, soft_targets
from pyramidvit.metrics import ClassificationMetric
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import make_accelerator, seed_of
from pyramidvit.tasks import Task
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.types import BadSample, Batch, ClassScores, ClassTarget, Preprocess, Sample
from pyramidvit.weights import WeightsMeta

CLASSES = ("dark", "light")


class TinyNet(nn.Module):
    """Four stages, with all that makes resuming hard: dropout, running statistics, a weight that is channels-last in memory."""

    num_depths = 5

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [
                nn.Conv2d(3, 16, 4).to(memory_format=torch.channels_last),
                nn.BatchNorm1d(16) if batch_norm else nn.LayerNorm(16),
                nn.Linear(16, 16),
                nn.Linear(16, 16),
            ]
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16, len(CLASSES))
        self.checkpointing = False

    def depth_of(self, parameter: str) -> int:
        return int(parameter.split(".")[1]) if parameter.startswith("stages") else 4

    stage_of = depth_of

    def set_grad_checkpointing(self, on: bool = True) -> None:
        self.checkpointing = on

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = cast(Tensor, recompute(stage, x, use_reentrant=False)) if self.checkpointing else stage(x)
            x = self.dropout(x.flatten(1).relu())
        return self.head(x)


@dataclass
class TinyData:
    """Noisy pictures that are darker or lighter; the noise is a function of epoch and index."""

    n: int
    bad: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    seconds: float = 0.0
    views: int = 1

    @property
    def items(self) -> list[Item]:
        return [Item(Path(f"picture-{index}.png"), index % 2) for index in range(self.n)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: SampleKey) -> Sample | BadSample:
        time.sleep(self.seconds)
        path = f"picture-{key.index}.png"
        if key.index in self.bad:
            return BadSample(path, "cut off")
        generator = torch.Generator().manual_seed(1000 * key.epoch + key.index)
        label = key.index % 2
        image = torch.randn(3, 4, 4, generator=generator) + (label - 0.5)
        return Sample(image * (math.nan if key.index in self.poison else 1.0), ClassTarget(label), path, (4, 4))


@dataclass
class TinyTask:
    train: TinyData = field(default_factory=lambda: TinyData(23))
    val: TinyData = field(default_factory=lambda: TinyData(21))
    batch_norm: bool = True
    name: str = "classify"
    classes: tuple[str, ...] = CLASSES
    fingerprint: str = "abc"
    preprocess: Preprocess = field(default_factory=Preprocess)
    weights: Tensor | None = None

    def dataset(self, split: str) -> SampleDataset:
        return cast(SampleDataset, self.train if split == "train" else self.val)

    def model(self) -> nn.Module:
        return TinyNet(self.batch_norm)

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:
        noise = torch.randn(batch.images.shape, generator=generator) + random.random() * 0.0
        return Batch(batch.images + 0.1 * noise, batch.targets, batch.paths, batch.sizes, batch.valid, batch.skipped)

    def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        soft = soft_targets([cast(ClassTarget, target) for target in batch.targets], 2, smoothing=0.1)
        noise = random.random() + float(np.random.rand())  # a loss that draws from Python and NumPy must be resumable, too
        return {"loss": classification_loss(outputs, soft, self.weights), "extra": 0.01 * noise * outputs.square().mean()}

    def predict(self, outputs: Tensor, batch: Batch) -> list[ClassScores]:
        return [ClassScores(path, self.classes, row) for path, row in zip(batch.paths, outputs.softmax(1).cpu(), strict=True)]

    def metric(self) -> ClassificationMetric:
        return ClassificationMetric(self.classes)

    def weights_meta(self, metrics: Mapping[str, Any]) -> WeightsMeta:
        return WeightsMeta("tiny", "classify", self.classes, self.preprocess, metrics=metrics)


def settings(**changes: Any) -> RunConfig:
    """Four epochs of 3 steps: 23 samples are 6 batches, of 2 a step; the last batch has 3."""
    loop = {"epochs": 4, "batch_size": 4, "accumulate": 2, "threads": 1, "device": "cpu", "ema_decay": 0.9}
    optim = {"lr": 0.05, "reference_batch": 8, "warmup_epochs": 1, "clip_grad": 1.0, "layer_decay": 0.9}
    sections: dict[str, dict[str, Any]] = {"loop": loop, "optim": optim, "data": {"workers": 0}}
    for key, value in changes.items():
        section = next(name for name, field in RunConfig.model_fields.items() if name != "task" and key in field.annotation.model_fields)  # pyright: ignore
        sections.setdefault(section, {})[key] = value
    return RunConfig.model_validate(sections)


def run_tiny(folder: Path, task: TinyTask | None = None, *, resume: bool = False, **changes: Any) -> TrainResult:
    """Train the tiny task in ``folder``; what was said is in log.txt."""
    run = RunFolder(folder)
    for part in ("checkpoints", "weights"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return train(cast(Task, task or TinyTask()), settings(**changes), run, resume=resume, console=Console(file=io.StringIO()))


def newest(folder: Path) -> TrainState:
    return checkpoint.load(checkpoint.paths(folder / "checkpoints")[-1])


def assert_same_run(a: Path, b: Path) -> None:
    """Bit-equal: weights, optimiser, averages, counters, logs and best weights."""
    first, second = newest(a), newest(b)
    assert first.progress == second.progress
    assert first.tensors.keys() == second.tensors.keys()
    assert [name for name, tensor in first.tensors.items() if not torch.equal(tensor, second.tensors[name])] == []
    for file in ("metrics.csv", "metrics.jsonl", "weights/best.safetensors"):
        assert (a / file).read_bytes() == (b / file).read_bytes(), file


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run that interrupted ones are compared with."""
    folder = tmp_path_factory.mktemp("straight")
    result = run_tiny(folder)
    assert (result.steps, result.epochs, result.stopped_by, result.stopped_early) == (12, 4, None, False)
    return folder


def test_it_learns_and_writes_what_a_run_folder_holds(straight: Path) -> None:
    rows = RunFolder(straight).read_metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    assert {"lr", "train_loss", "train_extra", "val_top1", "val_loss"} <= rows[0].keys()
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    state = newest(straight)
    assert state.progress.best == max(row["val_top1"] for row in rows) > 0.75
    assert state.progress.seen == 4 * 23
    assert len(checkpoint.paths(straight / "checkpoints")) == 2
    tensors, meta = weights.read(straight / "weights" / "best.safetensors")
    assert meta is not None
    assert meta.metrics["top1"] == state.progress.best
    assert tensors.keys() == TinyNet(True).state_dict().keys()
    log = (straight / "log.txt").read_text()
    assert "0.05 at 8 samples, a step has 8 (4 per batch x 2 accumulated x 1 processes), so the peak is 0.05." in log  # PB-72
    assert log.count("samples/s") >= 4


@pytest.mark.slow
def test_a_compiled_run_learns_and_its_weights_are_those_of_the_plain_network(tmp_path: Path) -> None:
    run_tiny(tmp_path, compile=True)
    state = newest(tmp_path)
    assert (state.progress.best or 0) > 0.75
    assert state.part("model").keys() == TinyNet(True).state_dict().keys()
    with pytest.raises(UserError, match=r"loop\.compile: True in the run, False now"):
        run_tiny(tmp_path, resume=True)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(straight: Path, tmp_path: Path) -> None:
    """PB-76, and determinism mode."""
    torch.rand(7)  # whatever was drawn before must not matter
    run_tiny(tmp_path / "again")
    assert_same_run(straight, tmp_path / "again")
    run_tiny(tmp_path / "other", seed=1)
    assert newest(tmp_path / "other").tensors["model/head.weight"].ne(newest(straight).tensors["model/head.weight"]).any()
    run_tiny(tmp_path / "deterministic", deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert (tmp_path / "deterministic" / "metrics.csv").read_bytes() == (straight / "metrics.csv").read_bytes()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.mark.parametrize("batches", [1, 2, 3, 6, 8, 11, 13, 20, 23])
def test_killed_before_any_batch_and_resumed_is_bit_equal(straight: Path, tmp_path: Path, batches: int) -> None:
    """PB-66: in the middle of an epoch or of a step, the resumed run ends with the bits and logs of an undisturbed one."""
    seen = 0

    class Dying(TinyTask):
        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
            nonlocal seen
            seen += 1
            if seen > batches:
                raise Killed
            return super().loss(outputs, batch)

    with pytest.raises(Killed):
        run_tiny(tmp_path, Dying(), save_every=1)
    torch.rand(3)
    run_tiny(tmp_path, resume=True, save_every=1)
    assert seen == batches + 1
    state, reference = newest(tmp_path), newest(straight)
    assert state.progress == reference.progress
    assert_same_run(straight, tmp_path)


def test_killed_between_a_row_and_its_checkpoint_leaves_no_row_twice(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(engine.checkpoint, "save", die)
    with pytest.raises(Killed):
        run_tiny(tmp_path)
    monkeypatch.undo()
    assert RunFolder(tmp_path).read_metrics() == []  # a run with results has a checkpoint
    run_tiny(tmp_path, resume=True)
    assert "There is no checkpoint yet" in (tmp_path / "log.txt").read_text()
    assert_same_run(straight, tmp_path)


@pytest.mark.parametrize("epochs", [1, 2])
def test_killed_after_a_row_goes_on_with_the_checkpoint_before_it(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    def die(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        write(self, rows)
        if len(rows) == epochs:
            raise Killed

    write = RunFolder.write_metrics
    monkeypatch.setattr(RunFolder, "write_metrics", die)
    with pytest.raises(Killed):
        run_tiny(tmp_path)
    monkeypatch.undo()
    assert len(RunFolder(tmp_path).read_metrics()) == epochs
    run_tiny(tmp_path, resume=True)
    assert "There is no checkpoint yet" not in (tmp_path / "log.txt").read_text()
    assert_same_run(straight, tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "checkpoints"}


def test_a_run_whose_checkpoints_are_all_damaged_is_never_restarted(straight: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(straight, tmp_path / "copy")
    for path in checkpoint.paths(folder / "checkpoints"):
        path.write_bytes(b"")
    before = contents(folder)
    for _ in range(3):
        with pytest.raises(UserError, match="all are damaged"):
            run_tiny(folder, resume=True)
        assert contents(folder) == before


@pytest.mark.parametrize("left", ["metrics.jsonl", "weights/best.safetensors"])
def test_a_run_with_results_and_no_checkpoint_is_never_restarted(straight: Path, tmp_path: Path, left: str) -> None:
    folder = shutil.copytree(straight, tmp_path / "copy")
    shutil.rmtree(folder / "checkpoints")
    for name in {"metrics.jsonl", "weights/best.safetensors"} - {left}:
        (folder / name).unlink()
    before = contents(folder)
    for _ in range(2):
        with pytest.raises(UserError, match=r"no checkpoint, though .* has results"):
            run_tiny(folder, resume=True)
        assert contents(folder) == before


def start(folder: Path, **changes: Any) -> subprocess.Popen[str]:
    """The tiny task in a process of its own, slowed down so that it can be hit."""
    command = [sys.executable, __file__, str(folder), json.dumps({"seconds": 0.02, "save_every": 1, **changes})]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 6])
def test_sigkill_and_resume_again_and_again_is_bit_equal(straight: Path, tmp_path: Path, kills: int) -> None:
    instants = random.Random(kills)
    for number in range(kills):
        process = start(tmp_path, resume=number > 0)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(instants.uniform(0.05, 0.5))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    run_tiny(tmp_path, resume=True, save_every=1)
    assert_same_run(straight, tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_and_says_which(straight: Path, tmp_path: Path, number: signal.Signals) -> None:
    def send() -> None:
        while not (tmp_path / "log.txt").exists():  # written when signals are already noted: before, one ends the process of the tests
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    before = signal.getsignal(number)
    result = run_tiny(tmp_path, TinyTask(train=TinyData(23, seconds=0.02)))
    sender.join()
    assert result.stopped_by == number
    assert not result.stopped_early
    assert 0 < result.steps < 12
    assert newest(tmp_path).progress.step == result.steps
    assert signal.getsignal(number) == before
    assert f"Stopped by signal {int(number)}" in (tmp_path / "log.txt").read_text()
    run_tiny(tmp_path, resume=True)
    assert_same_run(straight, tmp_path)


def test_a_signal_during_an_evaluation_stops_it_and_a_resume_makes_up_for_it(straight: Path, tmp_path: Path) -> None:
    sent = False

    class Interrupting(TinyTask):
        def predict(self, outputs: Tensor, batch: Batch) -> list[ClassScores]:
            nonlocal sent
            if not sent:
                os.kill(os.getpid(), signal.SIGTERM)
            sent = True
            return super().predict(outputs, batch)

    result = run_tiny(tmp_path, Interrupting())
    assert (result.stopped_by, result.steps, result.epochs) == (signal.SIGTERM, 3, 0)
    run_tiny(tmp_path, resume=True)
    assert_same_run(straight, tmp_path)


@pytest.mark.slow
def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, seconds=2.0, save_every=None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    process.communicate(timeout=5)
    assert process.returncode == -signal.SIGTERM
    assert checkpoint.paths(tmp_path / "checkpoints") == []


def test_a_finished_run_has_nothing_to_resume(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path / "copy")
    result = run_tiny(tmp_path / "copy", resume=True)
    assert (result.steps, result.epochs, result.evaluation) == (12, 4, None)
    assert_same_run(straight, tmp_path / "copy")


def test_a_damaged_newest_checkpoint_costs_an_epoch_and_is_said(straight: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(straight, tmp_path / "copy")
    newest_file = checkpoint.paths(folder / "checkpoints")[-1]
    newest_file.write_bytes(newest_file.read_bytes()[:-1])
    run_tiny(folder, resume=True)
    assert "damaged" in (folder / "log.txt").read_text()
    assert_same_run(straight, folder)


def test_a_resume_refuses_what_would_change_the_result(straight: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(straight, tmp_path / "copy")
    with pytest.raises(UserError, match=r"optim\.lr: 0\.05 in the run, 0\.1 now") as error:
        run_tiny(folder, resume=True, lr=0.1, epochs=9, threads=2, patience=9)
    assert "loop.epochs" in str(error.value)
    assert "threads" not in str(error.value)
    with pytest.raises(UserError, match="data changed"):
        run_tiny(folder, TinyTask(fingerprint="other"), resume=True)
    with pytest.raises(UserError, match="classes"):
        run_tiny(folder, TinyTask(classes=("a", "b")), resume=True)


def test_a_full_disk_stops_with_a_message_and_the_last_checkpoint_stays(straight: Path, tmp_path: Path) -> None:
    class Filling(TinyTask):
        """From the second epoch on, no file may be bigger than 10 kB."""

        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
            if checkpoint.paths(tmp_path / "checkpoints"):
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
            return super().loss(outputs, batch)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match="File too large"):
            run_tiny(tmp_path, Filling(), eval_every=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003.safetensors"]
    run_tiny(tmp_path, resume=True, eval_every=4)
    assert newest(tmp_path).tensors["model/head.weight"].equal(newest(straight).tensors["model/head.weight"])


def test_too_little_space_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(UserError, match="free space"):
        run_tiny(tmp_path)


def test_a_loss_that_is_not_finite_stops_and_names_the_files(tmp_path: Path) -> None:
    """PB-73, PB-72."""
    with pytest.raises(UserError, match=r"not finite at step \d+, in a batch of: .*picture-5\.png"):
        run_tiny(tmp_path, TinyTask(train=TinyData(23, poison=frozenset({5}))))
    assert checkpoint.paths(tmp_path / "checkpoints") == []


def test_a_loss_that_blows_up_later_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Exploding(TinyTask):
        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
            terms = super().loss(outputs, batch)
            late = len(checkpoint.paths(tmp_path / "checkpoints")) > 1
            return {name: term * math.inf if late else term for name, term in terms.items()}

    with pytest.raises(UserError, match=r"The loss is not finite at step 6.*picture-"):
        run_tiny(tmp_path, Exploding())
    state = newest(tmp_path)
    assert state.progress.step == 6
    assert all(tensor.isfinite().all() for name, tensor in state.tensors.items() if name.startswith("model/"))


def test_steps_that_are_not_finite_are_skipped_and_counted_when_asked(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, TinyTask(train=TinyData(23, poison=frozenset({5}))), on_nonfinite="skip")
    assert result.nonfinite == 4
    assert result.steps == 12
    state = newest(tmp_path)
    assert all(tensor.isfinite().all() for tensor in state.tensors.values())
    assert state.tensors["model/stages.1.num_batches_tracked"] == 4 * 4
    assert (tmp_path / "log.txt").read_text().count("Left out: The loss is not finite") == 4
    rows = RunFolder(tmp_path).read_metrics()
    assert all(math.isfinite(row["train_loss"]) for row in rows)


def test_ten_steps_in_a_row_that_are_not_finite_stop(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="10 steps in a row"):
        run_tiny(tmp_path, TinyTask(train=TinyData(23, poison=frozenset(range(23)))), on_nonfinite="skip", epochs=9)


def test_a_gradient_that_is_not_finite_is_noticed_though_the_loss_is(tmp_path: Path) -> None:
    class Sharp(TinyTask):
        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
            return {"loss": (outputs - outputs.detach()).abs().sqrt().mean()}  # the slope of the root at 0 is infinite

    with pytest.raises(UserError, match="The gradient is not finite at step 0"):
        run_tiny(tmp_path, Sharp())


def test_bad_samples_are_left_out_logged_and_counted(tmp_path: Path) -> None:
    task = TinyTask(train=TinyData(23, bad=frozenset({3})), val=TinyData(21, bad=frozenset({20})))
    result = run_tiny(tmp_path, task, max_bad_share=0.1)
    assert result.skipped == 4
    assert newest(tmp_path).progress.seen == 4 * 23
    assert result.evaluation is not None
    assert [sample.path for sample in result.evaluation.skipped] == ["picture-20.png"]
    log = (tmp_path / "log.txt").read_text()
    assert log.count("Left out picture-3.png: cut off") == 4
    assert "Left out of the evaluation picture-20.png: cut off" in log


def test_too_many_bad_samples_stop(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 of 23 samples could not be read, more than data\.max_bad_share = 0\.05"):
        run_tiny(tmp_path, TinyTask(train=TinyData(23, bad=frozenset({3, 4}))), batch_size=23, accumulate=1)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [frozenset(range(0, 23, 2)), frozenset({0})])
def test_a_step_without_samples_moves_on_without_an_update(tmp_path: Path, bad: frozenset[int]) -> None:
    result = run_tiny(tmp_path, TinyTask(train=TinyData(23, bad=bad), batch_norm=False), max_bad_share=1.0, batch_size=1, accumulate=1)
    assert result.steps == 4 * 23
    updates = newest(tmp_path).tensors["optimizer/head.weight/step"]
    assert result.steps - result.skipped <= updates < result.steps
    assert all(math.isfinite(row["train_loss"]) for row in RunFolder(tmp_path).read_metrics())


class Recorder(TinyTask):
    """Keeps the batches of a run, and takes everything random out of it."""

    def __init__(self, n: int, **changes: Any) -> None:
        super().__init__(train=TinyData(n), batch_norm=False, **changes)
        self.batches: list[Batch] = []

    def model(self) -> nn.Module:
        model = TinyNet(batch_norm=False)
        model.dropout.p = 0.0
        return model

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:  # noqa: ARG002
        self.batches.append(batch)
        return batch

    def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"loss": classification_loss(outputs, soft_targets([cast(ClassTarget, t) for t in batch.targets], 2))}


@pytest.mark.parametrize("n", [16, 22, 23, 9])
def test_accumulated_steps_equal_steps_over_the_whole_window(tmp_path: Path, n: int) -> None:
    """The tail of an epoch too, where a window has fewer batches, and a batch fewer samples."""
    plain = {"ema_decay": 0.0, "epochs": 2, "clip_grad": None}
    parts, whole = Recorder(n), Recorder(n)
    run_tiny(tmp_path / "parts", parts, batch_size=4, accumulate=2, **plain)
    run_tiny(tmp_path / "whole", whole, batch_size=8, accumulate=1, **plain)
    mine, theirs = newest(tmp_path / "parts"), newest(tmp_path / "whole")
    if mine.progress.step == theirs.progress.step:
        for name, tensor in mine.part("model").items():
            assert torch.allclose(tensor, theirs.part("model")[name], rtol=1e-3, atol=1e-4), name
    assert mine.progress.seen == theirs.progress.seen == 2 * n


def test_the_loop_equals_a_hand_written_one(tmp_path: Path) -> None:
    """AdamW steps over the recorded batches with the printed schedule give the same weights."""
    task = Recorder(23)
    run_tiny(tmp_path, task, ema_decay=0.0, epochs=2, layer_decay=1.0, clip_grad=None)
    from_engine = newest(tmp_path).part("model")
    rows = RunFolder(tmp_path).read_metrics()
    torch.manual_seed(seed_of(0, "weights"))
    model = task.model()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}])
    windows = [task.batches[i : i + 2] for i in range(0, len(task.batches), 2)]
    losses = []
    for step, window in enumerate(windows):
        images = torch.cat([batch.images for batch in window])
        labels = torch.tensor([cast(ClassTarget, t).label for batch in window for t in batch.targets])
        lr = (
            1e-6 + (0.05 - 1e-6) * step
            if step < 1
            else 1e-5 + (0.05 - 1e-5) * (1 + math.cos(math.pi * (step - 1) / (len(windows) - 1))) / 2
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() * len(labels))
    assert sum(losses[:3]) / 23 == pytest.approx(rows[0]["train_loss"], rel=1e-4)
    for name, tensor in model.state_dict().items():
        assert torch.allclose(tensor, from_engine[name], rtol=1e-3, atol=1e-5), name


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, lr=1e-9, min_lr=0.0, warmup_lr=0.0, ema_decay=0.0, epochs=20, patience=2)
    assert result.stopped_early
    assert result.stopped_by is None
    assert result.epochs < 20
    assert newest(tmp_path).progress.waited == 2
    again = run_tiny(tmp_path, resume=True, lr=1e-9, min_lr=0.0, warmup_lr=0.0, ema_decay=0.0, epochs=20, patience=2)
    assert (again.steps, again.stopped_early) == (result.steps, True)


def test_evaluations_can_be_rarer_and_the_last_epoch_has_one(tmp_path: Path) -> None:
    run_tiny(tmp_path, eval_every=3)
    rows = RunFolder(tmp_path).read_metrics()
    assert ["val_top1" in row for row in rows] == [False, False, True, True]
    header, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert all(line.count(",") == header.count(",") for line in lines)


def test_without_held_out_samples_the_last_weights_are_kept(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, TinyTask(val=TinyData(0)))
    assert result.best is None
    tensors, _ = read_tensors(tmp_path / "weights" / "best.safetensors")
    assert all(torch.equal(tensor, newest(tmp_path).tensors[f"ema/{name}"]) for name, tensor in tensors.items())


def test_frozen_stages_stay_as_they_were_and_are_counted(tmp_path: Path) -> None:
    """PB-15: the statistics of a frozen norm, too."""
    run_tiny(tmp_path, freeze=2, ema_decay=0.0)
    torch.manual_seed(seed_of(0, "weights"))
    start_weights = TinyNet(True).state_dict()
    end = newest(tmp_path)
    for name, tensor in end.part("model").items():
        frozen = name.startswith(("stages.0", "stages.1"))
        assert torch.equal(tensor, start_weights[name]) == frozen, name
    assert not any("stages.0" in name or "stages.1" in name for name in end.part("optimizer"))
    assert "Frozen: the first 2 stages, 816 of 1,394 parameters." in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [0, 1])
def test_gradient_checkpointing_changes_nothing(tmp_path: Path, freeze: int) -> None:
    """PB-78: the same loss and gradients, dropout included; behind a frozen stem as well."""
    run_tiny(tmp_path / "a", TinyTask(batch_norm=False), grad_checkpointing=True, freeze=freeze)
    run_tiny(tmp_path / "b", TinyTask(batch_norm=False), freeze=freeze)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_tensorboard_events_are_written_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_tiny(tmp_path, tensorboard=True, epochs=1)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_evaluation_alone_measures_every_sample_once() -> None:
    evaluation = engine.evaluate(cast(Task, TinyTask()), TinyNet(True), TinyTask().dataset("val"), config=settings(batch_size=4))
    assert evaluation.result.to_json()["n"] == 21


def half_precision(scale: float | None) -> Callable[..., Accelerator]:
    """An accelerator with fp16 and a loss scaler on the CPU, which accelerate offers on GPUs only."""

    def make(*_: object) -> Accelerator:
        accelerator = make_accelerator("cpu", "fp32")
        accelerator.state._mixed_precision = "fp16"
        accelerator.native_amp = True
        accelerator.scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)
        return accelerator

    return make


@pytest.mark.slow
def test_gradients_that_overflow_fp16_are_counted_and_the_scaler_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-67, PB-73: the scale starts far too high, falls until steps succeed, and goes on from there after a resume."""
    monkeypatch.setattr(engine, "make_accelerator", half_precision(2.0**22))
    result = run_tiny(tmp_path / "straight", epochs=8)
    assert 2 <= result.overflows < result.steps / 2
    assert result.nonfinite == 0
    seen = 0

    class Dying(TinyTask):
        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
            nonlocal seen
            assert outputs.dtype == torch.float32
            seen += 1
            if seen > 30:
                raise Killed
            return super().loss(outputs, batch)

    with pytest.raises(Killed):
        run_tiny(tmp_path / "resumed", Dying(), epochs=8, save_every=1)
    state = newest(tmp_path / "resumed")
    assert state.scaler is not None
    assert state.scaler["scale"] < 2.0**22
    run_tiny(tmp_path / "resumed", epochs=8, save_every=1, resume=True)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
    assert newest(tmp_path / "straight").scaler == newest(tmp_path / "resumed").scaler


def test_a_missing_scaler_state_is_said(straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.setattr(engine, "make_accelerator", half_precision(1024.0))
    run_tiny(folder, resume=True)
    assert "no state of the fp16 loss scaler" in (folder / "log.txt").read_text()


@pytest.mark.slow
def test_worker_processes_change_nothing(straight: Path, tmp_path: Path) -> None:
    run_tiny(tmp_path, workers=2)
    assert_same_run(straight, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_the_run_still_saves(straight: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches the processes that read pictures, too, and so do the signals of most cluster schedulers."""
    process = start(tmp_path, save_every=None, workers=2, seconds=0.05)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while not (tmp_path / "log.txt").exists():  # written when signals are already noted
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert json.loads(output.splitlines()[-1])["stopped_by"] == number, output
    run_tiny(tmp_path, resume=True)
    assert_same_run(straight, tmp_path)


def test_another_number_of_processes_goes_on_where_a_step_of_its_own_begins(straight: Path, tmp_path: Path) -> None:
    """Saved by two processes after 16 of 32 samples of the second epoch; one process makes twice as many steps."""
    folder = shutil.copytree(straight, tmp_path / "copy")
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    state = newest(straight)
    rows = state.progress.rows[:1]
    saved = replace(state, progress=replace(state.progress, step=3, rows=rows), samples_per_step=16, steps_per_epoch=2)
    checkpoint.save(folder / "checkpoints", saved)
    result = run_tiny(folder, TinyTask(train=TinyData(32)), resume=True)
    assert result.steps == 16
    assert [row["step"] for row in RunFolder(folder).read_metrics()[1:]] == [8, 12, 16]
    assert "Steps have 8 samples instead of 16" in (folder / "log.txt").read_text()
    for path in checkpoint.paths(folder / "checkpoints"):
        path.unlink()
    checkpoint.save(folder / "checkpoints", replace(saved, samples_per_step=12, steps_per_epoch=2))
    with pytest.raises(UserError, match="after 12 samples of epoch 2, which steps of 8 samples can't reach"):
        run_tiny(folder, TinyTask(train=TinyData(32)), resume=True)


@pytest.mark.slow
def test_a_real_network_on_pictures_resumes_bit_equal(tmp_path: Path) -> None:
    """Augmentation, mixing, drop path and weights in any memory layout: killed in the middle of a step of the second epoch."""
    for split, count in (("train", 10), ("val", 3)):
        for label in CLASSES:
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = np.random.default_rng(i).integers(0, 128, (40, 48, 3), np.uint8) + np.uint8(100 * (label == "light"))
                Image.fromarray(pixels).save(tmp_path / "data" / split / label / f"{i}.png")
    data = read_class_data(tmp_path / "data")
    config = settings(epochs=2, name="pvt_v2_b0", size=(32, 32), drop_path_rate=0.2, save_every=1)
    calls = 0

    class Dying(ClassifyTask):
        def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
            nonlocal calls
            calls += 1
            if calls > 8:
                raise Killed
            return super().loss(outputs, batch)

    def go(folder: str, task: type[ClassifyTask], resume: bool) -> None:
        run = RunFolder(tmp_path / folder) if resume else RunFolder.create(tmp_path, ".", folder)
        train(task(config, data.classes, data), config, run, resume=resume, console=Console(file=io.StringIO()))

    go("straight", ClassifyTask, False)
    with pytest.raises(Killed):
        go("resumed", Dying, False)
    assert newest(tmp_path / "resumed").progress.step == 4
    go("resumed", ClassifyTask, True)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(tmp_path: Path) -> None:
    """PB-90: 21 held-out samples are counted once each; only the first process writes. Neither leaves its group to be torn down."""
    options = {"accumulate": 1, "epochs": 2, "ema_decay": 0.5}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    done = subprocess.run(
        [*command, str(tmp_path / "two"), json.dumps({**options, "batch_size": 4, "plain": 23})],
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [result["n"] for result in results] == [21, 21]
    assert done.stdout.splitlines().count("no process group") == 2
    run_tiny(tmp_path / "one", Recorder(23), batch_size=8, **options)
    one, two = newest(tmp_path / "one"), newest(tmp_path / "two")
    assert one.progress.step == two.progress.step
    assert one.progress.seen == two.progress.seen == 46
    assert (tmp_path / "two" / "log.txt").read_text().count("Learning rate") == 1
    for part in ("model", "ema"):
        for name, tensor in one.part(part).items():
            assert torch.allclose(tensor, two.part(part)[name], rtol=1e-3, atol=1e-4), name
    for a, b in zip(one.progress.rows, two.progress.rows, strict=True):
        assert a == pytest.approx(b, rel=1e-3)


def main(folder: Path, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:  # one of several processes; this runs after whatever training leaves to the end of the process
        atexit.register(lambda: sys.stdout.write("process group\n" if torch.distributed.is_initialized() else "no process group\n"))
    seconds, resume, plain = options.pop("seconds", 0.0), options.pop("resume", False), options.pop("plain", None)
    print("ready", flush=True)
    task = Recorder(plain) if plain else TinyTask(train=TinyData(23, seconds=seconds))
    result = run_tiny(folder, task, resume=resume, **options)
    n = result.evaluation.result.to_json()["n"] if result.evaluation else None
    sys.stdout.write(json.dumps({"stopped_by": result.stopped_by, "n": n}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
