"""The pictures of `pyramidvit bench`."""

import io
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from pyramidvit.bench.compare import Comparison, Row
from pyramidvit.bench.scaling import Point, Scaling
from pyramidvit.draw.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RED, TRACK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, GREEN, PURPLE, RED, ORANGE)
LABEL_GAP = 0.062
"""Least distance of two labels beside lines, as a share of the height of the panel."""


def comparison_picture(result: Comparison) -> bytes:
    """PNG: a bar to the median and a dot for every round, and memory beside it where it was measured."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    memory = any(row.memory_mib is not None for row in result.rows)
    height = 0.42 * len(result.rows) + 1.25
    figure = Figure((9.5 if memory else 6.5, height), dpi=150, facecolor=PAPER, layout="constrained")
    panels = figure.subplots(1, 2 if memory else 1, sharey=True, squeeze=False, width_ratios=(3, 2) if memory else None)[0]
    _bars(panels[0], result.rows, [row.p50 * 1e3 for row in result.rows], "ms", result.references)
    for place, row in enumerate(result.rows):
        panels[0].plot(np.array(row.seconds) * 1e3, np.full(len(row.seconds), place), "|", color=INK, markersize=9, alpha=0.6)
    panels[0].set_xlabel(f"milliseconds per {'forward and backward' if result.train else 'forward'}: bar median, ticks rounds")
    # All rounds in view, unless a few odd ones would squeeze the rest.
    panels[0].set_xlim(0, 1.3 * max(min(max(row.seconds), 2 * row.p50) for row in result.rows) * 1e3)
    if memory:
        _bars(panels[1], result.rows, [row.memory_mib or 0.0 for row in result.rows], "MiB", result.references)
        panels[1].set_xlim(0, 1.3 * max(row.memory_mib or 0.0 for row in result.rows) or 1)
        panels[1].set_xlabel("peak memory beside weights and input, MiB")
    panels[0].set_yticks(range(len(result.rows)), [_caption(row) for row in result.rows], color=INK, size=9)
    panels[0].invert_yaxis()
    return _png(figure)


def _bars(axes: "Axes", rows: Sequence[Row], values: Sequence[float], unit: str, references: Sequence[str]) -> None:
    colours = [MUTED if row.label in references else BLUE for row in rows]
    axes.barh(range(len(rows)), values, 0.62, color=colours, alpha=0.85)
    right = axes.get_yaxis_transform()
    for place, value in enumerate(values):
        axes.text(
            0.995,
            place,
            f"{value:,.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}",
            transform=right,
            ha="right",
            va="center",
            size=9,
        )
    _plain(axes)
    axes.grid(axis="y", visible=False)


def _caption(row: Row) -> str:
    return f"{row.label}\n{'x'.join(map(str, row.shape))}"


def scaling_picture(result: Scaling) -> bytes:
    """PNG of two panels with logarithmic axes, time and memory over the side of the picture; a line per network, named at its end."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure((12.5, 5.4), dpi=150, facecolor=PAPER)
    figure.subplots_adjust(left=0.05, right=0.865, bottom=0.16, top=0.87, wspace=0.5)
    time_axes, memory_axes = figure.subplots(1, 2)
    what = "forward and backward" if result.train else "forward"
    _lines(time_axes, result, f"seconds per {what}", lambda point: point.seconds)
    _lines(memory_axes, result, "peak memory beside weights and input, MiB", lambda point: point.memory_mib)
    threads, batch = result.machine["threads"], result.batch
    figure.suptitle(
        f"Backbones on larger pictures: {what}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}",
        color=INK,
        size=11,
        x=0.05,
        ha="left",
    )
    skipped = [f"{point.name} at {point.size}" for point in result.points if point.skipped]
    if skipped:
        more = f" and {len(skipped) - 4} more" if len(skipped) > 4 else ""
        figure.text(0.05, 0.02, f"Not measured: {', '.join(skipped[:4])}{more}.", color=MUTED, size=8)
    return _png(figure)


def _lines(axes: "Axes", result: Scaling, title: str, value: Callable[[Point], float | None]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: PLC0415

    axes.set_xscale("log")
    axes.set_yscale("log")
    ends: dict[str, tuple[float, float, str]] = {}
    styles = zip(cycle(COLOURS), cycle("osD^v"), cycle(("-", "-", "-", "-", "-", "--", "--", "--", "--", "--")), strict=False)
    for name, (colour, marker, dash) in zip(result.names, styles, strict=False):
        points = [(point.size, y) for point in result.of(name) if (y := value(point)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), dash, color=colour, marker=marker, markersize=5, linewidth=1.8)
            ends[name] = (*points[-1], colour)
    sizes = sorted({point.size for point in result.points})
    axes.set_xticks(sizes, [f"{size}²" for size in sizes], rotation=40 if len(sizes) > 5 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("pixels of the square picture")
    axes.set_title(title, size=9.5, color=INK, loc="left")
    _plain(axes)
    if ends:
        _name_ends(axes, ends)
    else:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=MUTED)


def _name_ends(axes: "Axes", ends: dict[str, tuple[float, float, str]]) -> None:
    """Each name at the right, as near to the end of its line as the others let it; ends are (x, y, colour)."""
    low, high = np.log(axes.get_ylim())
    order = sorted(ends, key=lambda name: ends[name][1])
    heights = spread_out([float((np.log(ends[name][1]) - low) / (high - low)) for name in order], LABEL_GAP)
    for name, height in zip(order, heights, strict=True):
        x, y, colour = ends[name]
        axes.annotate(
            name.replace("_patch4_window7_224", "").replace("_patch16_224", ""),
            (x, y),
            (1.05, height),
            textcoords="axes fraction",
            va="center",
            size=9,
            color=colour,
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "color": colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 3},
            annotation_clip=False,
        )


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Rising places from 0 to 1 moved apart to at least ``gap``, up where there is room and else down."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    ceiling = 1.0
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved


def _plain(axes: "Axes") -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=MUTED, labelsize=8, length=0, which="both")
    axes.grid(color=TRACK)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=INK, size=9)


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
