"""One optimiser step over a window of batches.

Its loss is the mean over all samples of the window on all processes: each batch's mean loss is weighted by its share of the samples. So the
shorter window at the end of an epoch, and batches with left-out files, come out right.
"""

import math
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from pyramidvit.display import Display
from pyramidvit.errors import UserError
from pyramidvit.optim import set_learning_rate
from pyramidvit.runtime import seed_everything, seed_of
from pyramidvit.session import Session
from pyramidvit.types import Batch

LEFT_OUT_LIMIT = 10
"""So many steps left out in a row end the run."""
BAD_SHARE_FROM = 20
"""Samples that must have been seen before a share of bad ones means something."""


def take_step(session: Session, window: list[Batch], display: Display) -> None:
    """One optimiser step, or the reason why it is left out; the place in the data and in the schedule moves on all the same."""
    progress, accelerator, loop = session.progress, session.accelerator, session.config.loop
    lr = session.schedule(progress.step)
    samples, fewest = _count(session, window, display)
    if fewest == 0:
        display.log(f"Step {progress.step} left out: a process had no file that could be read.")
    else:
        buffers = [buffer.clone() for buffer in session.model.buffers()] if loop.on_nonfinite == "skip" or accelerator.scaler else []
        numbered = [(session.first_batch + i, batch) for i, batch in enumerate(window) if len(batch)]
        terms = _backward(session, numbered, samples)
        totals = torch.stack([torch.stack([*term.values()]).sum() for term in terms])
        accelerator.unscale_gradients(session.stepper)
        norm = torch.nn.utils.get_total_norm([p.grad for p in session.model.parameters() if p.grad is not None])
        bad_loss, bad_gradient = _any(accelerator, torch.stack([~totals.isfinite().all(), ~norm.isfinite()]))
        if not bad_loss and not bad_gradient:
            if session.config.optim.clip_grad is not None:
                torch.nn.utils.clip_grads_with_norm_(session.model.parameters(), session.config.optim.clip_grad, norm)
            set_learning_rate(session.optimizer, lr)
            session.stepper.step()
            if session.ema:
                session.ema.update(session.model, progress.step)
            for (_, batch), term in zip(numbered, terms, strict=True):
                session.add_losses(term, len(batch))
            progress.left_out_in_a_row = 0
        else:
            with torch.no_grad():
                for buffer, before in zip(session.model.buffers(), buffers, strict=False):  # no copies were made if we are to stop
                    buffer.copy_(before)
            suspects = [b for (_, b), total in zip(numbered, totals.tolist(), strict=True) if not math.isfinite(total)]
            _leave_out(session, suspects or window, bad_loss, display)
        session.optimizer.zero_grad()
    progress.step += 1
    display.step(progress.step, progress.step / session.steps_per_epoch, samples, lr, session.mean_loss)


def _count(session: Session, window: list[Batch], display: Display) -> tuple[int, int]:
    """Samples of a step over all processes and the fewest on one of them; bad ones are logged and counted."""
    progress, accelerator = session.progress, session.accelerator
    counts = [sum(map(len, window))]
    bad = [sample for batch in window for sample in batch.skipped]
    if accelerator.num_processes > 1:
        counts, bad = gather_object(counts), gather_object(bad)
    progress.seen += sum(counts) + len(bad)
    progress.skipped += len(bad)
    for sample in bad:
        display.log(f"Left out {sample.path}: {sample.reason}")
    check_bad_share(progress.skipped, progress.seen, session.config.data.max_bad_share)
    return sum(counts), min(counts)


def check_bad_share(bad: int, seen: int, allowed: float) -> None:
    """UserError when too many of the samples seen so far could not be read."""
    if seen >= BAD_SHARE_FROM and bad > allowed * seen:
        raise UserError(
            f"{bad} of {seen} samples could not be read, more than data.max_bad_share = {allowed:g} allows. `pyramidvit check` finds all "
            "bad files at once: mend them or take them out."
        )


def _backward(session: Session, numbered: list[tuple[int, Batch]], samples: int) -> list[dict[str, Tensor]]:
    """Add up the gradients of a step's batches, each weighted by its share of the samples; returns their loss terms."""
    task, accelerator, seed = session.task, session.accelerator, session.config.loop.seed
    rank, world = accelerator.process_index, accelerator.num_processes
    generator = torch.Generator()
    terms: list[dict[str, Tensor]] = []
    for number, batch in numbered:
        batch = task.mix(batch.to(accelerator.device), generator.manual_seed(seed_of(seed, "mix", number, rank)))
        seed_everything(seed_of(seed, "forward", number, rank))
        last = number == numbered[-1][0]
        with nullcontext() if last else accelerator.no_sync(session.net):
            term = task.loss(session.net(batch.images), batch)
            loss = torch.stack([*term.values()]).sum()
            accelerator.backward(loss * (len(batch) * world / samples))  # the process group averages over its processes
        terms.append({name: value.detach() for name, value in term.items()})
    return terms


def _any(accelerator: Accelerator, flags: Tensor) -> list[bool]:
    """Which flags are set on any process."""
    if accelerator.num_processes > 1:
        flags = accelerator.gather(flags.float()[None]).amax(0) > 0  # pyright: ignore[reportAttributeAccessIssue]
    return flags.tolist()


def _leave_out(session: Session, suspects: list[Batch], bad_loss: bool, display: Display) -> None:
    """Count a step whose loss or gradient is not finite, or stop: at once, or after too many in a row."""
    progress, accelerator = session.progress, session.accelerator
    paths = [path for batch in suspects for path in batch.paths]
    if accelerator.num_processes > 1:
        paths = gather_object(paths)
    what = "The loss" if bad_loss else "The gradient"
    where = f"{what} is not finite at step {progress.step}, in a batch of: {', '.join(paths)}"
    remedy = "Lower optim.lr, set optim.clip_grad, or look at these files; the last checkpoint is unchanged, --resume continues from it."
    progress.left_out_in_a_row += 1
    if bad_loss or accelerator.scaler is None:
        if session.config.loop.on_nonfinite == "stop":
            raise UserError(f"{where}. {remedy}")
        progress.nonfinite += 1
        display.log(f"Left out: {where}")
        if accelerator.scaler is not None:
            accelerator.scaler.update()
    else:
        progress.overflows += 1
        session.stepper.step()  # does nothing but lower the scale
    if progress.left_out_in_a_row >= LEFT_OUT_LIMIT:
        raise UserError(f"{LEFT_OUT_LIMIT} steps in a row were left out. {where}. {remedy}")
