"""Pictures by number → batches, the same bits for any number of worker processes, from any batch on.

What a sample is depends on (seed, epoch, index, view) alone and what a batch holds on (seed, epoch, number) alone, so workers keep no state
and a training that resumes at batch k continues as if it had never stopped. Workers are forked, compute on one thread each and live for the
whole call, across epochs. B batch, C channels, H W pixels.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from pyramidvit.data.samples import SampleDataset, SampleKey, seed_from
from pyramidvit.errors import UserError
from pyramidvit.types import BadSample, Batch, Sample

_TINY = 64
_STRIDE = 32
"""Of the coarsest map: padded images have whole cells."""
_MOST_WORKERS = 8


class EpochPlan:
    """Which samples each batch of each epoch holds, for one of ``world`` processes with ``batch_size`` pictures each.

    An epoch has ``n`` samples. With ``repeats`` r, the first n / r pictures of the shuffled order come r times in a row, each time as
    another view, and the others come in other epochs. A tail too small to give every process two samples joins the batch before it, so
    that batch statistics never rest on one sample and no sample is lost.
    """

    def __init__(
        self, n: int, batch_size: int, *, seed: int, shuffle: bool = True, repeats: int = 1, rank: int = 0, world: int = 1
    ) -> None:
        if n < world:
            raise UserError(
                f"{n} training pictures can't be shared by {world} process{'es' if world > 1 else ''}; each needs at least one."
            )
        self.n, self.seed, self.shuffle, self.repeats, self.rank, self.world = n, seed, shuffle, repeats, rank, world
        self.step = batch_size * world
        full, tail = divmod(n, self.step)
        self.batches_per_epoch = full + (tail >= 2 * world or (tail > 0 and full == 0))
        self._order: tuple[int, list[int]] = (-1, [])

    def batch(self, epoch: int, number: int) -> list[SampleKey]:
        """Samples of this process in one batch, ``number`` counting from 0 in each epoch."""
        if not 0 <= number < self.batches_per_epoch:
            raise IndexError(f"batch {number} of an epoch of {self.batches_per_epoch}")
        stop = self.n if number == self.batches_per_epoch - 1 else (number + 1) * self.step
        order = self._epoch_order(epoch)
        positions = range(number * self.step + self.rank, stop, self.world)
        return [SampleKey(epoch, order[p // self.repeats], p % self.repeats) for p in positions]

    def at(self, step: int) -> list[SampleKey]:
        """Samples of a batch counted from the start of training."""
        return self.batch(*divmod(step, self.batches_per_epoch))

    def _epoch_order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.n))
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(seed_from(self.seed, epoch))
            self._order = (epoch, torch.randperm(self.n, generator=generator).tolist())
        return self._order[1]


def default_workers(n: int) -> int:
    """Worker processes for ``n`` pictures: one per core but one, 1 to 8; none below 64 pictures, where starting them costs more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if n < _TINY else min(max(cores - 1, 1), _MOST_WORKERS)


