"""Training and evaluation: one flat loop that knows a task and nothing of pictures or labels.

Every random choice is a function of (seed, number of the batch, process), so a run that is stopped anywhere and resumed is bit-equal on the
CPU to one that was never stopped.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import convert_to_fp32, gather_object
from rich.console import Console
from torch import nn

from pyramidvit import checkpoint, weights
from pyramidvit.config import RunConfig
from pyramidvit.data.loader import Batches, evaluation_batches, training_batches
from pyramidvit.data.samples import SampleDataset
from pyramidvit.display import Display
from pyramidvit.errors import UserError
from pyramidvit.optim import train_mode
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import StopSignals, make_accelerator, numerics
from pyramidvit.session import Session, begin, check_space, restore
from pyramidvit.step import check_bad_share, take_step
from pyramidvit.tasks import Result, Task
from pyramidvit.types import BadSample, Batch


class Interrupted(Exception):
    """An evaluation was asked to stop before its end."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and what could not be read."""

    result: Result
    skipped: tuple[BadSample, ...]
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """How a training ended. ``best`` is the headline metric of the weights in best.safetensors."""

    steps: int
    epochs: int
    best: float | None
    evaluation: Evaluation | None
    """Of the best weights; None when they were evaluated before a resume."""
    stopped_by: int | None
    """Number of the signal that stopped the run after saving."""
    stopped_early: bool
    """Whether patience ended the run."""
    skipped: int
    nonfinite: int
    overflows: int
    samples_per_second: float


def train(task: Task, config: RunConfig, run: RunFolder, *, resume: bool = False, console: Console) -> TrainResult:
    """Train to the end, or until a signal or patience stops it. Checkpoints, metrics and the best weights are in the run folder.

    UserError when the settings can't work, the disk is full, a file is bad, or the loss is not finite; the last checkpoint stays loadable.
    """
    loop = config.loop
    with numerics(loop.threads, loop.deterministic), StopSignals() as signals:
        accelerator = make_accelerator(loop.device, loop.precision)
        data = task.dataset("train")
        session = begin(task, config, accelerator, len(data))
        if accelerator.is_main_process:
            run.make_folders()
            checkpoint.clean(run.checkpoints)
            check_space(session, run)
        if resume:
            with accelerator.main_process_first():  # it may set a damaged file aside
                saved, notes = checkpoint.latest(run.checkpoints)
            if saved:
                session.notes += notes
                restore(session, saved)
            else:
                _refuse_restart(run)
                session.notes.append("There is no checkpoint yet: training starts from the beginning.")
        if accelerator.is_main_process:
            run.write_metrics(session.progress.rows)
        else:
            console = Console(quiet=True)
        last = loop.epochs * session.plan.batches_per_epoch
        batches = training_batches(data, session.plan, start=session.first_batch, stop=last, workers=config.data.workers)
        held_out = batches_to_evaluate(task.dataset("val"), config, accelerator)
        held_out.start()
        written = run if accelerator.is_main_process else None
        with Display(
            console, written, total_steps=session.total_steps, step=session.progress.step, tensorboard=loop.tensorboard
        ) as display:
            for note in session.notes:
                display.say(note)
            return _loop(session, run, batches, held_out, signals, display)


def _refuse_restart(run: RunFolder) -> None:
    """UserError when a run without a checkpoint has results, which starting from the beginning would overwrite."""
    if run.best_weights.exists() or run.read_metrics():
        raise UserError(
            f"{run.checkpoints} holds no checkpoint, though {run.path} has results of finished epochs, which a new start would overwrite. "
            "Put a checkpoint of this run back there, or start a new run; weights/best.safetensors can still be used."
        )


def _loop(
    session: Session, run: RunFolder, batches: Iterator[Batch], held_out: Batches, signals: StopSignals, display: Display
) -> TrainResult:
    """Steps, evaluations and checkpoints in turn until there is a reason to end."""
    progress, every = session.progress, session.config.loop.save_every
    evaluation = stopped_by = None
    train_mode(session.model)
    while True:
        if progress.step // session.steps_per_epoch > len(progress.rows):  # an epoch is complete and has no row yet
            with display.pausing():
                evaluation = _finish_epoch(session, run, held_out, signals, display) or evaluation
                if every is None:
                    _save(session, run)
        stopped_by = _agree(session.accelerator, signals.received)
        if stopped_by is not None or _is_done(session):
            break
        window = _fetch(batches, session.window, signals)
        if window is None:
            continue
        take_step(session, window, display)
        if every and progress.step % every == 0:
            with display.pausing():
                _save(session, run)
    with display.pausing():
        _save(session, run)
    if stopped_by is not None:
        display.say(f"Stopped by signal {stopped_by} after step {progress.step}, which is saved: continue with --resume.")
    return TrainResult(
        steps=progress.step,
        epochs=len(progress.rows),
        best=progress.best,
        evaluation=evaluation,
        stopped_by=stopped_by,
        stopped_early=stopped_by is None and progress.step < session.total_steps,
        skipped=progress.skipped,
        nonfinite=progress.nonfinite,
        overflows=progress.overflows,
        samples_per_second=display.samples_per_second,
    )


