"""RetinaNet (Lin et al. 2017, https://arxiv.org/abs/1708.02002): one stage, anchors on every level, focal loss.

Conventions of MMDetection's RetinaNet, with which PVT was published: the sixth level comes from the backbone's last map, anchors are not
rounded and stand at fixed strides, there is no background class. Shapes: B batch, K classes, A anchors per cell, H W grid of a level, N
anchors of a level or detections of a picture. Boxes are xyxy in input pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.anchor_head import AnchorMaps, batch_objects, box_loss, levels_of, match_all, rows
from pyramidvit.models.box_coder import decode, has_area
from pyramidvit.models.found import Found, suppress
from pyramidvit.models.fpn import PyramidModel, climb, init_normal, tower
from pyramidvit.models.layers import Backbone
from pyramidvit.models.matching import IGNORED, check_counts, learnable
from pyramidvit.types import BoxTarget

PRIOR = 0.01
"""Probability of an object that the classifier starts with."""
ALPHA = 0.25
"""Weight of objects in the focal loss, 1 - ALPHA that of the background; its exponent is 2."""


@dataclass(frozen=True)
class RetinaNetConfig:
    """Architecture, training and selection; the defaults are those of the published PVT detectors."""

    width: int = 256
    """Channels of the feature pyramid and the head."""
    depth: int = 4
    """Convolutions before the last one, for classes and for boxes."""
    norm_groups: int = 0
    """Groups of a GroupNorm behind each of these; 0: no norm, as published."""
    strides: tuple[int, ...] = (8, 16, 32, 64, 128)
    """Levels: input pixels per cell. Those that the backbone doesn't have are added behind its last one."""
    anchor_scale: float = 4.0
    """Side of a level's smallest anchor, in strides."""
    anchor_octaves: int = 3
    """Anchor sizes per level, in equal ratios up to twice the smallest one."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Heights of anchors divided by their widths."""
    positive_iou: float = 0.5
    """An anchor that overlaps an object this much learns it."""
    negative_iou: float = 0.4
    """One that overlaps none this much is background; between the two it learns nothing."""
    score_threshold: float = 0.05
    """What is found needs a higher score."""
    nms_iou: float = 0.5
    """Of two boxes of a class that overlap more, the better one stays."""
    nms_candidates: int = 1000
    """Best candidates of each level that are looked at."""
    max_per_image: int = 100
    """Best detections that are kept."""
    legacy_selection: bool = False
    """Candidates are the best anchors by their highest score, empty boxes included, as in MMDetection before 2.19; else pairs of anchor
    and class above the threshold."""

    @property
    def anchor_sizes(self) -> tuple[tuple[float, ...], ...]:
        """Sides of square anchors in pixels, per level."""
        steps = [2 ** (i / self.anchor_octaves) for i in range(self.anchor_octaves)]
        return tuple(tuple(self.anchor_scale * stride * step for step in steps) for stride in self.strides)


SMALL = RetinaNetConfig(width=64, depth=2, norm_groups=8, strides=(8, 16, 32, 64), anchor_octaves=2)
"""For CPUs and small data."""


class RetinaNetOutputs(NamedTuple):
    """Class logits and box offsets of all anchors, and how to read them."""

    maps: AnchorMaps
    num_classes: int
    config: RetinaNetConfig


class RetinaNet(PyramidModel):
    """Pictures (B, C, H, W) → logits and box offsets of every anchor, in training and evaluation alike."""

    def __init__(self, backbone: Backbone, num_classes: int, config: RetinaNetConfig = RetinaNetConfig()) -> None:
        super().__init__(backbone, num_classes, config.strides, config.width)
        self.config = config
        anchors = config.anchor_octaves * len(config.anchor_ratios)
        self.class_tower = tower(config.width, config.width, config.depth, config.norm_groups)
        self.box_tower = tower(config.width, config.width, config.depth, config.norm_groups)
        self.classes = nn.Conv2d(config.width, anchors * num_classes, 3, padding=1)
        self.boxes = nn.Conv2d(config.width, anchors * 4, 3, padding=1)
        for part in (self.class_tower, self.box_tower, self.classes, self.boxes):
            init_normal(part)
        nn.init.constant_(self.classes.get_parameter("bias"), -log((1 - PRIOR) / PRIOR))

    def forward(self, images: Float[Tensor, "B C H W"]) -> RetinaNetOutputs:
        levels = self.pyramid(images)
        logits = [self.classes(climb(x, self.class_tower)) for x in levels]
        deltas = [self.boxes(climb(x, self.box_tower)) for x in levels]
        config = self.config
        return RetinaNetOutputs(
            AnchorMaps(logits, deltas, config.anchor_sizes, config.anchor_ratios, config.strides), self.num_classes, config
        )


