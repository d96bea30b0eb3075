"""Several looks at one picture: in tiles, mirrored, at several sizes; and one answer from all of them.

A picture far larger than those of the training is best seen in tiles about as large as these: each is resized like a whole picture.
Shapes: C channels, H W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch

from pyramidvit.data.loader import collate
from pyramidvit.errors import UserError
from pyramidvit.tasks.dense import DenseTask
from pyramidvit.tiling import Window, tiles
from pyramidvit.types import Batch, Prediction, Sample


@dataclass(frozen=True)
class Views:
    """``tile`` is the side of tiles in pixels of the picture, ``overlap`` the share of it that neighbours have in common.

    ``flip`` looks at the mirrored picture too; ``scales`` are factors on the size that the network sees.
    """

    tile: int | None = None
    overlap: float = 0.25
    flip: bool = False
    scales: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.tile is not None and self.tile < 64:
            raise UserError(f"Tiles need at least 64 pixels per side, got {self.tile}; take about the size of the training pictures.")
        if not 0 <= self.overlap <= 0.5:
            raise UserError(f"Tiles overlap by a share from 0 to 0.5, got {self.overlap}.")
        if not self.scales or not all(0.1 <= scale <= 10 for scale in self.scales):
            raise UserError(f"Scales are factors from 0.1 to 10, at least one, got {self.scales}.")


WHOLE = Views()
"""One look at the whole picture."""


def predict_views(task: DenseTask, forward: Callable[[Batch], Any], sample: Sample, views: Views, batch_size: int) -> Prediction:
    """The answer for a raw, unlabelled sample; one batch of tiles is in memory at a time."""
    size = sample.size
    side = views.tile or max(size)
    windows = tiles(size, (side, side), int(side * views.overlap))
    looks = list(product(views.scales, (False, True) if views.flip else (False,)))
    answers = _answers(task, forward, _samples(task, sample, windows, looks), batch_size)
    combined = (task.combine(list(islice(answers, len(looks)))) for _ in windows)
    return task.join(sample.path, size, windows, combined)


def _samples(
    task: DenseTask, sample: Sample, windows: Sequence[Window], looks: Sequence[tuple[float, bool]]
) -> Iterator[tuple[Sample, bool]]:
    transforms = {scale: task.view_at(scale) for scale, _ in looks}
    for window in windows:
        part = replace(sample, image=sample.image[(..., *window.slices)], size=window.size)
        for scale, flip in looks:
            seen = replace(part, image=part.image.flip(-1)) if flip else part
            yield transforms[scale](seen), flip


def _answers(task: DenseTask, forward: Callable[[Batch], Any], samples: Iterator[tuple[Sample, bool]], batch_size: int) -> Iterator[Any]:
    while group := list(islice(samples, batch_size)):
        batch = collate([sample for sample, _ in group])
        with torch.inference_mode():
            answers = task.answers(forward(batch), batch)
        for answer, (_, flip) in zip(answers, group, strict=True):
            yield task.mirrored(answer) if flip else answer
