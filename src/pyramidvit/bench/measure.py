"""How networks are measured: turn by turn in one process for time, each in a fresh process of its own for memory. On the CPU."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pyramidvit.errors import UserError
from pyramidvit.export.backend import anonymous
from pyramidvit.export.graphs import backbone_of
from pyramidvit.models import create_model
from pyramidvit.models.kernels import linear
from pyramidvit.runtime import compiled

T = TypeVar("T")
Backend = Literal["torch", "compile", "onnx", "openvino"]
Step = Callable[[], object]
"""One pass of a network over its input."""
BUSY = 0.15
"""Share of the cores' time above which a machine that should be idle is called busy."""


def _eager(model: nn.Module) -> Callable[..., Any]:
    return model


def _compiled(model: nn.Module) -> Callable[..., Any]:
    return compiled(model, dynamic=None)


def _onnx(model: nn.Module) -> Callable[..., Any]:
    return anonymous(model, "onnx")


def _openvino(model: nn.Module) -> Callable[..., Any]:
    return anonymous(model, "openvino")


BACKENDS: dict[Backend, Callable[[nn.Module], Callable[..., Any]]] = {
    "torch": _eager,
    "compile": _compiled,
    "onnx": _onnx,
    "openvino": _openvino,
}
"""Name → function that makes of a network what is called with its input."""


class ChildFailed(RuntimeError):
    """The work of a fresh process ended with an error, which the message tells."""


@dataclass(frozen=True)
class Contestant:
    """One network on one input. ``build`` has to be picklable, since a fresh process builds the network again for its memory.

    ``shape`` is that of the input with its batch. With ``train`` a step is forward and backward (without optimiser), else forward alone.
    """

    label: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    backend: Backend = "torch"
    train: bool = False

    def step(self) -> Step:
        """The network, built and called once on random numbers; both are the same in every process."""
        if self.train and self.backend in ("onnx", "openvino"):
            raise UserError(f"Exported networks can't train: leave --train out, or --backend {self.backend}.")
        torch.manual_seed(0)
        model = self.build().train(self.train)
        run, x = BACKENDS[self.backend](model), torch.randn(self.shape)

        def infer() -> None:
            with torch.inference_mode():
                run(x)

        def learn() -> None:
            outputs = run(x)
            maps: Sequence[Tensor] = [outputs] if isinstance(outputs, Tensor) else outputs
            torch.stack([y.square().mean() for y in maps]).sum().backward()
            model.zero_grad(set_to_none=True)  # at the end, so that gradients count as memory of the step

        step = learn if self.train else infer
        with warnings.catch_warnings():  # a network may warn, once, that it was trained on other sizes, which costs no time
            warnings.filterwarnings("ignore", "These weights were trained")
            step()
        return step

    def macs(self) -> int:
        """Multiply-adds of a step, products of attention included; forward and backward count as three forwards."""
        model, x = self.build().eval().requires_grad_(False).to("meta"), torch.empty(self.shape, device="meta")
        # The fused attention kernels are opaque to the counter; the plain one is not.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "These weights were trained")
            model(x)
        return counter.get_total_flops() // 2 * (3 if self.train else 1)


@dataclass(frozen=True)
class Named:
    """Builds a network by its name: as a classifier, or with ``features`` its backbone alone, which returns maps."""

    name: str
    features: bool = False

    def __call__(self) -> nn.Module:
        return create_model(self.name, features_only=True) if self.features else create_model(self.name)

    def shape(self, size: tuple[int, int] | None, batch: int) -> tuple[int, ...]:
        """The declared input with a batch, at another height and width if given."""
        model = self()
        declared = backbone_of(model).input_shape
        return (batch, *(declared if size is None else (*declared[:-2], *size)))


