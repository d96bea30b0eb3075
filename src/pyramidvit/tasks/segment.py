"""Semantic segmentation: a picture in, a class for every pixel out. B batch, K classes, H W pixels."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from pyramidvit.config import RunConfig
from pyramidvit.data.dense_check import check_mask_data
from pyramidvit.data.findings import CheckReport
from pyramidvit.data.masks import MaskData, read_mask_data
from pyramidvit.draw import annotate_segmentation, confusion_picture
from pyramidvit.metrics import SegmentationMetric, SegmentationResult
from pyramidvit.models.semantic_fpn import SemanticFPN, SemanticFPNOutputs, label_maps, logits_at_input_size, losses
from pyramidvit.tasks import Headline, Summary
from pyramidvit.tasks.dense import DenseTask
from pyramidvit.tasks.heads import semantic_fpn_config
from pyramidvit.tasks.pictures import read_options
from pyramidvit.tiling import Window, stitch_labels
from pyramidvit.types import Batch, MaskTarget, Picture, Section, SegMap


class SegmentTask(DenseTask):
    """Which of K classes each pixel shows, with Semantic FPN."""

    name = "segment"
    title = "Semantic segmentation"
    head = "classes."

    @classmethod
    def read_data(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None) -> MaskData:
        """Pictures with a mask file each; ``classes`` are those of a trained network."""
        return _read(root, config, classes)

    @classmethod
    def data_from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> MaskData:
        """What a run wrote down; ``root`` is where the data is now, if it has moved."""
        return MaskData.from_json(content, root)

    @classmethod
    def check_data(cls, root: Path, config: RunConfig) -> CheckReport:
        """Pictures, masks and what their values mean."""
        return check_mask_data(_read(root, config, strict=False), read_options(config), workers=config.data.workers)

    def build(self, backbone: Any) -> SemanticFPN:
        return SemanticFPN(backbone, len(self.classes), semantic_fpn_config(self.config.head))

    def loss(self, outputs: SemanticFPNOutputs, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy over the labelled pixels of the batch."""
        return losses(outputs, [target for target in batch.targets if isinstance(target, MaskTarget)], batch.valid)

    def predict(self, outputs: SemanticFPNOutputs, batch: Batch) -> list[SegMap]:
        """The best class of every pixel of the original pictures."""
        maps = label_maps(outputs, batch.valid, batch.sizes)
        return [SegMap(path, self.classes, labels.cpu()) for path, labels in zip(batch.paths, maps, strict=True)]

    def answers(self, outputs: SemanticFPNOutputs, batch: Batch) -> list[Tensor]:
        """Probabilities (K, H, W) in the original pictures."""
        inside = logits_at_input_size(outputs, batch.valid)
        return [
            F.interpolate(logits[None], size, mode="bilinear")[0].softmax(0).cpu() for logits, size in zip(inside, batch.sizes, strict=True)
        ]

    def mirrored(self, answer: Tensor) -> Tensor:
        return answer.flip(-1)

    def combine(self, answers: Sequence[Tensor]) -> Tensor:
        """The mean."""
        return answers[0] if len(answers) == 1 else torch.stack(list(answers)).mean(0)

    def join(self, path: str, size: tuple[int, int], windows: Sequence[Window], answers: Iterable[Tensor]) -> SegMap:
        """Blended across seams."""
        return SegMap(path, self.classes, stitch_labels(size, windows, answers))

    def metric(self) -> SegmentationMetric:
        return SegmentationMetric(self.classes)

    def summarize(self, result: SegmentationResult) -> Summary:
        """Mean IoU beside that of the most frequent class; classes, confusion, the worst pictures with their truth."""
        low, high = result.interval
        lines = (
            f"mean IoU {result.miou:.1%} (95 % interval {low:.1%} to {high:.1%}, {result.n} pictures); chance {result.chance:.1%}",
            f"mean Dice {result.dice:.1%}, pixel accuracy {result.pixel_accuracy:.1%}",
        )
        measures, classes = result.tables()
        confusion = confusion_picture(result)
        return Summary(
            Headline("Mean IoU", result.miou, result.interval, result.chance, "the most frequent class everywhere"),
            lines,
            (("pictures measured", str(result.n)), ("classes", str(len(self.classes))), ("pixel accuracy", f"{result.pixel_accuracy:.1%}")),
            (
                Section("Overlap", tables=(measures,)),
                Section("Classes", tables=(classes,)),
                Section("What is taken for what", "Counts are pixels.", pictures=(Picture(confusion),)),
                *self.worst_pictures(
                    "Lowest mean IoU first; on the left what was predicted, on the right the truth.",
                    [
                        (
                            poor.path,
                            lambda image, poor=poor: annotate_segmentation(
                                image, SegMap(poor.path, self.classes, poor.prediction), MaskTarget(poor.truth)
                            ),
                        )
                        for poor in result.worst
                    ],
                ),
            ),
            {"confusion.png": confusion},
        )

    def draw(self, image: np.ndarray, prediction: SegMap) -> Image.Image:
        return annotate_segmentation(image, prediction)


def _read(root: Path, config: RunConfig, classes: Sequence[str] | None = None, *, strict: bool = True) -> MaskData:
    settings = config.data
    return read_mask_data(
        root,
        val_share=settings.val_share,
        seed=config.loop.seed,
        classes=settings.class_names,
        value_map={int(value): int(label) for value, label in (pair.split(":") for pair in settings.mask_map)},
        reduce_zero=settings.reduce_zero_label,
        trained=classes,
        strict=strict,
    )
