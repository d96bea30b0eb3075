"""How time and peak memory of backbones grow with the size of a picture: one point, one fresh process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pyramidvit.bench.compare import describe_machine
from pyramidvit.bench.measure import (
    ChildFailed,
    Contestant,
    Named,
    busy_machine,
    busy_share,
    check_alike,
    growth,
    in_fresh_process,
    measures_memory,
)
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.errors import UserError
from pyramidvit.runtime import numerics

NETWORKS = ("pvt_small", "pvt_v2_b2", "pvt_v2_b2_li", "timm/vit_small_patch16_224", "timm/swin_tiny_patch4_window7_224")
"""About 20 to 25 million parameters each."""

SIZES = (224, 320, 448, 640, 768, 896, 1024)
"""Sides of square pictures in pixels."""

ENOUGH = 2.0
"""Seconds of repeated steps that a point aims at, within 3 to 20 steps."""


@dataclass(frozen=True)
class Point:
    """One network at one size: median seconds and peak memory in MiB, or why there is none."""

    name: str
    size: int
    seconds: float | None = None
    memory_mib: float | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class Scaling:
    """All points, network by network, sizes rising."""

    points: tuple[Point, ...]
    batch: int
    train: bool
    machine: dict[str, Any]
    warnings: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(point.name for point in self.points))

    def of(self, name: str) -> list[Point]:
        """The points of one network that were measured."""
        return [point for point in self.points if point.name == name and point.skipped is None]

    def to_json(self) -> dict[str, Any]:
        """Seconds and MiB of every point; one that was skipped says why."""
        what = "forward and backward" if self.train else "forward"
        about = {"what": what, "batch": self.batch, "machine": self.machine}
        return about | {"points": [vars(point) for point in self.points], "warnings": list(self.warnings)}


def measure_scaling(
    names: Sequence[str] = NETWORKS,
    sizes: Sequence[int] = SIZES,
    *,
    batch: int = 1,
    train: bool = False,
    threads: int | None = None,
    limit: float = 120.0,
    report: Callable[[Point], None] = lambda _: None,
) -> Scaling:
    """Measure backbones on square pictures of rising size.

    A point that takes longer than ``limit`` seconds, its process's start included, or more memory than there is, is given up, and so are
    the larger sizes of its network.
    UserError for an unknown name, pictures beside clips, or a size below 32, before anything is measured.
    """
    if small := [size for size in sizes if size < 32]:
        raise UserError(f"Sizes are at least 32 pixels, got --sizes {small[0]}.")
    shapes = {name: Named(name, features=True).shape(None, batch) for name in names}
    check_alike(shapes)
    busy = busy_share()
    with numerics(threads, deterministic=False):
        machine = describe_machine(busy)
    points: list[Point] = []
    too_large: dict[str, int] = {}
    for size in sorted(sizes):  # size by size, so that all networks meet the same moods of the machine
        for name in names:
            contestant = Contestant(name, Named(name, features=True), (*shapes[name][:-2], size, size), train=train)
            try:
                if name in too_large:
                    raise ChildFailed(f"not tried, since {too_large[name]} was too large")
                point = Point(name, size, *in_fresh_process(time_and_memory, contestant, machine["threads"], limit=limit))
            except (TimeoutError, MemoryError) as error:
                too_large[name] = size
                point = Point(name, size, skipped=str(error))
            except (ChildFailed, UserError) as error:
                point = Point(name, size, skipped=str(error))
            report(point)
            points.append(point)
    ordered = tuple(point for name in names for point in points if point.name == name)
    return Scaling(ordered, batch, train, machine, tuple(busy_machine(busy)))


def time_and_memory(contestant: Contestant, threads: int) -> tuple[float, float | None]:
    """Median seconds of a step and the MiB it needs, of a process that does nothing else."""
    torch.set_num_threads(threads)
    step = contestant.step()
    memory = growth(step) if measures_memory() else None  # first: it needs the default allocator
    keep_freed_memory()
    step()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < ENOUGH and len(seconds) < 20):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds)), memory
