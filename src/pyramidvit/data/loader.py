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
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from pyramidvit.data.folders import Item
from pyramidvit.data.image import ImageError, ReadOptions, read_image
from pyramidvit.data.transforms import Transform
from pyramidvit.errors import UserError
from pyramidvit.types import BadSample, Batch, ClassTarget, Sample

_TINY = 64
_STRIDE = 32
"""Of the coarsest map: padded images have whole cells."""
_MOST_WORKERS = 8


@dataclass(frozen=True, order=True)
class SampleKey:
    """One view of one picture: ``view`` counts the views of a picture within an epoch."""

    epoch: int
    index: int
    view: int = 0


class ImageDataset:
    """Labelled pictures, read and transformed when asked for.

    A file that can't be read raises ImageError, or with ``on_bad_sample="skip"`` stands as a BadSample in the place of its sample.
    """

    def __init__(
        self,
        items: Sequence[Item],
        transform: Transform,
        options: ReadOptions,
        *,
        seed: int = 0,
        on_bad_sample: Literal["error", "skip"] = "error",
    ) -> None:
        self.items, self.transform, self.options, self.seed, self.on_bad_sample = items, transform, options, seed, on_bad_sample

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: SampleKey) -> Sample | BadSample:
        item = self.items[key.index]
        try:
            array = read_image(item.path, self.options)
        except ImageError as error:
            if self.on_bad_sample == "skip":
                return BadSample(error.path, error.reason)
            raise
        image = torch.from_numpy(array).permute(2, 0, 1)  # stays channels-last in memory, which resizing is fast on
        sample = Sample(image, ClassTarget(item.label), str(item.path), array.shape[:2])
        with _own_randomness(self.seed, key.epoch, key.index, key.view):
            return self.transform(sample)


@contextmanager
def _own_randomness(*numbers: int) -> Iterator[None]:
    """Seed torch's CPU generator for one sample and leave it as it was; one thread, because sums depend on the number of threads."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.default_generator.manual_seed(_seed(*numbers))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


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
            generator = torch.Generator().manual_seed(_seed(self.seed, epoch))
            self._order = (epoch, torch.randperm(self.n, generator=generator).tolist())
        return self._order[1]


def default_workers(n: int) -> int:
    """Worker processes for ``n`` pictures: one per core but one, 1 to 8; none below 64 pictures, where starting them costs more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if n < _TINY else min(max(cores - 1, 1), _MOST_WORKERS)


def training_batches(dataset: ImageDataset, plan: EpochPlan, *, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
    """Batches ``start`` to ``stop`` (exclusive), counted from the start of training, through all epochs with the same workers."""
    return _batches(dataset, plan.at, range(start, stop), workers)


def evaluation_batches(
    dataset: ImageDataset, batch_size: int, *, workers: int | None = None, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """Every picture once and in order; of ``world`` processes, each gets every world-th one. No padding: the last batch may be smaller."""
    indices = range(rank, len(dataset), world)
    chunks = [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
    return _batches(dataset, _EvaluationPlan(chunks), range(len(chunks)), workers)


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

    def __init__(self, dataset: ImageDataset, keys: Callable[[int], list[SampleKey]], workers: int) -> None:
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


def _batches(dataset: ImageDataset, keys: Callable[[int], list[SampleKey]], numbers: range, workers: int | None) -> Iterator[Batch]:
    workers = default_workers(len(dataset)) if workers is None else workers
    workers = min(workers, len(numbers))
    if workers == 0:
        reader = _Reader(dataset, keys, 0)
        yield from (_raised(reader[number]) for number in numbers)
        return
    reader = _Reader(dataset, keys, workers)
    iterator = _start(reader, numbers, workers)
    try:
        for _ in numbers:
            yield _raised(next(iterator))
    except (RuntimeError, OSError, EOFError) as error:
        lost = reader.lost()
        if not lost:
            raise
        raise UserError(
            f"A process that reads pictures was killed while it was at {lost[0]}. Most often memory ran out, or shared memory in /dev/shm: "
            f"use fewer --workers, now {workers}, or smaller batches. If it is always the same file, take that file out."
        ) from error
    finally:
        del iterator  # ends the workers now, not whenever garbage is collected


def _raised(item: Batch | UserError) -> Batch:
    if isinstance(item, UserError):
        raise item
    return item


def _start(reader: _Reader, numbers: range, workers: int) -> Iterator[Batch | UserError]:
    method = "fork" if sys.platform == "linux" else None
    on_child = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking beside threads, and about more workers than cores, which the user chose
        loader = DataLoader(
            reader,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_init_worker,
            multiprocessing_context=multiprocessing.get_context(method),
            generator=torch.Generator(),  # or it would draw from the global one, which belongs to the training
        )
        iterator = iter(loader)
    if on_child is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, on_child)  # torch's handler raises wherever training is; a dead worker should be met where we wait
    return iterator


def _as_it_is(item: Any) -> Any:
    return item


def _init_worker(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler inherited from it would not end this process
