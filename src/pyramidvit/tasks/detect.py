"""Object detection (RetinaNet) and instance segmentation (Mask R-CNN): a picture in, its objects out. B batch, N objects, H W pixels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import batched_nms

from pyramidvit.config import RunConfig
from pyramidvit.data.anchor_fit import Anchors
from pyramidvit.data.boxes import BoxData, read_box_data
from pyramidvit.data.dense_check import check_box_data
from pyramidvit.data.findings import CheckReport
from pyramidvit.draw import annotate_detections, precision_recall_picture
from pyramidvit.geometry import decode_rle, encode_mask, encode_window
from pyramidvit.metrics import DetectionMetric, DetectionResult
from pyramidvit.models import mask_rcnn, retinanet
from pyramidvit.models.found import Deferred, Found
from pyramidvit.models.masks import THRESHOLD, paste_windows
from pyramidvit.tasks import Headline, Summary
from pyramidvit.tasks.dense import DenseTask
from pyramidvit.tasks.heads import mask_rcnn_config, retinanet_config
from pyramidvit.tasks.pictures import read_options
from pyramidvit.tiling import Window, merge_detections
from pyramidvit.types import Batch, BoxTarget, Detections, Picture, Rle, Section

MIN_SCORE = 0.3
"""Detections that are drawn where the evaluation has not said which score is best."""


class DetectTask(DenseTask):
    """Where the objects of K classes are, as boxes, with RetinaNet."""

    name = "detect"
    title = "Object detection"
    head = "classes."
    masks = False

    @classmethod
    def read_data(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None) -> BoxData:
        """COCO, VOC, YOLO or VIA annotations, or a mask picture per object; ``classes`` are those of a trained network."""
        return cls._read(root, config, classes)

    @classmethod
    def _read(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None, *, strict: bool = True) -> BoxData:
        settings = config.data
        return read_box_data(
            root,
            val_share=settings.val_share,
            seed=config.loop.seed,
            classes=classes,
            masks=cls.masks,
            on_bad_box=settings.on_bad_box,
            strict=strict,
        )

    @classmethod
    def check_data(cls, root: Path, config: RunConfig) -> CheckReport:
        """Pictures and objects, and whether the anchors of the settings reach them."""
        data = cls._read(root, config, strict=False)
        return check_box_data(data, read_options(config), view=config.dense, anchors=cls.anchors(config), workers=config.data.workers)

    @classmethod
    def anchors(cls, config: RunConfig) -> Anchors:
        """Those of the settings."""
        head = retinanet_config(config.head)
        return Anchors(head.strides, head.anchor_scale, head.anchor_octaves, head.anchor_ratios)

    @classmethod
    def data_from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> BoxData:
        """What a run wrote down; ``root`` is where the data is now, if it has moved."""
        return BoxData.from_json(content, root)

    def build(self, backbone: Any) -> nn.Module:
        return retinanet.RetinaNet(backbone, len(self.classes), retinanet_config(self.config.head))

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Focal loss of the classes and L1 of the boxes, over the whole batch."""
        return retinanet.losses(outputs, objects_of(batch), batch.valid)

    def find(self, outputs: Any, valid: Sequence[tuple[int, int]]) -> list[Found]:
        """Objects in pixels of the input."""
        return retinanet.detect(outputs, valid)

    def predict(self, outputs: Any, batch: Batch) -> list[Detections]:
        """Objects in pixels of the original pictures, best first."""
        found = outputs.find(batch.valid) if isinstance(outputs, Deferred) else self.find(outputs, batch.valid)
        return [
            self._in_original(one, path, inside, size)
            for one, path, inside, size in zip(found, batch.paths, batch.valid, batch.sizes, strict=True)
        ]

    def _in_original(self, found: Found, path: str, inside: tuple[int, int], size: tuple[int, int]) -> Detections:
        y, x = size[0] / inside[0], size[1] / inside[1]
        boxes = found.boxes.float().cpu() * torch.tensor((x, y, x, y))
        masks = None if found.masks is None else pasted(found.masks.float().cpu(), boxes, size)
        return Detections(path, self.classes, size, boxes, found.labels.cpu(), found.scores.float().cpu(), masks)

    def answers(self, outputs: Any, batch: Batch) -> list[Detections]:
        return self.predict(outputs, batch)

    def mirrored(self, answer: Detections) -> Detections:
        width = answer.size[1]
        left, top, right, bottom = answer.boxes.unbind(1)
        masks = None if answer.masks is None else tuple(encode_mask(decode_rle(mask).flip(-1)) for mask in answer.masks)
        return replace(answer, boxes=torch.stack((width - right, top, width - left, bottom), 1), masks=masks)

    def combine(self, answers: Sequence[Detections]) -> Detections:
        """Of boxes of a class that overlap, the best, whichever look it comes from."""
        if len(answers) == 1:
            return answers[0]
        boxes, labels, scores = (torch.cat([getattr(one, name) for one in answers]) for name in ("boxes", "labels", "scores"))
        masks = [mask for one in answers for mask in one.masks or ()]
        keep = batched_nms(boxes, scores, labels, self.overlap)[: max(len(one) for one in answers)]
        kept = tuple(masks[index] for index in keep.tolist()) if self.masks else None
        return replace(answers[0], boxes=boxes[keep], labels=labels[keep], scores=scores[keep], masks=kept)

    def join(self, path: str, size: tuple[int, int], windows: Sequence[Window], answers: Iterable[Detections]) -> Detections:
        """Objects on seams are put together."""
        parts = list(answers)
        return replace(parts[0], path=path) if len(parts) == 1 else merge_detections(path, size, windows, parts)

    @property
    def overlap(self) -> float:
        """IoU above which two boxes of a class count as one object."""
        return retinanet_config(self.config.head).nms_iou

    def metric(self) -> DetectionMetric:
        return DetectionMetric(self.classes, masks=self.masks)

    def summarize(self, result: DetectionResult) -> Summary:
        """COCO's average precision, curves, and the pictures with most mistakes at the best threshold."""
        kind, best = ("mask" if self.masks else "box"), result.best
        lines = [
            f"{name} AP {_percent(precision.numbers['AP'])}, AP50 {_percent(precision.numbers['AP50'])}, "
            f"AP75 {_percent(precision.numbers['AP75'])} ({result.objects} objects in {result.n} pictures)"
            for name, precision in (("box", result.box), ("mask", result.mask))
            if precision is not None
        ]
        facts = (("pictures measured", str(result.n)), ("objects", str(result.objects)), ("classes", str(len(self.classes))))
        headline = Headline(f"{kind.capitalize()} AP", result.headline[1])
        twelve, *per_class = result.tables()
        if best is None:
            text = f"{kind} AP does not exist: {result.reason}"
            return Summary(headline, (*lines, text), facts, (Section("Average precision", f"{text}.", tables=(twelve,)),))
        threshold = best.score
        lines.append(f"at score {threshold:.2f}: precision {best.precision:.1%}, recall {best.recall:.1%}, F1 {best.f1:.1%}")
        curves = precision_recall_picture(result.main)
        return Summary(
            headline,
            tuple(lines),
            (*facts, ("best threshold", f"{threshold:.2f}")),
            (
                Section("Average precision", tables=(twelve,)),
                Section("Classes", tables=tuple(per_class), pictures=(Picture(curves, "Precision over recall at overlap 0.5"),)),
                *self.worst_pictures(
                    f"Most mistakes at score {threshold:.2f}; dashed boxes are the truth.",
                    [
                        (poor.path, lambda image, poor=poor: annotate_detections(image, poor.found, poor.truth, min_score=threshold))
                        for poor in result.worst
                    ],
                ),
            ),
            {"precision_recall.png": curves},
        )

    @property
    def min_score(self) -> float:
        """The score that was best in the evaluation."""
        return float(self.measured.get("best_score", MIN_SCORE))

    def shown(self, prediction: Detections) -> Detections:
        """Objects with at least that score."""
        return prediction.above(self.min_score)

    def draw(self, image: np.ndarray, prediction: Detections) -> Image.Image:
        return annotate_detections(image, prediction, min_score=self.min_score)


