"""`pyramidvit bench`: how fast networks are on this machine, and what they need."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.status import Status
from rich.table import Table

from pyramidvit.bench import scaling as growing
from pyramidvit.bench.compare import Comparison, compare
from pyramidvit.bench.measure import Backend, Contestant, Named, check_alike
from pyramidvit.bench.picture import comparison_picture, scaling_picture
from pyramidvit.bench.scaling import Point, Scaling
from pyramidvit.errors import UserError
from pyramidvit.files import write_bytes
from pyramidvit.verbs import AT_LEAST_1, Json, print_json
from pyramidvit.verbs.inspect import InputShape

Batch = Annotated[int, Parameter(name=["--batch", "-b"]), AT_LEAST_1]
Threads = Annotated[int | None, Parameter(validator=Number(gte=1), show_default=False)]
Several = Parameter(consume_multiple=True, negative="", show_default=lambda values: " ".join(map(str, values)) or "none")

METHOD = """\
All networks are warmed up and take turns, round by round, in one process, on random pictures and the CPU: a step untimed, since threads of
the one before still wait busily for a while, then one timed. Peak memory is what a step needs beside weights and input: how far the
resident memory of a fresh process rises in three steps (VmHWM, on Linux). The peak is that of the best of several products of two
2048x2048 matrices. A warning comes when something else takes more than 15 % of the cores' time in half a second right before the
measurement; where the system doesn't count that, when the load average does."""

bench = App(name="bench", help_epilogue=METHOD, default_parameter=Parameter(negative_iterable=()))


@bench.default
def compare_networks(
    *names: str,
    shape: InputShape | None = None,
    batch: Batch = 1,
    threads: Threads = None,
    train: Annotated[bool, Parameter(negative="")] = False,
    features: Annotated[bool, Parameter(negative="")] = False,
    backend: Annotated[Sequence[Backend], Several] = ("torch",),
    vs: Annotated[Sequence[str], Several] = (),
    rounds: Annotated[int, Parameter(validator=Number(gte=3))] = 20,
    json: Json = False,
    out: Path | None = None,
) -> int:
    """Time networks side by side on the CPU, on random pictures: latency, throughput, peak memory, share of the machine's peak.

    Args:
        names: Networks; `pyramidvit models` lists the names.
        batch: Pictures or clips per step.
        threads: Threads to compute with; torch's choice if not given.
        train: Time forward and backward (without optimiser) instead of the forward alone.
        features: Time the bare backbone, which returns maps, instead of the classifier.
        backend: What runs the networks; several for each network beside itself.
        vs: Networks to compare with, such as timm/pvt_v2_b2. If none are given, the first of several is the measure.
        rounds: How often each network gets its turn.
        json: Print the numbers as JSON, nothing else.
        out: PNG file to draw the result in.
    """
    if not names:
        raise UserError("Name at least one network: pyramidvit bench pvt_v2_b0 (`pyramidvit models` lists all).")
    _check_picture(out)
    contestants = [
        Contestant(label(name, one, backend), Named(name, features), Named(name, features).shape(shape and shape.size, batch), one, train)
        for name in dict.fromkeys((*names, *vs))
        for one in dict.fromkeys(backend)
    ]
    check_alike({contestant.label: contestant.shape for contestant in contestants})
    against = vs or ((names[0],) if len(contestants) > 1 else ())
    references = [label(name, one, backend) for name in dict.fromkeys(against) for one in (dict.fromkeys(backend) if vs else backend[:1])]
    with _status() as status:
        result = compare(contestants, references, rounds=rounds, threads=threads, report=status.update)
    if json:
        print_json(result.to_json())
    else:
        table, console = comparison_table(result), Console(highlight=False)
        needed = console.measure(table).maximum  # with many ratios more than a terminal has; cut off, they would be lost
        console.print(table, width=max(needed, console.width), crop=False)
    _finish(result.warnings, out, comparison_picture(result) if out else b"")
    return 0


@bench.command(name="scaling")
def measure_scaling(
    *names: str,
    sizes: Annotated[Sequence[int], Several] = growing.SIZES,
    batch: Batch = 1,
    threads: Threads = None,
    train: Annotated[bool, Parameter(negative="")] = False,
    limit: Annotated[float, Parameter(validator=Number(gt=0))] = 120.0,
    json: Json = False,
    out: Path | None = None,
) -> int:
    """Show how time and peak memory of backbones grow with the size of the picture.

    Every point is measured in a fresh process. The last column says how often more the largest size needs than the smallest.

    Args:
        names: Networks; PVT, PVT v2 and its linear variant beside timm's ViT-S and Swin-T if none are given.
        sizes: Sides of the square pictures, in pixels.
        batch: Pictures or clips per step.
        threads: Threads to compute with; torch's choice if not given.
        train: Measure forward and backward instead of the forward alone.
        limit: Seconds for one point; a network that needs longer is not tried on larger pictures, which is said.
        json: Print the numbers as JSON, nothing else.
        out: PNG file to draw the curves in.
    """
    _check_picture(out)
    chosen = tuple(dict.fromkeys(names)) or growing.NETWORKS
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    result = growing.measure_scaling(
        chosen,
        tuple(dict.fromkeys(sizes)),
        batch=batch,
        train=train,
        threads=threads,
        limit=limit,
        report=lambda point: progress.print(_point_line(point), markup=False),
    )
    if json:
        print_json(result.to_json())
    else:
        Console(highlight=False).print(scaling_table(result))
    _finish(result.warnings, out, scaling_picture(result) if out else b"")
    if all(point.skipped for point in result.points):
        raise UserError("Nothing was measured: every point was skipped, for the reasons above. Try smaller --sizes or a longer --limit.")
    return 0


