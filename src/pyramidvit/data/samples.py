"""Labelled files → samples: read, then transformed, the same bits in every process.

What a sample is depends on (seed, epoch, index, view) alone, so whoever reads it keeps no state. C channels, H W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from pyramidvit.data.image import ReadOptions, read_image
from pyramidvit.errors import BadFileError
from pyramidvit.types import BadSample, Sample, Target


class LabelledFile(Protocol):
    """A file and what is true of it."""

    @property
    def path(self) -> Path: ...
    def target(self, size: tuple[int, int]) -> Target:
        """The truth, in pixels of the upright picture, whose (height, width) is ``size``."""
        ...


@dataclass(frozen=True, order=True)
class SampleKey:
    """One view of one file: ``view`` counts the views of a file within an epoch."""

    epoch: int
    index: int
    view: int = 0


@dataclass(frozen=True)
class PictureReader:
    """A labelled picture → a sample as it is in the file, (C, H, W). BadFileError when there is none."""

    options: ReadOptions

    def __call__(self, item: LabelledFile) -> Sample:
        array = read_image(item.path, self.options)
        size = array.shape[:2]
        image = torch.from_numpy(array).permute(2, 0, 1)  # stays channels-last in memory, which resizing is fast on
        return Sample(image, item.target(size), str(item.path), size)


class SampleDataset:
    """Labelled files, read and transformed when asked for.

    A file that can't be used raises BadFileError, or with ``on_bad_sample="skip"`` stands as a BadSample in the place of its sample.
    ``views`` is how many network inputs a sample holds.
    """

    def __init__(
        self,
        items: Sequence[Any],
        read: Callable[[Any], Sample],
        transform: Callable[[Sample], Sample],
        *,
        seed: int = 0,
        on_bad_sample: Literal["error", "skip"] = "error",
        views: int = 1,
    ) -> None:
        self.items, self.read, self.transform, self.seed, self.on_bad_sample = items, read, transform, seed, on_bad_sample
        self.views = views

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: SampleKey) -> Sample | BadSample:
        with _own_randomness(self.seed, key.epoch, key.index, key.view):
            try:
                return self.transform(self.read(self.items[key.index]))
            except BadFileError as error:
                if self.on_bad_sample == "skip":
                    return BadSample(error.path, error.reason)
                raise


@contextmanager
def _own_randomness(*numbers: int) -> Iterator[None]:
    """Seed torch's CPU generator for one sample and leave it as it was; one thread, because sums depend on the number of threads."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.default_generator.manual_seed(seed_from(*numbers))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def seed_from(*numbers: int) -> int:
    """A seed for torch from any numbers, 63 bits."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