class InstancesTask(DetectTask):
    """Where the objects of K classes are, as boxes and masks, with Mask R-CNN."""

    name = "instances"
    title = "Instance segmentation"
    head = "roi_heads."
    masks = True

    @classmethod
    def anchors(cls, config: RunConfig) -> Anchors:
        """Those of the first stage."""
        head = mask_rcnn_config(config.head)
        return Anchors(head.strides, head.rpn.anchor_scale, 1, head.rpn.anchor_ratios)

    def build(self, backbone: Any) -> nn.Module:
        return mask_rcnn.MaskRCNN(backbone, len(self.classes), mask_rcnn_config(self.config.head))

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Losses of both stages, over the whole batch."""
        return mask_rcnn.losses(outputs, objects_of(batch), batch.valid)

    def find(self, outputs: Any, valid: Sequence[tuple[int, int]]) -> list[Found]:
        """Objects in pixels of the input, with masks."""
        return mask_rcnn.detect(outputs, valid)


def objects_of(batch: Batch) -> list[BoxTarget]:
    """The targets of a batch of pictures with objects."""
    return [target for target in batch.targets if isinstance(target, BoxTarget)]


def pasted(probabilities: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[Rle, ...]:
    """Masks (N, S, S) over boxes → masks of the whole picture, one object in memory at a time."""
    windows = paste_windows(probabilities, boxes, size)
    return tuple(encode_window(window.probabilities >= THRESHOLD, window.top, window.left, size) for window in windows)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"
