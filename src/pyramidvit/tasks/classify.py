"""Image classification: a picture in, one class out. B batch, K classes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyramidvit.config import RunConfig
from pyramidvit.data.check import check_class_data
from pyramidvit.data.findings import CheckReport
from pyramidvit.data.folders import ClassData, read_class_data
from pyramidvit.data.image import read_image
from pyramidvit.data.transforms import eval_transform, mix_batch, train_transform
from pyramidvit.draw import annotate_classes, confusion_picture, contact_sheet, encode_png
from pyramidvit.errors import BadFileError, UserError
from pyramidvit.losses import class_weights, classification_loss, soft_targets
from pyramidvit.metrics import ClassificationMetric, ClassificationResult
from pyramidvit.models import Classifier, create_model
from pyramidvit.tasks import Headline, Summary
from pyramidvit.tasks.pictures import PictureTask, eight_bits, read_options
from pyramidvit.types import Batch, ClassScores, ClassTarget, Picture, Sample, Section


class ClassifyTask(PictureTask):
    """Which of K classes a picture shows."""

    name = "classify"
    title = "Image classification"
    head = "head."

    def __init__(self, config: RunConfig, classes: Sequence[str], data: ClassData | None = None) -> None:
        super().__init__(config, classes, data)
        weighted = config.optim.class_weights == "auto" and data is not None
        self.class_weights = class_weights(_counts(data, len(self.classes))) if weighted and data else None

    @classmethod
    def read_data(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None) -> ClassData:
        """Class folders or a CSV; ``classes`` are those of a trained network."""
        return read_class_data(root, val_share=config.data.val_share, seed=config.loop.seed, classes=classes)

    @classmethod
    def data_from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> ClassData:
        """What a run wrote down; ``root`` is where the data is now, if it has moved."""
        return ClassData.from_json(content, root)

    @classmethod
    def check_data(cls, root: Path, config: RunConfig) -> CheckReport:
        """Files, classes and splits."""
        return check_class_data(cls.read_data(root, config), read_options(config), workers=config.data.workers)

    def transform(self, training: bool) -> Callable[[Sample], Sample]:
        return train_transform(self.config.augment, self.preprocess) if training else eval_transform(self.preprocess)

    def model(self) -> Classifier:
        settings = self.config.model
        in_chans, rate = self.config.data.in_chans, settings.drop_path_rate
        model = create_model(settings.name, num_classes=len(self.classes), in_chans=in_chans, drop_path_rate=rate)
        self.check_network(model)
        if settings.weights is not None:
            self.start_from(settings.weights, model)
        return model

    def check_network(self, model: Classifier) -> None:
        """UserError when it takes something else than this task's data."""
        if len(model.backbone.input_shape) != 3:
            name = self.config.model.name
            raise UserError(f"{name} takes clips, and the data are pictures: choose a picture network (`pyramidvit models`).")

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:
        return mix_batch(batch, self.config.augment, generator)

    def loss(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy of logits (B, K), with label smoothing and class weights."""
        soft = soft_targets(class_targets(batch), len(self.classes), self.config.augment.smoothing)
        return {"cross_entropy": classification_loss(outputs, soft, self.class_weights)}

    def predict(self, outputs: Tensor, batch: Batch) -> list[ClassScores]:
        """Probabilities from logits (B, K), or their mean over V views from (B, V, K)."""
        probabilities = outputs.float().softmax(-1).cpu()
        probabilities = probabilities.mean(1) if probabilities.ndim == 3 else probabilities
        return [ClassScores(path, self.classes, row) for path, row in zip(batch.paths, probabilities, strict=True)]

    def metric(self) -> ClassificationMetric:
        return ClassificationMetric(self.classes)

    def summarize(self, result: ClassificationResult) -> Summary:
        """Accuracy beside chance; classes, mistakes and the worst pictures."""
        low, high = result.interval
        lines = [f"top-1 {result.top1:.1%} (95 % interval {low:.1%} to {high:.1%}, {result.n} {self.things}); chance {result.chance:.1%}"]
        if "top5" in result.numbers:
            lines.append(f"top-{result.k} {result.top5:.1%}")
        lines.append(f"mean recall {result.mean_recall:.1%}, loss {result.loss:.3f}")
        classes, mistakes = result.tables()
        confusion = confusion_picture(result)
        return Summary(
            Headline("Top-1 accuracy", result.top1, result.interval, result.chance, "share of the largest class"),
            tuple(lines),
            ((f"{self.things} measured", str(result.n)), ("classes", str(len(self.classes))), ("mean recall", f"{result.mean_recall:.1%}")),
            (
                Section("Classes", tables=(classes,)),
                Section("What is taken for what", tables=(mistakes,), pictures=(Picture(confusion),)),
                *self._worst_pictures(result),
            ),
            {"confusion.png": confusion},
        )

    def thumbnail(self, path: str) -> np.ndarray:
        """A picture (H, W, C) of a file; BadFileError when it can't be read."""
        return read_image(path, self.read_options())

    def _worst_pictures(self, result: ClassificationResult) -> tuple[Section, ...]:
        """Wrong answers, those with the lowest probability of the truth first."""
        pictures: list[np.ndarray] = []
        captions: list[str] = []
        for mistake in result.worst:
            try:
                pictures.append(eight_bits(self.thumbnail(mistake.path)))
            except BadFileError:
                continue  # it has gone since it was measured; the tables still count it
            captions.append(f"{mistake.true} → {mistake.predicted}")
        if not pictures:
            return ()
        sheet = contact_sheet(pictures, captions, [False] * len(pictures))
        text = "Wrong answers, most surprising first: the true class → the answer."
        return (Section(f"Worst {self.things}", text, pictures=(Picture(encode_png(sheet)),)),)

    def draw(self, image: Any, prediction: Any) -> Image.Image:
        return annotate_classes(image, prediction)


def class_targets(batch: Batch) -> list[ClassTarget]:
    """The targets of a batch of labelled pictures."""
    return [target for target in batch.targets if isinstance(target, ClassTarget)]


def _counts(data: ClassData, num_classes: int) -> list[int]:
    labels = torch.tensor([item.label for item in data.splits["train"]], dtype=torch.int64)
    return torch.bincount(labels, minlength=num_classes).tolist()
