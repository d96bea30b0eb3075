"""Networks side by side in one process: latency, throughput, share of the machine's peak, memory, and how often as fast as others."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pyramidvit.bench.measure import (
    Contestant,
    busy_machine,
    busy_share,
    measures_memory,
    peak_flops,
    peak_memory,
    take_turns,
)
from pyramidvit.runtime import numerics

NOISY = 0.25
"""Spread between rounds above which a time is called noisy."""


@dataclass(frozen=True)
class Row:
    """What was measured of one contestant: seconds of every round, multiply-adds of a step, peak memory in MiB (None: not measured)."""

    label: str
    backend: str
    shape: tuple[int, ...]
    seconds: tuple[float, ...]
    macs: int
    memory_mib: float | None

    @property
    def p50(self) -> float:
        """Median seconds of a step."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p90(self) -> float:
        """Seconds that nine of ten steps stay within."""
        return float(np.percentile(self.seconds, 90))

    @property
    def spread(self) -> float:
        """How far apart the rounds are: from the 10th to the 90th percentile, as a share of the median."""
        return (self.p90 - float(np.percentile(self.seconds, 10))) / self.p50

    @property
    def throughput(self) -> float:
        """Pictures or clips per second."""
        return self.shape[0] / self.p50

    def share_of(self, peak: float) -> float:
        """Share of ``peak`` floating-point operations per second that the network's own products reach."""
        return 2 * self.macs / self.p50 / peak


@dataclass(frozen=True)
class Comparison:
    """All rows, the machine, and what makes the numbers doubtful. ``references`` are labels that the ratios are taken to."""

    rows: tuple[Row, ...]
    references: tuple[str, ...]
    train: bool
    peak: float
    machine: dict[str, Any]
    warnings: tuple[str, ...]

    def ratio(self, row: Row, reference: str) -> float:
        """How often as fast as the reference a row is, by their medians."""
        return next(other.p50 for other in self.rows if other.label == reference) / row.p50

    def to_json(self) -> dict[str, Any]:
        """Seconds, MiB, shares and ratios; with every round."""
        rows = [
            {
                "name": row.label,
                "backend": row.backend,
                "shape": list(row.shape),
                "p50": row.p50,
                "p90": row.p90,
                "per_second": row.throughput,
                "macs": row.macs,
                "share_of_peak": row.share_of(self.peak),
                "memory_mib": row.memory_mib,
                "spread": row.spread,
                "ratios": {reference: self.ratio(row, reference) for reference in self.references},
                "seconds": list(row.seconds),
            }
            for row in self.rows
        ]
        what = "forward and backward" if self.train else "forward"
        about = {"what": what, "peak_gflops": self.peak / 1e9, "machine": self.machine}
        return about | {"rows": rows, "warnings": list(self.warnings)}


def compare(
    contestants: Sequence[Contestant],
    references: Sequence[str] = (),
    *,
    rounds: int = 20,
    threads: int | None = None,
    memory: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measure contestants of different labels, which all train or all don't; ``references`` are labels among theirs."""
    with numerics(threads, deterministic=False):
        report("the machine's peak")
        peak = peak_flops()
        memories: list[float | None] = []
        for contestant in contestants:  # before the networks of this process fill the memory
            report(f"memory of {contestant.label}")
            memories.append(peak_memory(contestant, torch.get_num_threads()) if memory and measures_memory() else None)
        steps = [contestant.step() for contestant in contestants]
        busy = busy_share()
        seconds = take_turns(steps, rounds, report=report)
        machine = describe_machine(busy)
        peak = max(peak, peak_flops())
    rows = tuple(
        Row(one.label, one.backend, one.shape, tuple(times), one.macs(), used)
        for one, times, used in zip(contestants, seconds, memories, strict=True)
    )
    warnings = busy_machine(busy) + noisy_rows(rows)
    return Comparison(rows, tuple(references), contestants[0].train, peak, machine, tuple(warnings))


def noisy_rows(rows: Sequence[Row]) -> list[str]:
    """A warning when rounds of one contestant differ much."""
    worst = max(rows, key=lambda row: row.spread)
    if worst.spread <= NOISY:
        return []
    times = f"{np.percentile(worst.seconds, 10) * 1e3:.1f} to {worst.p90 * 1e3:.1f} ms"
    return [
        f"The rounds differ much: {worst.label} took {times} (10th to 90th percentile). Small ratios mean nothing; repeat when it is quiet."
    ]


def describe_machine(busy: float | None) -> dict[str, Any]:
    """What a number can't be understood without; ``busy`` is the `busy_share` right before the measurement."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "busy_share": busy,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The name of the processor, as well as the system knows it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except FileNotFoundError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