def check_alike(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """UserError when some networks take pictures and others clips, whose times can't be compared; ``shapes`` are those of their inputs."""
    clips = [name for name, shape in shapes.items() if len(shape) == 5]
    pictures = [name for name in shapes if name not in clips]
    if clips and pictures:
        raise UserError(f"{clips[0]} takes clips and {pictures[0]} pictures, which can't be compared: measure them one after the other.")


def take_turns(
    steps: Sequence[Step], rounds: int, *, warm_up: int = 1, report: Callable[[str], None] = lambda _: None
) -> list[list[float]]:
    """Seconds of each step, round by round; who goes first changes.

    A step that comes after another's runs once untimed before: threads of another library still wait busily for a while after its last
    step, which takes cores from this one, and the caches hold what was another's.
    """
    for number, step in enumerate(steps):
        report(f"warming up {number + 1} of {len(steps)}")
        for _ in range(warm_up):
            step()
    seconds: list[list[float]] = [[] for _ in steps]
    for turn in range(rounds):
        report(f"round {turn + 1} of {rounds}")
        for i in range(len(steps)):
            who = (i + turn) % len(steps)
            if len(steps) > 1:
                steps[who]()
            started = time.perf_counter()
            steps[who]()
            seconds[who].append(time.perf_counter() - started)
    return seconds


def peak_flops(side: int = 2048, rounds: int = 10) -> float:
    """Floating-point operations per second of this machine: two per multiply-add, of the best of several float32 matrix products by torch's
    matrix library and by oneDNN, since either may be twice as fast as the other."""
    a, b, c = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    with torch.inference_mode():
        seconds = take_turns([lambda: torch.mm(a, b, out=c), lambda: linear(a, b, None)], rounds)
    return 2 * side**3 / min(map(min, seconds))


def measures_memory() -> bool:
    """Whether this system tells the highest memory a process had, and lets it start anew: Linux does."""
    return sys.platform == "linux"


def peak_memory(contestant: Contestant, threads: int) -> float:
    """MiB that a step needs at most beside the network and its input, found in a fresh process; see `memory_of`."""
    return in_fresh_process(memory_of, contestant, threads)


def memory_of(contestant: Contestant, threads: int) -> float:
    """MiB by which this process grows over three steps: its highest resident memory (VmHWM) less what it held before them.

    The first step has made what is made once (kernels, compiled code) and what it freed has gone back to the system. Only for a process
    whose allocator is the default one and that does nothing else.
    """
    torch.set_num_threads(threads)
    return growth(contestant.step())


def growth(step: Step) -> float:
    """MiB by which this process grows over three steps, see `memory_of`."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's; other C libraries keep less
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew, at what is in use now
    before = _resident("VmRSS")
    for _ in range(3):
        step()
    return max(_resident("VmHWM") - before, 0) / 1024


def _resident(field: str) -> int:
    """KiB of memory of this process: VmRSS now, VmHWM at most so far."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def in_fresh_process(function: Callable[..., T], *arguments: object, limit: float | None = None) -> T:
    """What a function of a module returns in a new process.

    TimeoutError after ``limit`` seconds, MemoryError when the system killed it, ChildFailed when it failed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, function, *arguments), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            raise TimeoutError(f"stopped after {limit:g} s")
        done, answer = receiver.recv()
        child.join(10)  # time to put away what it has, such as the workers of torch.compile
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGKILL:
            raise MemoryError("killed by the system, most likely for lack of memory") from None
        raise ChildFailed(f"its process ended with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        receiver.close()
    if not done:
        raise answer if isinstance(answer, UserError) else ChildFailed(answer)
    return answer


def _answer(sender: Connection, function: Callable[..., object], *arguments: object) -> None:
    try:
        sender.send((True, function(*arguments)))
    except UserError as error:
        sender.send((False, error))
    except Exception as error:  # noqa: BLE001 - raised again by the process that asked
        sender.send((False, f"{type(error).__name__}: {error}"))


def busy_share(seconds: float = 0.5, stat: Path = Path("/proc/stat")) -> float | None:
    """Share of the time of all cores, from 0 to 1, that something takes while this process waits for ``seconds``.

    Where the system doesn't count that, the load average of the last minute per core, in which work of this very process may be; None where
    it tells neither.
    """
    if not stat.is_file():
        return min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0) if hasattr(os, "getloadavg") else None
    idle, total = _clock_ticks(stat)
    time.sleep(seconds)
    idle_later, total_later = _clock_ticks(stat)
    return 1 - (idle_later - idle) / max(total_later - total, 1)


def _clock_ticks(stat: Path) -> tuple[int, int]:
    """Ticks of all cores since the start: idle ones and those spent waiting for a disk; and all, those lent to other machines too."""
    ticks = list(map(int, stat.read_text().splitlines()[0].split()[1:9]))
    return ticks[3] + ticks[4], sum(ticks)


def busy_machine(share: float | None) -> list[str]:
    """A warning when other work may have disturbed the measurement, judged by `busy_share` right before it."""
    if share is None or share < BUSY:
        return []
    return [
        f"The machine was busy right before the measurement: {share:.0%} of its {os.cpu_count()} cores' time. "
        "Times may be too long; repeat when it is quiet."
    ]
