"""All that changes while a run trains: built from the settings, or put back from a checkpoint."""

import functools
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pyramidvit import config as configs
from pyramidvit.checkpoint import Progress, TrainState
from pyramidvit.config import OptimConfig, RunConfig
from pyramidvit.data.loader import EpochPlan
from pyramidvit.errors import UserError
from pyramidvit.optim import (
    Ema,
    Fall,
    cosine,
    freeze,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    param_groups,
    poly,
    scaled_lr,
    steps,
)
from pyramidvit.runs import RunFolder
from pyramidvit.runtime import compiled, seed_everything, seed_of
from pyramidvit.tasks import Task

MAY_CHANGE = {
    "data": {"workers", "on_bad_sample", "max_bad_share"},
    "model": {"grad_checkpointing"},
    "clip": {"time_limit", "reader"},
    "loop": {"device", "threads", "on_nonfinite", "save_every", "keep_checkpoints", "patience", "tensorboard"},
}
"""Settings that a resumed run may have different: they change how it runs or when it gives up, not what it computes."""


@dataclass
class Session:
    task: Task
    config: RunConfig
    accelerator: Accelerator
    model: Any
    """The network itself; ``net`` is the same one behind precision, process group and compiler."""
    net: nn.Module
    optimizer: torch.optim.Optimizer
    stepper: Any
    """The optimiser behind the loss scaler."""
    ema: Ema | None
    plan: EpochPlan
    notes: list[str]
    """What the user should know before the first step."""
    progress: Progress = field(default_factory=Progress)
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Loss terms of this process in the unfinished epoch, each times its samples, and ``samples``."""
    saved: tuple[int, int] | None = None
    """Step and number of rows of the newest checkpoint."""

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.plan.batches_per_epoch // self.config.loop.accumulate)

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.config.loop.epochs

    @property
    def samples_per_step(self) -> int:
        return self.config.loop.batch_size * self.config.loop.accumulate * self.accelerator.num_processes

    @property
    def first_batch(self) -> int:
        """Number of the next step's first batch, counted from the start of the run."""
        epoch, step = divmod(self.progress.step, self.steps_per_epoch)
        return epoch * self.plan.batches_per_epoch + step * self.config.loop.accumulate

    @property
    def window(self) -> int:
        """Batches of the next step; fewer at the end of an epoch that `accumulate` does not divide."""
        left = self.plan.batches_per_epoch - self.first_batch % self.plan.batches_per_epoch
        return min(self.config.loop.accumulate, left)

    @property
    def averaged(self) -> nn.Module:
        """The weights to evaluate and to keep."""
        return self.ema.model if self.ema else self.model

    @property
    def schedule(self) -> Callable[[int], float]:
        """Learning rate of a step."""
        optim = self.config.optim
        return functools.partial(
            learning_rate,
            total_steps=self.total_steps,
            warmup_steps=min(round(optim.warmup_epochs * self.steps_per_epoch), self.total_steps // 4),
            peak=scaled_lr(optim.lr, self.samples_per_step, optim.reference_batch),
            warmup_lr=optim.warmup_lr,
            min_lr=optim.min_lr,
            fall=_fall(optim),
        )

    def add_losses(self, terms: Mapping[str, Tensor], samples: int) -> None:
        """Count loss terms that are means over so many samples."""
        wide = torch.float32 if self.accelerator.device.type == "mps" else torch.float64
        for name, value in (*((name, term.detach().to(wide) * samples) for name, term in terms.items()), ("samples", samples)):
            zero = torch.zeros((), dtype=wide, device=self.accelerator.device)
            self.sums[name] = self.sums.get(name, zero) + value

    def total_sums(self) -> dict[str, Tensor]:
        """The sums over all processes, on the CPU."""
        if self.accelerator.num_processes == 1:
            return {name: value.cpu() for name, value in self.sums.items()}
        reduced = {name: self.accelerator.reduce(value, "sum") for name, value in sorted(self.sums.items())}
        return {name: value.cpu() for name, value in reduced.items() if isinstance(value, Tensor)}

    def mean_losses(self) -> dict[str, float]:
        """Mean of every loss term over the epoch's samples so far, and of their sum; all processes must call it together."""
        sums = self.total_sums()
        samples = float(sums.pop("samples", torch.zeros(())))
        means = {name: float(value) / samples for name, value in sorted(sums.items())}  # in one order, before and after a resume
        terms = {f"train_{name}": mean for name, mean in means.items()} if len(means) > 1 else {}
        return terms | {"train_loss": sum(means.values()) if means else math.nan}

    def mean_loss(self) -> float:
        """Mean loss of the epoch so far on this process alone, for display."""
        samples = float(self.sums.get("samples", math.nan))
        return sum(float(value) for name, value in self.sums.items() if name != "samples") / samples

    def snapshot(self) -> TrainState:
        """Everything a checkpoint holds; all processes must call it together."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "ema": self.ema.model.state_dict() if self.ema else {},
            "sums": self.total_sums(),
        }
        scaler = self.accelerator.scaler
        return TrainState(
            progress=replace(self.progress, rows=list(self.progress.rows)),
            tensors={f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()},
            scaler=None if scaler is None else scaler.state_dict(),
            config=self.config.model_dump(mode="json"),
            classes=tuple(self.task.classes),
            fingerprint=self.task.fingerprint,
            samples_per_step=self.samples_per_step,
            steps_per_epoch=self.steps_per_epoch,
        )


def _fall(optim: OptimConfig) -> Fall:
    if optim.schedule == "poly":
        return functools.partial(poly, power=optim.power)
    return functools.partial(steps, milestones=optim.milestones) if optim.schedule == "step" else cosine


def begin(task: Task, config: RunConfig, accelerator: Accelerator, samples: int) -> Session:
    """A session at step 0 for a training split of so many samples."""
    loop, optim = config.loop, config.optim
    seed_everything(seed_of(loop.seed, "weights"))
    model: Any = task.model()  # what Staged and set_grad_checkpointing name, too
    frozen = freeze(model, config.model.freeze)
    if config.model.grad_checkpointing:
        model.set_grad_checkpointing(True)
    model.to(accelerator.device)
    groups = param_groups(model, weight_decay=optim.weight_decay, layer_decay=optim.layer_decay, decay_all=optim.decay_all)
    optimizer = make_optimizer(groups, optim)
    ema = Ema(model, loop.ema_decay) if loop.ema_decay else None
    world, rank = accelerator.num_processes, accelerator.process_index
    plan = EpochPlan(samples, loop.batch_size, seed=loop.seed, repeats=config.augment.repeats, rank=rank, world=world)
    net, stepper = accelerator.prepare(model, optimizer)
    if loop.compile:
        net = compiled(net, dynamic=False)
    session = Session(task, config, accelerator, model, net, optimizer, stepper, ema, plan, [])
    session.notes = first_notes(session, frozen)
    return session


def first_notes(session: Session, frozen: int) -> list[str]:
    """What follows from the settings and is not plain to see."""
    loop, optim = session.config.loop, session.config.optim
    size = session.samples_per_step
    parts = f"{loop.batch_size} per batch x {loop.accumulate} accumulated x {session.accelerator.num_processes} processes"
    peak = scaled_lr(optim.lr, size, optim.reference_batch)
    notes = [f"Learning rate: {optim.lr:g} at {optim.reference_batch} samples, a step has {size} ({parts}), so the peak is {peak:.4g}."]
    warmup = round(optim.warmup_epochs * session.steps_per_epoch)
    if warmup > session.total_steps // 4:
        notes.append(f"Warm-up: shortened from {warmup} to {session.total_steps // 4} steps, a quarter of the run.")
    if session.config.model.freeze:
        total = sum(parameter.numel() for parameter in session.model.parameters())
        notes.append(f"Frozen: the first {session.config.model.freeze} stages, {frozen:,} of {total:,} parameters.")
    return notes


def restore(session: Session, saved: TrainState) -> None:
    """Go on where a checkpoint stopped. UserError when settings, data or number of processes would give another result."""
    _check_settings(session, saved)
    session.model.load_state_dict(saved.part("model"))
    load_optimizer_tensors(session.optimizer, session.model, saved.part("optimizer"))
    if session.ema:
        session.ema.model.load_state_dict(saved.part("ema"))
    session.progress = replace(saved.progress, step=_place(session, saved), rows=list(saved.progress.rows))
    session.saved = session.progress.step, len(session.progress.rows)
    if session.accelerator.is_main_process:
        session.sums = {name: value.to(session.accelerator.device) for name, value in saved.part("sums").items()}
    else:
        session.sums = {name: torch.zeros_like(value, device=session.accelerator.device) for name, value in saved.part("sums").items()}
    scaler = session.accelerator.scaler
    if scaler is not None and saved.scaler is not None:
        scaler.load_state_dict(dict(saved.scaler))
    elif scaler is not None:
        session.notes.append(
            "The checkpoint has no state of the fp16 loss scaler, so its scale starts anew: the first steps may be left out."
        )


def _check_settings(session: Session, saved: TrainState) -> None:
    before = configs.validate(saved.config, "the checkpoint").model_dump(mode="json")
    now = session.config.model_dump(mode="json")
    changes = [
        f"  {section}.{key}: {before[section][key]!r} in the run, {value!r} now"
        for section in now
        if section != "task"
        for key, value in now[section].items()
        if value != before[section][key] and key not in MAY_CHANGE.get(section, ())
    ]
    if changes:
        raise UserError("A resumed run keeps its settings; start a new run to change these:\n" + "\n".join(changes))
    if tuple(session.task.classes) != saved.classes:
        raise UserError(f"The run has the classes {list(saved.classes)}, the data has {list(session.task.classes)}: start a new run.")
    if session.task.fingerprint != saved.fingerprint:
        raise UserError("The training data changed since the run started (files, sizes or labels): put it back, or start a new run.")


def _place(session: Session, saved: TrainState) -> int:
    """The step to go on with; another number of processes makes other steps, which must begin where a saved one did."""
    epoch, within = divmod(saved.progress.step, saved.steps_per_epoch)
    samples, now = within * saved.samples_per_step, session.samples_per_step
    if saved.samples_per_step != now:
        if samples % now:
            raise UserError(
                f"The run stopped after {samples} samples of epoch {epoch + 1}, which steps of {now} samples can't reach: steps had "
                f"{saved.samples_per_step}. Resume with as many processes as before, or with a number that divides it."
            )
        session.notes.append(f"Steps have {now} samples instead of {saved.samples_per_step}: there are other numbers of processes.")
    return epoch * session.steps_per_epoch + samples // now


def check_space(session: Session, run: RunFolder) -> None:
    """UserError when the disk can't hold three times what a checkpoint needs: the newest, the one before, and one being written."""
    copies = 3 + bool(session.ema)
    needed = 3 * copies * sum(parameter.numel() * parameter.element_size() for parameter in session.model.parameters())
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise UserError(
            f"{run.path} has {free / 1e6:.0f} MB of free space; training needs {needed / 1e6:.0f} MB for checkpoints. Free some."
        )