def label(name: str, backend: str, backends: Iterable[str]) -> str:
    """The name of a contestant; its backend is in it where there are several."""
    return name if len(set(backends)) == 1 else f"{name} · {backend}"


def comparison_table(result: Comparison) -> Table:
    """Medians and what follows from them, a line per contestant."""
    threads, shapes = result.machine["threads"], dict.fromkeys("x".join(map(str, row.shape)) for row in result.rows)
    what = "Forward and backward" if result.train else "Forward"
    several = len(result.references) > 1
    ratios = {f"ratio {number + 1}" if several else "ratio": reference for number, reference in enumerate(result.references)}
    notes = [
        f"{threads} thread{'s' if threads > 1 else ''}, {len(result.rows[0].seconds)} rounds; the peak: {result.peak / 1e9:.0f} GFLOP/s.",
        "MiB: peak memory beside weights and input.",
        *(f"{column.capitalize()}: times as fast as {reference}." for column, reference in ratios.items()),
    ]
    table = Table(title=f"{what}, {' and '.join(shapes)}", caption="\n".join(notes), box=SIMPLE_HEAD, caption_justify="left")
    table.add_column("network", overflow="fold", min_width=min(max(len(row.label) for row in result.rows), 36))
    for column in ("ms (p50)", "p90", "per s", "MiB", "of peak", *ratios):
        table.add_column(column, justify="right")
    for row in result.rows:
        table.add_row(
            row.label,
            f"{row.p50 * 1e3:,.1f}",
            f"{row.p90 * 1e3:,.1f}",
            f"{row.throughput:,.1f}",
            "?" if row.memory_mib is None else f"{row.memory_mib:,.0f}",
            f"{row.share_of(result.peak):.0%}",
            *(f"{result.ratio(row, reference):.2f}" for reference in result.references),
        )
    return table


def scaling_table(result: Scaling) -> Table:
    """Time and memory of every network at every size, and how often more the largest needs than the smallest."""
    sizes = sorted({point.size for point in result.points})
    what = "Forward and backward" if result.train else "Forward"
    table = Table(title=f"{what}, batch {result.batch}: seconds, and MiB beside weights and input", box=SIMPLE_HEAD)
    table.add_column("network", overflow="fold")
    for size in sizes:
        table.add_column(f"{size}²", justify="right", no_wrap=True)
    table.add_column("growth", justify="right", no_wrap=True)
    for name in result.names:
        points = [point for point in result.points if point.name == name]
        time, memory = _growth(result.of(name))
        table.add_row(name, *(f"{_seconds(point)}\n{_memory(point)}" for point in points), f"{time}\n{memory}", end_section=True)
    return table


def _seconds(point: Point) -> str:
    return "skipped" if point.seconds is None else f"{point.seconds:.3f}"


def _memory(point: Point) -> str:
    return "" if point.memory_mib is None else f"{point.memory_mib:,.0f}"


def _growth(points: Sequence[Point]) -> tuple[str, str]:
    """Factors of time and memory from the smallest to the largest measured size."""
    values = [(points[0].seconds, points[-1].seconds), (points[0].memory_mib, points[-1].memory_mib)] if len(points) > 1 else []
    time, memory = (f"x {last / first:.1f}" if first and last else "" for first, last in values or [(None, None)] * 2)
    return time, memory


def _point_line(point: Point) -> str:
    if point.skipped:
        return f"{point.name} at {point.size}: skipped, {point.skipped}"
    return f"{point.name} at {point.size}: {_seconds(point)} s, {_memory(point) or '?'} MiB"


def _status() -> AbstractContextManager[Status]:
    return Console(stderr=True, highlight=False).status("building")


def _check_picture(out: Path | None) -> None:
    """Tell before a long measurement that its picture can't be written."""
    if out is None:
        return
    if out.suffix.lower() != ".png":
        raise UserError(f"The picture is a PNG file, got --out {out}; name it {out.with_suffix('.png')}.")
    if not out.parent.is_dir():
        raise UserError(f"Can't write {out}: the folder {out.parent} does not exist. Make it first.")


def _finish(warnings: Iterable[str], out: Path | None, picture: bytes) -> None:
    """Warnings, then the picture: what was measured is on the screen already, should it fail."""
    messages: Any = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in warnings:
        messages.print(f"warning: {warning}", markup=False)
    if out is not None:
        write_bytes(out, picture)
        messages.print(f"Picture: {out}", markup=False)
