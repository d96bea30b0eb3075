"""Where models meet data: one file per task. Engine, predictor and reports know only what ``Task`` names."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pyramidvit.config import RunConfig
from pyramidvit.data.findings import CheckReport
from pyramidvit.data.samples import LabelledFile, SampleDataset
from pyramidvit.types import Batch, Prediction, Preprocess, Sample, Section, Table
from pyramidvit.weights import LoadReport, WeightsMeta


class Data(Protocol):
    """What a task learns from: labelled files in the splits "train" and "val", each maybe empty."""

    @property
    def root(self) -> Path: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def splits(self) -> Mapping[str, tuple[LabelledFile, ...]]: ...
    @property
    def made_split(self) -> bool:
        """Whether the validation split was drawn by us."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of names, sizes and labels."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know before training on it."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class Result(Protocol):
    """What an evaluation measured."""

    @property
    def headline(self) -> tuple[str, float]:
        """Name and value; NaN where there was nothing to measure."""
        ...

    @property
    def numbers(self) -> Mapping[str, float]: ...
    def to_json(self) -> dict[str, Any]: ...
    def tables(self) -> Sequence[Table]: ...


class Metric(Protocol):
    """Collects predictions of an evaluation, batch by batch; processes exchange ``rows`` to evaluate together."""

    rows: list[Any]

    def update(self, predictions: Sequence[Any], targets: Sequence[Any]) -> None: ...
    def compute(self) -> Result: ...


@dataclass(frozen=True)
class Headline:
    """The number of the run, from 0 to 1, NaN where there was nothing to measure.

    ``interval`` is its 95 % interval; ``chance`` is what is reached without looking.
    """

    name: str
    value: float
    interval: tuple[float, float] | None = None
    chance: float | None = None
    chance_means: str = ""

    def __post_init__(self) -> None:
        numbers = (self.value, *(self.interval or ()), self.chance or 0)
        if not all(0 <= number <= 1 or math.isnan(number) for number in numbers):
            raise ValueError(f"Headline, interval and chance are from 0 to 1, got {numbers}.")


@dataclass(frozen=True)
class Summary:
    """A result in words and pictures: ``lines`` for the terminal, the rest for the report; ``plots`` are PNG files by name."""

    headline: Headline
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    plots: Mapping[str, bytes] = field(default_factory=dict)


class Task(Protocol):
    """One way to learn from pictures or clips: what is read, what is learned, what comes out.

    ``model`` gives logits in training and evaluation alike; ``loss`` and ``predict`` are functions of (outputs, batch), so the network
    knows neither. Predictions are in pixels of the upright original file.
    """

    name: str
    title: str
    """The task in two words, as a report names it."""
    things: str
    """What it looks at, as messages name it: pictures or clips."""
    config: RunConfig
    classes: tuple[str, ...]
    preprocess: Preprocess
    load_report: LoadReport | None
    """What became of the weights that training starts from, once the model is built."""

    measured: Mapping[str, Any]
    """What the weights reached when they were trained, where that is known."""
    data: Any
    """What it learns from, a ``Data``; None when it only predicts."""

    @property
    def fingerprint(self) -> str:
        """Of the data, to notice when it changed between a stop and a resume."""
        ...

    @classmethod
    def read_data(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None) -> Data: ...
    @classmethod
    def data_from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> Data: ...
    @classmethod
    def check_data(cls, root: Path, config: RunConfig) -> CheckReport:
        """Look the data over, what would be refused included."""
        ...

    def dataset(self, split: str) -> SampleDataset: ...
    def transform(self, training: bool) -> Callable[[Sample], Sample]: ...
    def read(self, source: str | Path | np.ndarray) -> tuple[Any, Sample]:
        """What to draw predictions on, (H, W, C) or a ``Film``, and an unlabelled sample; BadFileError when there is none."""
        ...

    def files_in(self, folder: Path) -> list[Path]:
        """What it can predict on in a folder, at any depth, in name order."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one network input, batch left out."""
        ...

    def model(self) -> nn.Module: ...
    def mix(self, batch: Batch, generator: torch.Generator) -> Batch: ...
    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]: ...
    def predict(self, outputs: Any, batch: Batch) -> Sequence[Prediction]: ...
    def metric(self) -> Metric: ...
    def summarize(self, result: Any) -> Summary: ...
    def shown(self, prediction: Any) -> Prediction:
        """What of a prediction is worth showing."""
        ...

    def draw(self, image: Any, prediction: Any) -> Image.Image: ...
    def weights_meta(self, metrics: Mapping[str, Any]) -> WeightsMeta: ...
