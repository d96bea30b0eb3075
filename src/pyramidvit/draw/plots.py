"""Plots of a run as PNG files: the confusion matrix, curves over epochs."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyramidvit.draw.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RED, TRACK, shorten, typeset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


class Confusion(Protocol):
    """What confusion_picture needs: names in label order, and counts (K, K), true classes down and predicted ones across."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def confusion(self) -> np.ndarray: ...


def confusion_picture(result: Confusion) -> bytes:
    """PNG of the confusion matrix: shades are shares of the true class (each row adds up to 1), numbers are counts.

    Up to 25 classes have numbers in the cells and up to 60 have their names at the sides; with more, the sides count classes from 0.
    """
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.colors import PowerNorm  # noqa: PLC0415

    counts, K = result.confusion, len(result.classes)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_where(np.broadcast_to(totals == 0, counts.shape), counts / np.maximum(totals, 1))
    side = min(max(0.5 * K, 2), 0.16 * K + 4, 9)  # inches
    figure, (axes,) = _figure(side + 3, side + 2, 1)
    shades = colormaps["Blues"].with_extremes(bad=TRACK)
    mesh = axes.imshow(shares, shades, PowerNorm(0.6, 0, 1))  # the power keeps rare mistakes visible
    if K <= 60:
        size = min(9.0, 50 * side / K)
        _name_ticks(axes.yaxis, result.classes, size, 0)
        _name_ticks(axes.xaxis, result.classes, size, 90 if K > 3 else 0)
    if K <= 25:
        for true, predicted in np.argwhere(counts):
            ink, words = PAPER if shares[true, predicted] > 0.4 else INK, short_count(int(counts[true, predicted]))
            axes.text(predicted, true, words, ha="center", va="center", color=ink, size=min(9.0, 28 * side / K))
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    bar = figure.colorbar(mesh, ax=axes, shrink=min(0.8, 3 / side), aspect=16, format="{x:.0%}", ticks=(0, 0.05, 0.2, 0.5, 1))
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    bar.outline.set_visible(False)
    bar.set_label("share of the true class", size=8, color=MUTED)
    return _png(figure)


def short_count(count: int) -> str:
    """A count in few characters: 9999, 12k, 3.4M."""
    if count < 10_000:
        return str(count)
    power = (len(str(count)) - 1) // 3
    number = count / 1000**power
    return f"{number:.{0 if number >= 10 else 1}f}{'kMGTPE'[power - 1]}"