def losses(outputs: RetinaNetOutputs, targets: Sequence[BoxTarget], valid: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """Focal loss of the classes and L1 of the box offsets, each summed over the batch and divided by its number of positive anchors.

    ``targets`` are in input pixels, ``valid`` the (height, width) of each picture inside the padded batch. ValueError for boxes that aren't
    finite and labels outside the classes.
    """
    maps, K, config = outputs
    check_counts(len(maps.deltas[0]), targets, valid)
    objects = [learnable(target, K, maps.deltas[0].device) for target in targets]
    anchors = maps.anchors()
    matches = match_all(maps, anchors, objects, valid, (config.positive_iou, config.negative_iou, 0))
    class_loss = torch.zeros((), device=matches.device)
    for logits, matched in zip(maps.logits, matches.split([len(level) for level in anchors], 1), strict=True):
        image, anchor = (matched >= 0).nonzero(as_tuple=True)
        _, labels = batch_objects(objects, image, matched[image, anchor])
        class_loss = class_loss + focal_loss(rows(logits, K).float(), matched == IGNORED, (image, anchor, labels))
    image, anchor = (matches >= 0).nonzero(as_tuple=True)
    offsets = box_loss(maps, anchors, objects, torch.stack((image, anchor, matches[image, anchor]), 1))
    count = max(len(image), 1)
    return {"classes": class_loss / count, "boxes": offsets / count}


def focal_loss(logits: Float[Tensor, "B N K"], ignored: Tensor, positives: tuple[Tensor, Tensor, Tensor]) -> Float[Tensor, ""]:
    """Focal loss summed over all logits but the rows (B, N) ``ignored``; ``positives`` index those that should be 1, the rest should be 0.

    All logits are taken as background first, then the few exceptions are put right: no tensor of targets is needed.
    """
    objects = logits[positives]
    right = ALPHA * (1 - objects.sigmoid()).square() * F.softplus(-objects)
    rows = _background(logits).sum(2).masked_fill(ignored, 0)
    return rows.sum() + (right - _background(objects)).sum()


def _background(logits: Tensor) -> Tensor:
    return (1 - ALPHA) * logits.sigmoid().square() * F.softplus(logits)


def detect(outputs: RetinaNetOutputs, valid: Sequence[tuple[int, int]]) -> list[Found]:
    """Objects of every picture; ``valid`` is the (height, width) of each inside the padded batch, which boxes are cut to."""
    anchors = outputs.maps.anchors()
    return [_detect_one(outputs, anchors, image, size) for image, size in enumerate(valid)]


def _detect_one(outputs: RetinaNetOutputs, anchors: list[Tensor], image: int, valid: tuple[int, int]) -> Found:
    config = outputs.config
    select = _best_anchors if config.legacy_selection else _best_pairs
    floor = torch.logit(torch.tensor(config.score_threshold)).item()
    boxes, logits, labels = [], [], []
    for level in levels_of(outputs.maps, anchors, image, valid):
        anchor, label = select(level.logits, floor, config.nms_candidates)
        boxes.append(decode(level.anchors[anchor], level.deltas[anchor], valid))
        logits.append(level.logits[anchor, label])
        labels.append(label)
    found = torch.cat(boxes), torch.cat(logits).sigmoid(), torch.cat(labels)
    if not config.legacy_selection:
        keep = has_area(found[0])
        found = found[0][keep], found[1][keep], found[2][keep]
    return suppress(*found, config.nms_iou, config.max_per_image)


def _best_pairs(logits: Float[Tensor, "N K"], floor: float, count: int) -> tuple[Tensor, Tensor]:
    """Anchor and class of the best pairs above ``floor``."""
    anchor, label = (logits > floor).nonzero(as_tuple=True)
    best = logits[anchor, label].topk(min(count, len(anchor))).indices
    return anchor[best], label[best]


def _best_anchors(logits: Float[Tensor, "N K"], floor: float, count: int) -> tuple[Tensor, Tensor]:
    """Anchor and class of all pairs above ``floor`` of the anchors whose best class is best."""
    best = logits.amax(1).topk(min(count, len(logits))).indices
    anchor, label = (logits[best] > floor).nonzero(as_tuple=True)
    return best[anchor], label
