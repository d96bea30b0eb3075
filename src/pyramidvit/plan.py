"""What a run would do, found out without doing it: no memory, nothing written."""

from typing import Any

import torch
from rich.table import Table

from pyramidvit.config import RunConfig
from pyramidvit.data.loader import EpochPlan
from pyramidvit.models.cost import saved_bytes
from pyramidvit.optim import freeze, make_optimizer, param_groups
from pyramidvit.runtime import make_accelerator
from pyramidvit.session import Session, first_notes
from pyramidvit.tasks import Task

BYTES_PER_PARAMETER = 16
"""Weight, gradient and AdamW's two averages in fp32."""


def plan_run(task: Task, config: RunConfig, samples: int | None) -> tuple[Table, list[str]]:
    """The resolved plan as a table, and notes; ``samples`` is the size of the training split, None if there are no data yet."""
    loop, optim = config.loop, config.optim
    accelerator = make_accelerator(loop.device, loop.precision)
    with torch.device("meta"):
        model: Any = task.model()
    frozen = freeze(model, config.model.freeze)
    groups = param_groups(model, weight_decay=optim.weight_decay, layer_decay=optim.layer_decay, decay_all=optim.decay_all)
    optimizer = make_optimizer(groups, optim)
    world = accelerator.num_processes
    plan = EpochPlan(samples or loop.batch_size * world, loop.batch_size, seed=loop.seed, repeats=config.augment.repeats, world=world)
    session = Session(task, config, accelerator, model, model, optimizer, optimizer, None, plan, [])
    table = Table(show_header=False, title=f"{config.model.name}, {len(task.classes)} classes: the plan")
    for row in (*_network_rows(task, model, config, groups), *_schedule_rows(session, samples)):
        table.add_row(*row)
    return table, first_notes(session, frozen) if samples else first_notes(session, frozen)[:1]


def _network_rows(task: Task, model: Any, config: RunConfig, groups: list[dict[str, Any]]) -> list[tuple[str, str]]:
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = [(group["weight_decay"], group["lr_scale"], sum(p.numel() for p in group["params"])) for group in groups]
    decayed = sum(count for decay, _, count in trained if decay)
    scales = [scale for _, scale, _ in trained]
    network = (BYTES_PER_PARAMETER + (4 if config.loop.ema_decay else 0)) * total
    channels, *sides = task.input_shape
    x = torch.empty(1, *task.input_shape, device="meta")
    kept = saved_bytes(model, x) * config.loop.batch_size
    less = ", less with grad_checkpointing" if config.model.grad_checkpointing else ""
    return [
        ("input", f"{channels} channels, {'x'.join(map(str, sides))}"),
        ("parameters", f"{total:,}, of which {sum(count for *_, count in trained):,} are trained"),
        ("weight decay", f"{config.optim.weight_decay:g} on {decayed:,} parameters, none on the others"),
        ("optimiser groups", f"{len(groups)}, learning rate times {min(scales):.3g} to {max(scales):.3g}"),
        ("memory, weights", f"{network / 2**30:.2f} GiB for weights, gradients and averages in fp32"),
        ("memory, inputs", f"about {kept / 2**30:.2f} GiB for a batch of {config.loop.batch_size} in fp32{less}"),
    ]


def _schedule_rows(session: Session, samples: int | None) -> list[tuple[str, str]]:
    loop, optim = session.config.loop, session.config.optim
    if samples is None:
        warmup = f"{optim.warmup_epochs:g} epochs from {optim.warmup_lr:g}"
        return [("steps", f"{loop.epochs} epochs; how many steps they have depends on the data"), ("warm-up", warmup)]
    total, schedule = session.total_steps, session.schedule
    places = (0, total // 4, total // 2, 3 * total // 4, total - 1)
    rates = ", ".join(f"{schedule(step):.3g} at {step:,}" for step in places)
    return [
        ("samples", f"{samples:,} per epoch, {session.samples_per_step:,} per step"),
        ("steps", f"{session.steps_per_epoch:,} per epoch, {total:,} in {loop.epochs} epochs"),
        ("learning rate", rates),
    ]
