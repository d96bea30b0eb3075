"""Checkpoints: everything a run needs to go on as if it had never stopped, in one safetensors file.

Random numbers are no part of it: every random choice is a function of the seed and of how far the run has come.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.files import DamagedFile, read_tensors, remove_temps, write_tensors

FORMAT = 1
"""Version of the layout below; raise it whenever older code could misread a file."""

DAMAGED = ".damaged"
"""Ends the names of checkpoints that could not be read."""


@dataclass
class Progress:
    """How far a run has come, and what has happened on the way."""

    step: int = 0
    """Optimiser steps behind us, counting those that were left out: the place in the data and in the schedule."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of metrics.csv, one per finished epoch."""
    best: float | None = None
    """Best headline metric so far."""
    waited: int = 0
    """Evaluations since the best one."""
    seen: int = 0
    """Training samples asked for, the bad ones included."""
    skipped: int = 0
    """Training samples left out because their file was bad."""
    nonfinite: int = 0
    """Steps left out because the loss or its gradient was not finite."""
    overflows: int = 0
    """Steps left out because a gradient left the range of fp16."""
    left_out_in_a_row: int = 0


@dataclass(frozen=True)
class TrainState:
    """A run at the end of a step. ``tensors`` are named model/…, optimizer/…, ema/… and sums/… (loss terms of the unfinished epoch)."""

    progress: Progress
    tensors: Mapping[str, Tensor] = field(repr=False)
    scaler: Mapping[str, Any] | None
    """State of the fp16 loss scaler; None in other precisions."""
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    fingerprint: str
    """Of the training data."""
    samples_per_step: int
    """Over all processes."""
    steps_per_epoch: int
    torch: str = str(torch.__version__)
    version: str = version("pyramidvit")

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors below one name, without it."""
        return {key.removeprefix(f"{name}/"): tensor for key, tensor in self.tensors.items() if key.startswith(f"{name}/")}


def save(folder: Path, state: TrainState, keep: int = 2) -> Path:
    """Write ``step-<step>.safetensors`` durably, then remove all but the newest ``keep`` >= 2 checkpoints.

    UserError when it can't be written, or when a weight is not finite; what was there before stays as it is.
    """
    for name, tensor in state.tensors.items():
        if name.startswith(("model/", "ema/")) and tensor.is_floating_point() and not _is_finite(tensor):
            raise UserError(
                f"{name.partition('/')[2]} is not finite at step {state.progress.step}: no checkpoint was written, the one before is kept. "
                "Lower optim.lr or set optim.clip_grad, then resume."
            )
    path = folder / f"step-{state.progress.step:08d}.safetensors"
    header = asdict(replace(state, tensors={}))
    del header["tensors"]
    write_tensors(path, state.tensors, {"format": str(FORMAT), "state": json.dumps(header)})
    for old in paths(folder)[: -max(keep, 2)]:
        old.unlink()
    return path


def _is_finite(tensor: Tensor) -> bool:
    """By its extremes, which NaN takes over: no copy of the tensor is made."""
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in tensor.aminmax())


def load(path: Path) -> TrainState:
    """Read one checkpoint. UserError when it is missing, damaged, no checkpoint, or of a newer pyramidvit."""
    tensors, metadata = read_tensors(path)
    number = metadata.get("format", "")
    if not number.isdecimal() or "state" not in metadata:
        raise UserError(f"{path} holds tensors but is no checkpoint of a run; expected a file of a run's checkpoints folder.")
    header: dict[str, Any] = json.loads(metadata["state"])
    if int(number) > FORMAT:
        raise UserError(
            f"{path} was written by pyramidvit {header.get('version', '(unknown)')} in checkpoint format {number}; "
            f"this is {version('pyramidvit')}, which reads formats up to {FORMAT}. Update pyramidvit."
        )
    header["progress"] = Progress(**header["progress"])
    header["classes"] = tuple(header["classes"])
    return TrainState(tensors=tensors, **header)


def latest(folder: Path) -> tuple[TrainState | None, list[str]]:
    """The newest checkpoint that is whole (None when there has never been one), and what to tell the user.

    A damaged one is set aside as ``<name>.damaged``. UserError when all are damaged, now or at an earlier attempt.
    """
    notes: list[str] = []
    for path in reversed(paths(folder)):
        try:
            state = load(path)
        except DamagedFile as error:
            notes.append(f"{error} Set aside as {_set_aside(path).name}.")
        else:
            return state, [*notes, f"{path.name} is used instead."] if notes else []
    if damaged := sorted(folder.glob(f"*{DAMAGED}")):
        names = ", ".join(path.name for path in damaged)
        raise UserError(
            f"No checkpoint in {folder} can be read: all are damaged ({names}). "
            "Put a copy of a whole one there under its old name, or start a new run.\n" + "\n".join(notes)
        )
    return None, []


def _set_aside(path: Path) -> Path:
    try:
        return path.rename(path.with_name(path.name + DAMAGED))
    except OSError as error:
        raise UserError(f"{path} is damaged and can't be set aside: {error.strerror}. Make its folder writable.") from None


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def clean(folder: Path) -> list[Path]:
    """Remove what a kill in the middle of a write left behind; returns what was removed."""
    return remove_temps(folder)
