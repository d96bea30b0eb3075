"""What a person sees of a training: a bar with the time left on a terminal, plain lines elsewhere; log.txt and TensorBoard beside it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyramidvit.errors import UserError
from pyramidvit.runs import RunFolder

PLAIN_SECONDS = 30.0
BAR_SECONDS = 0.5


class Display:
    """Shows steps and says lines; a context manager, because a bar must be taken down. Without a run nothing is written."""

    def __init__(self, console: Console, run: RunFolder | None, *, total_steps: int, step: int, tensorboard: bool) -> None:
        self.console, self.run, self.total_steps = console, run, total_steps
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False, compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.row = self.bar.add_task("", total=total_steps, completed=step)
        self.every = BAR_SECONDS if console.is_terminal else PLAIN_SECONDS
        self.events = _event_writer(run, step) if tensorboard and run else None
        self.samples = 0
        self.first_step = step
        self.started = self.shown = time.perf_counter()
        self.paused = 0.0
        self.pause_began: float | None = None

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()
        if self.events is not None:
            self.events.close()

    def say(self, message: str) -> None:
        """A line on the console and in log.txt."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)
        self.log(message)

    def log(self, message: str) -> None:
        """A line in log.txt only."""
        if self.run is not None:
            self.run.log(message)

    @property
    def samples_per_second(self) -> float:
        """Trained samples per second since the start, without pauses."""
        until = time.perf_counter() if self.pause_began is None else self.pause_began
        return self.samples / max(1e-9, until - self.started - self.paused)

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Time spent inside, evaluating or saving, is no part of the speed."""
        self.pause_began = time.perf_counter()
        try:
            yield
        finally:
            self.paused += time.perf_counter() - self.pause_began
            self.pause_began = None

    def step(self, step: int, epoch: float, samples: int, lr: float, loss: Callable[[], float]) -> None:
        """After every step; ``loss`` is asked only when it is shown, since reading it makes the device wait."""
        self.samples += samples
        now = time.perf_counter()
        if now - self.shown < self.every and step < self.total_steps:
            return
        self.shown = now
        value, speed = loss(), self.samples_per_second
        text = f"epoch {epoch:.2f}  loss {value:.4f}  lr {lr:.2e}  {speed:.1f} samples/s"
        self.bar.update(self.row, completed=step, description=text)
        if not self.console.is_terminal and step < self.total_steps:
            left = (self.total_steps - step) * (now - self.started) / max(1, step - self.first_step)
            self.say(f"step {step}/{self.total_steps}  {text}  {duration(left)} left")
        self.numbers(step, {"loss": value, "lr": lr, "samples_per_second": speed}, "step")

    def epoch(self, row: Mapping[str, Any], epochs: int, is_best: bool) -> None:
        """After every epoch, with its row of metrics.csv."""
        values = {name: value for name, value in row.items() if name not in ("epoch", "step")}
        text = "  ".join(f"{name} {value:.2e}" if name == "lr" else f"{name} {value:.4f}" for name, value in values.items())
        took = f"{self.samples_per_second:.1f} samples/s  {duration(time.perf_counter() - self.started)}"
        self.say(f"epoch {row['epoch']}/{epochs}  {text}  {took}{'  best so far' if is_best else ''}")
        self.numbers(row["step"], values, "epoch")

    def numbers(self, step: int, values: Mapping[str, Any], group: str) -> None:
        """Scalars for TensorBoard."""
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(f"{group}/{name}", value, step)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 20 s, 2 h 05 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def _event_writer(run: RunFolder, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
    except ImportError:
        raise UserError("TensorBoard events need one more package: pip install 'pyramidvit[tensorboard]'") from None
    return SummaryWriter(str(run.path / "tensorboard"), purge_step=step or None)
