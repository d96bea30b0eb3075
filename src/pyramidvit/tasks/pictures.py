"""What all tasks on pictures share: reading, preprocessing, datasets, and weights to start from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import pyramidvit
from pyramidvit import weights
from pyramidvit.config import RunConfig
from pyramidvit.data.folders import SUFFIXES
from pyramidvit.data.image import ImageError, ReadOptions, read_image
from pyramidvit.data.samples import LabelledFile, PictureReader, SampleDataset
from pyramidvit.errors import UserError
from pyramidvit.tasks import Data
from pyramidvit.types import Batch, Prediction, Preprocess, Sample
from pyramidvit.weights import LoadReport, WeightsMeta
from pyramidvit.weights.source import obtain


class PictureTask:
    """Base of the tasks on pictures. ``data`` is needed to train and evaluate; without it a task can still build its model and predict."""

    name: ClassVar[str]
    title: ClassVar[str]
    things = "pictures"
    head: ClassVar[str]
    """Key of its last layers, which are left out of weights made for other classes."""

    def __init__(self, config: RunConfig, classes: Sequence[str], data: Data | None = None) -> None:
        self.config, self.classes, self.data = config, tuple(classes), data
        self.preprocess = preprocess_of(config)
        self.load_report: LoadReport | None = None
        self.measured: Mapping[str, Any] = {}
        """What the weights reached when they were trained, where that is known."""

    @property
    def fingerprint(self) -> str:
        return "" if self.data is None else self.data.fingerprint

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.preprocess.in_chans, *self.preprocess.size)

    def read_options(self) -> ReadOptions:
        return read_options(self.config)

    def files_in(self, folder: Path) -> list[Path]:
        return pictures_in(folder)

    def reader(self, training: bool) -> Callable[[LabelledFile], Sample]:  # noqa: ARG002  clips are read in another way
        return PictureReader(self.read_options())

    def read(self, source: str | Path | np.ndarray) -> tuple[Any, Sample]:
        """A picture, (H, W, C), and the sample made of it; BadFileError when there is none."""
        options = self.read_options()
        image = checked_array(source, options.in_chans) if isinstance(source, np.ndarray) else read_image(source, options)
        name = "array" if isinstance(source, np.ndarray) else str(source)
        return image, Sample(torch.from_numpy(image).permute(2, 0, 1), None, name, image.shape[:2])

    def dataset(self, split: str) -> SampleDataset:
        """The pictures of "train" (augmented) or "val"."""
        if self.data is None:
            raise UserError(f"This task was made without data, so it has no {split} split.")
        return SampleDataset(
            self.data.splits[split],
            self.reader(split == "train"),
            self.transform(split == "train"),
            seed=self.config.loop.seed,
            on_bad_sample=self.config.data.on_bad_sample,
        )

    def transform(self, training: bool) -> Callable[[Sample], Sample]:
        raise NotImplementedError

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:  # noqa: ARG002  other tasks mix
        return batch

    def shown(self, prediction: Any) -> Prediction:
        """All of it."""
        return prediction

    def start_from(self, file: str, model: nn.Module) -> None:
        """Fill a model from a file or published weights; last layers made for other classes are left out."""
        tensors, meta = obtain(file, offline=self.config.model.offline)
        anew = (self.head,) if meta is not None and meta.classes != self.classes else ()
        self.load_report = weights.load(model, tensors, new_classes=True, inflate=self.inflates(tensors), anew=anew)

    def inflates(self, tensors: Mapping[str, Tensor]) -> bool:  # noqa: ARG002  clips do
        """Whether these weights are of a picture network and are to become those of a clip network."""
        return False

    def weights_meta(self, metrics: Mapping[str, Any]) -> WeightsMeta:
        settings = self.config.model_dump(mode="json")
        return WeightsMeta(self.config.model.name, self.name, self.classes, self.preprocess, settings, metrics, pyramidvit.__version__)


def pictures_in(folder: Path) -> list[Path]:
    """Pictures in a folder at any depth, in name order, hidden ones left out."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def read_options(config: RunConfig) -> ReadOptions:
    """How files are decoded under these settings."""
    settings = config.data
    return ReadOptions(settings.in_chans, settings.value_range, settings.orientation, settings.max_pixels)


def preprocess_of(config: RunConfig) -> Preprocess:
    """How pictures reach the network under these settings; UserError when statistics and channels disagree."""
    data, augment = config.data, config.augment
    for name in ("mean", "std"):
        values: tuple[float, ...] | None = getattr(data, name)
        if values is not None and len(values) != data.in_chans:
            raise UserError(f"{name} has {len(values)} values, but in_chans is {data.in_chans}: give one value per channel.")
    preprocess = Preprocess.for_channels(
        data.in_chans, size=augment.size, crop=augment.crop, interpolation=augment.interpolation, value_range=data.value_range
    )
    return replace(preprocess, mean=data.mean or preprocess.mean, std=data.std or preprocess.std)


def checked_array(image: np.ndarray, in_chans: int) -> np.ndarray:
    """An upright picture given as an array, or ImageError when it is none that the network takes."""
    fits = image.ndim == 3 and image.shape[2] == in_chans and min(image.shape) > 0 and image.dtype in (np.uint8, np.float32)
    if not fits:
        got = f"{image.shape} {image.dtype}"
        raise ImageError("array", f"expected (H, W, {in_chans}), uint8 or float32 from 0 to 1, got {got}.")
    if image.dtype == np.float32 and not (image.min() >= 0 and image.max() <= 1):
        raise ImageError("array", f"float values must be from 0 to 1, got {image.min():g} to {image.max():g}.")
    return np.require(image, requirements=["C", "W"])


def eight_bits(image: np.ndarray) -> np.ndarray:
    """A picture to draw on, from uint8 or float 0..1."""
    return image if image.dtype == np.uint8 else np.round(image * 255).astype(np.uint8)