class PrecisionRecall(Protocol):
    """What precision_recall_picture needs: names in label order, and precision (K, R) at evenly spaced recalls, NaN for an absent class."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def curves(self) -> np.ndarray: ...


def precision_recall_picture(result: PrecisionRecall) -> bytes:
    """PNG of precision over recall: a thick line for the mean over classes, thin ones for classes, AP at that overlap beside the name.

    With more than six classes the three best and the three worst are named, and the others are grey.
    """
    curves = result.curves
    there = np.flatnonzero(~np.isnan(curves).any(axis=1))
    if not len(there):
        raise ValueError("There is no curve to draw: no class has an object.")
    recalls, areas = np.linspace(0, 1, curves.shape[1]), curves[there].mean(axis=1)
    order = there[np.argsort(-areas, kind="stable")]
    named = list(order) if len(order) <= 6 else [*order[:3], *order[-3:]]
    figure, (axes,) = _figure(6, 3.6, 1)
    for k in set(order.tolist()) - set(named):
        axes.plot(recalls, curves[k], color="#c3c9d0", linewidth=1)
    entries = list[tuple[Any, str]]()  # matplotlib leaves names that begin with "_" out of its own legend
    for k, colour, dash in zip(named, (BLUE, GREEN, ORANGE, PURPLE, RED, MUTED), ("-", "--", "-.", ":", "--", "-."), strict=False):
        (curve,) = axes.plot(recalls, curves[k], dash, color=colour, linewidth=1.3)
        entries.append((curve, f"{shorten(result.classes[k], 24)} {curves[k].mean():.1%}"))
    if len(order) > 1:
        (curve,) = axes.plot(recalls, curves[there].mean(axis=0), color=INK, linewidth=2.4)
        entries.append((curve, f"mean of {len(order)} {areas.mean():.1%}"))
    axes.set(xlim=(0, 1), ylim=(0, 1.03), xlabel="recall", ylabel="precision")
    axes.grid(color=TRACK)
    _name_lines(axes, entries)
    return _png(figure)


def curves_picture(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """PNG of a run's curves over epochs, from the rows of metrics.jsonl: losses, shares from 0 to 1 such as top1, learning rate.

    Names with "loss" in them or of training are losses and ``lr`` is the learning rate; of the others those are drawn whose values are all
    from 0 to 1.
    A row may lack a name, for instance in epochs without evaluation.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("epoch", "step")]
    curves = {name: [(row["epoch"], row[name]) for row in rows if isinstance(row.get(name), int | float)] for name in names}
    losses = {name: points for name, points in curves.items() if ("loss" in name or name.startswith("train_")) and points}
    rate = {name: points for name, points in curves.items() if name == "lr" and points}
    others = {name: points for name, points in curves.items() if name not in losses and name not in rate and points}
    shares = {name: points for name, points in others.items() if all(0 <= value <= 1 for _, value in points)}
    panels = [(title, group) for title, group in (("loss", losses), ("share", shares), ("learning rate", rate)) if group]
    if not panels:
        raise ValueError("There is no curve to draw: the rows hold no loss, no share and no learning rate.")
    figure, all_axes = _figure(8.5, 2.0 * len(panels) + 0.3, len(panels))
    for axes, (title, group) in zip(all_axes, panels, strict=True):
        for (name, points), colour, dash in zip(group.items(), cycle((BLUE, RED, GREEN, PURPLE, ORANGE)), cycle(("-", "--", "-.", ":"))):
            places, values = zip(*points, strict=True)
            axes.plot(places, values, dash, color=colour, label=name, linewidth=1.6, marker="o", markersize=4 if len(points) < 25 else 0)
        axes.set_ylabel(title)
        axes.grid(color=TRACK)
        if group is not rate:
            axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0)
    epochs = [row["epoch"] for row in rows]
    all_axes[-1].set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    all_axes[-1].set_xlabel("epoch")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return _png(figure)


def _figure(width: float, height: float, panels: int) -> "tuple[Figure, list[Axes]]":
    """A figure in inches with panels above each other; free of pyplot, whose state is shared by the whole process."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure((width, height), dpi=150, facecolor=PAPER, layout="constrained")
    columns = figure.subplots(panels, sharex=True, squeeze=False)[:, 0]
    for axes in columns:
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=MUTED, labelsize=8, length=0)
        axes.xaxis.label.set(color=INK, size=9)
        axes.yaxis.label.set(color=INK, size=9)
    return figure, list(columns)


def _name_ticks(axis: "Axis", names: Sequence[str], size: float, turn: float) -> None:
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415

    texts, paths = zip(*(typeset(shorten(name, 24)) for name in names), strict=True)
    axis.set_ticks(range(len(names)), texts, rotation=turn, parse_math=False)
    for label, path in zip(axis.get_ticklabels(), paths, strict=True):
        label.set_fontproperties(FontProperties(fname=path, size=size))


def _name_lines(axes: "Axes", entries: Sequence[tuple[Any, str]]) -> None:
    """A legend beside the axes; any name can be drawn."""
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415

    texts, paths = zip(*(typeset(name) for _, name in entries), strict=True)
    handles = [handle for handle, _ in entries]
    legend = axes.legend(
        handles, texts, title="AP, overlap 0.5", title_fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    for text, path in zip(legend.get_texts(), paths, strict=True):
        text.set_parse_math(False)
        text.set_fontproperties(FontProperties(fname=path, size=8))


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.15)
    return buffer.getvalue()