def training_batches(dataset: SampleDataset, plan: EpochPlan, *, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
    """Batches ``start`` to ``stop`` (exclusive), counted from the start of training, through all epochs with the same workers."""
    yield from Batches(dataset, plan.at, range(start, stop), workers)


def evaluation_batches(dataset: SampleDataset, batch_size: int, *, workers: int | None = None, rank: int = 0, world: int = 1) -> "Batches":
    """Every sample once and in order; of ``world`` processes, each gets every world-th one. No padding: the last batch may be smaller.

    Where samples hold several views, ``batch_size`` counts views, and a batch has at least one sample.
    """
    batch_size = max(batch_size // dataset.views, 1)
    indices = range(rank, len(dataset), world)
    chunks = [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
    return Batches(dataset, _EvaluationPlan(chunks), range(len(chunks)), workers)


@dataclass(frozen=True)
class _EvaluationPlan:
    chunks: list[range]

    def __call__(self, number: int) -> list[SampleKey]:
        return [SampleKey(0, index) for index in self.chunks[number]]


def collate(samples: Sequence[Sample | BadSample]) -> Batch:
    """Samples → a batch; bad ones only named. Without any good one, images are (0, 0, 0, 0).

    Images of different sizes get zeros on the right and below, up to the largest of them and to a multiple of 32.
    """
    good = [sample for sample in samples if isinstance(sample, Sample)]
    images = _padded([sample.image for sample in good])
    return Batch(
        images=default_collate(images) if good else torch.empty(0, 0, 0, 0),  # in a worker: into shared memory
        targets=tuple(sample.target for sample in good),
        paths=tuple(sample.path for sample in good),
        sizes=tuple(sample.size for sample in good),
        valid=tuple(_height_width(sample.image) for sample in good),
        skipped=tuple(sample for sample in samples if isinstance(sample, BadSample)),
    )


def _height_width(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]


def _padded(images: list[Tensor]) -> list[Tensor]:
    if len({image.shape for image in images}) < 2:
        return images
    height, width = (-(-max(sides) // _STRIDE) * _STRIDE for sides in zip(*map(_height_width, images), strict=True))
    return [nn.functional.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2])) for image in images]


class _Reader(Dataset[Batch | UserError]):
    """Batch by number, in whichever process; notes in ``reading`` (process id, index of the picture) what each worker is at."""

    def __init__(self, dataset: SampleDataset, keys: Callable[[int], list[SampleKey]], workers: int) -> None:
        self.dataset, self.keys = dataset, keys
        self.reading = torch.full((max(workers, 1), 2), -1, dtype=torch.int64).share_memory_()

    def __getitem__(self, number: int) -> Batch | UserError:
        worker = get_worker_info()
        samples: list[Sample | BadSample] = []
        for key in self.keys(number):
            if worker is not None:
                self.reading[worker.id, 0], self.reading[worker.id, 1] = os.getpid(), key.index
            try:
                samples.append(self.dataset[key])
            except UserError as error:
                return error  # as a value: on its way from a worker, torch would turn an exception into text
            except Exception as error:
                path = self.dataset.items[key.index].path
                raise RuntimeError(f"While reading {path}: {type(error).__name__}: {error}") from error
        return collate(samples)

    def lost(self) -> list[str]:
        """What workers that are no more were reading."""
        time.sleep(0.1)  # a process that just broke a connection may take a moment to end
        alive = {process.pid for process in multiprocessing.active_children()}
        return [str(self.dataset.items[index].path) for pid, index in self.reading.tolist() if pid != -1 and pid not in alive]


class Batches:
    """Batches by number; may be gone through several times, by workers that are started once and live as long as this object.

    Start them early, while the process is small: after a fork, the first write to each page of memory copies it, which costs seconds
    when a network's step keeps gigabytes.
    """

    def __init__(self, dataset: SampleDataset, keys: Callable[[int], list[SampleKey]], numbers: range, workers: int | None) -> None:
        workers = default_workers(len(dataset)) if workers is None else workers
        self.numbers, self.workers = numbers, min(workers, len(numbers))
        self._reader = _Reader(dataset, keys, self.workers)
        self._loader: DataLoader[Batch | UserError] | None = None
        self._started: Iterator[Batch | UserError] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def start(self) -> None:
        """Start the workers, which read ahead at once."""
        if self.workers and self._loader is None:
            self._loader = _loader(self._reader, self.numbers, self.workers)
            self._started = _iterate(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        self.start()
        if self._loader is None:
            yield from (_raised(self._reader[number]) for number in self.numbers)
            return
        iterator, self._started = self._started or _iterate(self._loader), None
        try:
            for _ in self.numbers:
                yield _raised(next(iterator))
        except (RuntimeError, OSError, EOFError) as error:
            lost = self._reader.lost()
            if not lost:
                raise
            raise UserError(
                f"A process that reads files was killed at {lost[0]}. Most often memory ran out, or shared memory in /dev/shm: "
                f"use fewer --workers, now {self.workers}, or smaller batches. If it is always the same file, take that file out."
            ) from error


def _raised(item: Batch | UserError) -> Batch:
    if isinstance(item, UserError):
        raise item
    return item


def _loader(reader: _Reader, numbers: range, workers: int) -> "DataLoader[Batch | UserError]":
    method = "fork" if sys.platform == "linux" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about more workers than cores, which the user chose
        return DataLoader(
            reader,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_init_worker,
            multiprocessing_context=multiprocessing.get_context(method),
            generator=torch.Generator(),  # or it would draw from the global one, which belongs to the training
            persistent_workers=True,
        )


def _iterate(loader: "DataLoader[Batch | UserError]") -> Iterator[Batch | UserError]:
    on_child = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking beside threads
        iterator = iter(loader)
    if on_child is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, on_child)  # torch's handler raises wherever training is; a dead worker should be met where we wait
    return iterator


def _as_it_is(item: Any) -> Any:
    return item


def _init_worker(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler inherited from it would not end this process