def _is_done(session: Session) -> bool:
    patience = session.config.loop.patience
    return session.progress.step == session.total_steps or (patience is not None and session.progress.waited >= patience)


def _agree(accelerator: Accelerator, received: int | None) -> int | None:
    """A signal that any process received, so that all stop after the same step."""
    if accelerator.num_processes == 1:
        return received
    return max(gather_object([received or 0])) or None


def _fetch(batches: Iterator[Batch], count: int, signals: StopSignals) -> list[Batch] | None:
    """The batches of one step; None when a signal came meanwhile and ended the loader's workers too."""
    try:
        return list(islice(batches, count))
    except (RuntimeError, UserError):
        if signals.received is None:
            raise
        return None


def _save(session: Session, run: RunFolder) -> None:
    """Write a checkpoint unless this very state is already saved."""
    here = session.progress.step, len(session.progress.rows)
    if session.saved == here:
        return
    state = session.snapshot()
    if session.accelerator.is_main_process:
        checkpoint.save(run.checkpoints, state, session.config.loop.keep_checkpoints)
    session.saved = here


def _finish_epoch(session: Session, run: RunFolder, held_out: Batches, signals: StopSignals, display: Display) -> Evaluation | None:
    """Evaluate, keep the best weights, write the epoch's row. Returns a new best evaluation; a signal meanwhile leaves it all for later."""
    progress, loop = session.progress, session.config.loop
    epoch = len(progress.rows) + 1
    if epoch == 1:
        _save(session, run)  # so that a run with results always has a checkpoint
    row: dict[str, Any] = {"epoch": epoch, "step": progress.step, "lr": session.schedule(progress.step - 1), **session.mean_losses()}
    best = None
    if len(held_out) and (epoch % loop.eval_every == 0 or epoch == loop.epochs):
        try:
            measured = evaluate(
                session.task,
                session.averaged,
                held_out,
                config=session.config,
                accelerator=session.accelerator,
                should_stop=lambda: signals.received is not None,
            )
        except (Interrupted, RuntimeError, UserError):
            if signals.received is None:  # else the signal may have ended the loader's workers, too
                raise
            return None
        finally:
            train_mode(session.model)
        for sample in measured.skipped:
            display.log(f"Left out of the evaluation {sample.path}: {sample.reason}")
        row |= {f"val_{name}": value for name, value in measured.result.numbers.items()}
        value = measured.result.headline[1]
        if progress.best is None or value > progress.best:  # where nothing can be measured, the last weights are kept
            progress.best, progress.waited, best = None if math.isnan(value) else value, 0, measured
        else:
            progress.waited += 1
    if session.accelerator.is_main_process and (best or not len(held_out)):
        meta = session.task.weights_meta(dict(best.result.numbers) if best else {})
        weights.save(run.best_weights, session.averaged.state_dict(), meta)
    progress.rows.append(row)
    session.sums.clear()
    if session.accelerator.is_main_process:
        run.write_metrics(progress.rows)
    display.epoch(row, loop.epochs, is_best=best is not None)
    return best


def batches_to_evaluate(dataset: SampleDataset, config: RunConfig, accelerator: Accelerator) -> Batches:
    """This process's share of the samples."""
    rank, world = accelerator.process_index, accelerator.num_processes
    return evaluation_batches(dataset, config.loop.batch_size, workers=config.data.workers, rank=rank, world=world)


def evaluate(
    task: Task,
    model: nn.Module,
    data: SampleDataset | Batches,
    *,
    config: RunConfig,
    accelerator: Accelerator | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Measure a model on every sample exactly once, over all processes. Interrupted when ``should_stop`` says so.

    The model is left in evaluation mode, on the accelerator's device. UserError when a file is bad, or too many are.
    """
    started = time.perf_counter()
    accelerator = accelerator or make_accelerator(config.loop.device, config.loop.precision)
    world = accelerator.num_processes
    batches = data if isinstance(data, Batches) else batches_to_evaluate(data, config, accelerator)
    model.to(accelerator.device).eval()
    metric, skipped, stopped = task.metric(), list[BadSample](), False
    with torch.no_grad():
        for batch in batches:
            skipped += batch.skipped
            if len(batch):
                batch = batch.to(accelerator.device)
                with accelerator.autocast():
                    outputs = model(batch.images)
                metric.update(task.predict(convert_to_fp32(outputs), batch), batch.targets)
            if stopped := should_stop():
                break
    if world > 1:
        metric.rows, skipped, stopped = gather_object(metric.rows), gather_object(skipped), any(gather_object([stopped]))
    if stopped:
        raise Interrupted
    check_bad_share(len(skipped), len(skipped) + len(metric.rows), config.data.max_bad_share)
    return Evaluation(metric.compute(), tuple(skipped), time.perf_counter() - started)
