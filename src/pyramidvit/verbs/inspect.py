"""`pyramidvit check`, `models` and `info`: look before training."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from pyramidvit import models as networks
from pyramidvit.config import ClipConfig, DataConfig, DenseConfig, HeadConfig, RunConfig, Section, Size, resolve
from pyramidvit.config.presets import SMALL
from pyramidvit.config.sections import TaskName
from pyramidvit.data.findings import render
from pyramidvit.errors import UserError
from pyramidvit.models.cost import Cost, growing_sizes, measure_cost
from pyramidvit.tasks.table import TASKS, infer_task
from pyramidvit.tasks.unused import refuse_unused
from pyramidvit.verbs import Count, Json, Seed, print_json


@Parameter(name="*")
class CheckConfig(Section):
    """What matters for the look at the data."""

    data: DataConfig = DataConfig()
    head: HeadConfig = HeadConfig()
    dense: DenseConfig = DenseConfig()
    clip: ClipConfig = ClipConfig()


def check(
    data: Path,
    *,
    task: TaskName | None = None,
    seed: Seed = 0,
    settings: Annotated[CheckConfig | None, Parameter(name="*")] = None,
    json: Json = False,
) -> int:
    """Look a data set over before training; exit code 2 when training on it would be wrong.

    Args:
        data: Folder with a folder of pictures or videos per class (or train/ and val/ with such folders), or a list of paths and labels.
        task: What will be learned; found out from the data if not given.
        json: Print the findings as JSON, nothing else.
    """
    name = task or infer_task(data)
    config, _ = resolve(
        RunConfig(**(settings or CheckConfig()).model_dump(exclude_unset=True)), preset={"task": name} | SMALL.get(name, {})
    )
    refuse_unused(config)
    config = config.model_copy(update={"loop": config.loop.model_copy(update={"seed": seed})})
    report = TASKS[name].check_data(data, config)
    if json:
        print_json(report.to_json())
    else:
        Console(highlight=False).print(render(report))
    return 0 if report.ok else 2


def models(pattern: str = "*", *, json: Json = False) -> int:
    """List the networks whose name matches a pattern such as 'pvt_v2_*'; 'timm/*' lists those of timm, if it is installed."""
    names = networks.list_models(pattern)
    if not names:
        raise UserError(f"No network matches {pattern!r}. Names: {', '.join(networks.list_models())}, and those of timm as timm/<name>.")
    if json:
        print_json(names)
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        if pattern == "*":
            note = "Beside these, timm/<name> is any backbone of timm, such as timm/resnet50: pyramidvit models 'timm/*' lists them."
            Console(stderr=True, highlight=False).print(note, style="dim")
    return 0


@Parameter(name="*")
class InputShape(Section):
    """What a network is measured on."""

    size: Annotated[Size | None, Parameter(show_default=False)] = None
    """Height x width of the input, such as 512x640; the published size if not given."""


def info(
    name: str,
    *,
    shape: InputShape | None = None,
    in_chans: Count = 3,
    num_classes: Annotated[Count | None, Parameter(show_default=False)] = None,
    growth: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Count parameters, multiply-adds (attention products included) and activation memory of a network.

    Args:
        name: Network; `pyramidvit models` lists the names.
        in_chans: Channels of the input.
        num_classes: Classes of the head; those that the network was published for if not given.
        growth: Show also what twice and four times the height and width cost.
        json: Print the numbers as JSON, nothing else.
    """

    def build() -> networks.Classifier:
        return networks.create_model(name, num_classes=num_classes, in_chans=in_chans)

    cost = measure_cost(name, build, shape.size if shape else None)
    sizes = growing_sizes(cost)[1:] if growth else []
    grown = [cost, *(measure_cost(name, build, size) for size in sizes)]
    if json:
        larger = [{"size": list(c.size), "macs": c.macs, "activation_bytes": c.activation_bytes} for c in grown]
        print_json(cost.to_json() | ({"growth": larger} if growth else {}))
    else:
        console = Console(highlight=False)
        console.print(_cost_table(cost))
        if growth:
            console.print(_growth_table(grown))
    return 0


def _cost_table(cost: Cost) -> Table:
    shape = "x".join(map(str, cost.input_shape))
    thing = "clip" if len(cost.input_shape) == 4 else "picture"
    memory = f"{cost.activation_bytes / 2**20:,.0f} MiB kept per {thing} in a training step"
    table = Table(
        title=f"{cost.model} on {shape}", caption=f"Multiply-adds include the products of attention. Activations in fp32: {memory}."
    )
    for column in ("part", "output", "parameters", "multiply-adds"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part in cost.parts:
        table.add_row(part.name, "x".join(map(str, part.output[1:])), f"{part.params:,}", f"{part.macs / 1e9:.3f} G")
    table.add_section()
    table.add_row("total", "", f"{cost.params:,}", f"{cost.macs / 1e9:.3f} G")
    return table


def _growth_table(costs: Sequence[Cost]) -> Table:
    first, *_ = costs
    table = Table(title=f"{first.model} on larger inputs", caption="In brackets: times the first row.")
    for column in ("size", "pixels", "multiply-adds", "kept in training"):
        table.add_column(column, justify="right")
    for cost in costs:
        (height, width), (H, W) = cost.size, first.size
        macs = f"{cost.macs / 1e9:,.1f} G ({cost.macs / first.macs:.1f})"
        memory = f"{cost.activation_bytes / 2**20:,.0f} MiB ({cost.activation_bytes / first.activation_bytes:.1f})"
        table.add_row(f"{height}x{width}", f"({height * width / (H * W):.0f})", macs, memory)
    return table
