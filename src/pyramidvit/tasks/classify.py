"""Image classification: a picture in, one class out. B batch, K classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import pyramidvit
from pyramidvit.config import RunConfig, validate
from pyramidvit.data.folders import ClassData, fingerprint
from pyramidvit.data.image import ReadOptions
from pyramidvit.data.samples import PictureReader, SampleDataset
from pyramidvit.data.transforms import eval_transform, mix_batch, train_transform
from pyramidvit.draw import annotate_classes
from pyramidvit.errors import UserError
from pyramidvit.losses import class_weights, classification_loss, soft_targets
from pyramidvit.metrics import ClassificationMetric
from pyramidvit.models import Classifier, create_model
from pyramidvit.types import Batch, ClassScores, ClassTarget, Preprocess, Sample
from pyramidvit.weights import LoadReport, WeightsMeta, load, read


class ClassifyTask:
    """``data`` is needed to train and evaluate; without it the task can still build its model and predict."""

    name = "classify"

    def __init__(self, config: RunConfig, classes: Sequence[str], data: ClassData | None = None) -> None:
        self.config = config
        self.classes = tuple(classes)
        self.data = data
        self.preprocess = preprocess_of(config)
        self.load_report: LoadReport | None = None
        """What became of the weights that training starts from, once the model is built."""
        weighted = config.optim.class_weights == "auto" and data is not None
        self.class_weights = class_weights(_counts(data, len(self.classes))) if weighted and data else None

    @property
    def fingerprint(self) -> str:
        return "" if self.data is None else fingerprint(self.data)

    def read_options(self) -> ReadOptions:
        settings = self.config.data
        return ReadOptions(settings.in_chans, settings.value_range, settings.orientation, settings.max_pixels)

    def dataset(self, split: str) -> SampleDataset:
        """The pictures of "train" (augmented) or "val"."""
        if self.data is None:
            raise UserError(f"This task was made without data, so it has no {split} split.")
        settings = self.config
        return SampleDataset(
            self.data.splits[split],
            PictureReader(self.read_options()),
            self.transform(split == "train"),
            seed=settings.loop.seed,
            on_bad_sample=settings.data.on_bad_sample,
        )

    def transform(self, training: bool) -> Callable[[Sample], Sample]:
        return train_transform(self.config.augment, self.preprocess) if training else eval_transform(self.preprocess)

    def model(self) -> Classifier:
        settings = self.config.model
        in_chans, rate = self.config.data.in_chans, settings.drop_path_rate
        model = create_model(settings.name, num_classes=len(self.classes), in_chans=in_chans, drop_path_rate=rate)
        if settings.weights is not None:
            self.load_report = self._start_from(Path(settings.weights), model)
        if len(model.backbone.input_shape) != 3:
            raise UserError(f"{settings.name} takes clips, and the data are pictures: choose a picture network (`pyramidvit models`).")
        return model

    def _start_from(self, path: Path, model: Classifier) -> LoadReport:
        """Fill the model from a file; a last layer made for other classes is left out."""
        tensors, meta = read(path)
        if meta is not None and meta.classes != self.classes:
            tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("head.")}
        return load(model, tensors, new_classes=True)

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:
        return mix_batch(batch, self.config.augment, generator)

    def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy of logits (B, K), with label smoothing and class weights."""
        soft = soft_targets(class_targets(batch), len(self.classes), self.config.augment.smoothing)
        return {"cross_entropy": classification_loss(outputs, soft, self.class_weights)}

    def predict(self, outputs: Tensor, batch: Batch) -> list[ClassScores]:
        """Probabilities from logits (B, K)."""
        probabilities = outputs.float().softmax(-1).cpu()
        return [ClassScores(path, self.classes, row) for path, row in zip(batch.paths, probabilities, strict=True)]

    def metric(self) -> ClassificationMetric:
        return ClassificationMetric(self.classes)

    def draw(self, image: np.ndarray, prediction: ClassScores) -> Image.Image:
        return annotate_classes(image, prediction)

    def weights_meta(self, metrics: Mapping[str, Any]) -> WeightsMeta:
        settings = self.config.model_dump(mode="json")
        version = pyramidvit.__version__
        return WeightsMeta(self.config.model.name, self.name, self.classes, self.preprocess, settings, metrics, version)


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


def task_from_weights(path: Path, meta: WeightsMeta) -> ClassifyTask:
    """The task that a weights file was trained for, ready to build the model and predict."""
    if meta.head != ClassifyTask.name:
        raise UserError(f"{path} was trained to {meta.head}, which this version does not know.")
    config = validate(meta.config, str(path))
    # The weights come from the file itself, so those that training started from are not needed.
    return ClassifyTask(config.model_copy(update={"model": config.model.model_copy(update={"weights": None})}), meta.classes)


def class_targets(batch: Batch) -> list[ClassTarget]:
    """The targets of a batch of labelled pictures."""
    return [target for target in batch.targets if isinstance(target, ClassTarget)]


def _counts(data: ClassData, num_classes: int) -> list[int]:
    labels = torch.tensor([item.label for item in data.splits["train"]], dtype=torch.int64)
    return torch.bincount(labels, minlength=num_classes).tolist()
