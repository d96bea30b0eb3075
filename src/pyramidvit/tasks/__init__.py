"""Where models meet data: one file per task. Engine, predictor and reports know only what ``Task`` names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pyramidvit.data.samples import SampleDataset
from pyramidvit.types import Batch, Prediction, Preprocess, Sample, Table
from pyramidvit.weights import WeightsMeta


class Result(Protocol):
    """What an evaluation measured."""

    @property
    def headline(self) -> tuple[str, float]: ...
    @property
    def numbers(self) -> Mapping[str, float]: ...
    def to_json(self) -> dict[str, Any]: ...
    def tables(self) -> Sequence[Table]: ...


class Metric(Protocol):
    """Collects predictions of an evaluation, batch by batch; processes exchange ``rows`` to evaluate together."""

    rows: list[Any]

    def update(self, predictions: Sequence[Any], targets: Sequence[Any]) -> None: ...
    def compute(self) -> Result: ...


class Task(Protocol):
    """One way to learn from pictures: what is read, what is learned, what comes out.

    ``model`` gives logits in training and evaluation alike; ``loss`` and ``predict`` are functions of (outputs, batch), so the network
    knows neither. Predictions are in pixels of the upright original file.
    """

    name: str
    classes: tuple[str, ...]
    preprocess: Preprocess

    @property
    def fingerprint(self) -> str:
        """Of the data, to notice when it changed between a stop and a resume."""
        ...

    def dataset(self, split: str) -> SampleDataset: ...
    def transform(self, training: bool) -> Callable[[Sample], Sample]: ...
    def model(self) -> nn.Module: ...
    def mix(self, batch: Batch, generator: torch.Generator) -> Batch: ...
    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]: ...
    def predict(self, outputs: Any, batch: Batch) -> Sequence[Prediction]: ...
    def metric(self) -> Metric: ...
    def draw(self, image: np.ndarray, prediction: Any) -> Image.Image: ...
    def weights_meta(self, metrics: Mapping[str, Any]) -> WeightsMeta: ...
