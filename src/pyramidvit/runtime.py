"""The process that computes: device and precision, seeds, determinism, signals."""

import atexit
import hashlib
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from pyramidvit.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


def make_accelerator(device: Device = "auto", precision: Precision = "auto") -> Accelerator:
    """Device, precision and process group. UserError when this machine does not have what was asked for."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device != "auto" and not available[device]:
        usable = ", ".join(name for name, there in available.items() if there)
        raise UserError(f"This machine has no usable device {device!r}; it has: {usable}. Set loop.device to one of them, or to auto.")
    chosen = device if device != "auto" else "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if precision == "auto":
        precision = "bf16" if chosen == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if precision == "fp16" and chosen == "cpu":
        raise UserError("fp16 needs an accelerator with a loss scaler and the device is the CPU; use bf16 or fp32.")
    AcceleratorState._reset_state(reset_partial_state=True)  # else a second run in one process could have no other device or precision
    accelerator = Accelerator(cpu=chosen == "cpu", mixed_precision="no" if precision == "fp32" else precision)
    if accelerator.num_processes > 1:
        atexit.unregister(_leave_group)
        atexit.register(_leave_group)
    return accelerator


def _leave_group() -> None:
    """End the process group's threads while the interpreter still stands: one that outlives it ends the process with SIGABRT."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def compiled(network: nn.Module, *, dynamic: bool | None, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """The network behind torch.compile, which works when it is first called. UserError without a C++ compiler.

    ``dynamic`` None makes a graph for the first size and then one for any; False one for each size, eight at most, and others run as
    without. Training needs False: torch 2.14 can't order the strides of maps whose sides are quotients of unknowns.
    """
    if not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        raise UserError("torch.compile needs a C++ compiler, and none is installed: install g++ or clang, or do without.")
    module = torch.compile(network, dynamic=dynamic, backend=backend)
    assert isinstance(module, nn.Module)
    return module


@contextmanager
def numerics(threads: int | None, deterministic: bool) -> Iterator[None]:
    """Set the number of CPU threads and, if asked, deterministic kernels; put back what was there afterwards.

    The CPU is deterministic anyway. An operation without a deterministic kernel on an accelerator still runs, with a warning that names it.
    """
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS has no deterministic mode without it
            torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1], warn_only=before[2])


def seed_of(*parts: int | str) -> int:
    """A seed from 0 to 2**63 - 1 that depends on every part and looks unlike that of any other parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed torch on all devices, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class StopSignals:
    """Notes SIGTERM and SIGINT instead of dying, so that the step can be finished and saved; a second one acts as it did before."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python takes signals nowhere else
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
