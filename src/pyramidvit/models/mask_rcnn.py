"""Mask R-CNN (He et al. 2017, https://arxiv.org/abs/1703.06870) on a feature pyramid: proposals, then class, box and mask of each.

Conventions of MMDetection's Mask R-CNN, with which PVT was published. Shapes: B batch, R regions of all pictures, K classes, H W grid of a
level, N detections of a picture. Boxes are xyxy in input pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.anchor_head import AnchorMaps, batch_objects
from pyramidvit.models.box_coder import ROI_DEVIATIONS, decode, encode
from pyramidvit.models.found import Found, suppress
from pyramidvit.models.fpn import PyramidModel
from pyramidvit.models.layers import Backbone
from pyramidvit.models.masks import crop_masks
from pyramidvit.models.matching import Objects, check_counts, learnable, match, sample
from pyramidvit.models.roi_heads import BoxHead, MaskHead, pool_regions
from pyramidvit.models.rpn import RPN, RPNConfig, propose, rpn_losses
from pyramidvit.types import BoxTarget


@dataclass(frozen=True)
class MaskRCNNConfig:
    """Architecture, training and selection; the defaults are those of the published PVT detectors."""

    width: int = 256
    """Channels of the feature pyramid and the heads."""
    strides: tuple[int, ...] = (4, 8, 16, 32, 64)
    """Levels of proposals: input pixels per cell. Regions are read from those that the backbone has."""
    rpn: RPNConfig = field(default_factory=RPNConfig)
    """First stage."""
    box_side: int = 7
    """Cells per side of the regions from which class and box are read."""
    box_hidden: int = 1024
    """Width of the two linear layers that read them."""
    mask_side: int = 14
    """Cells per side of the regions from which masks are read; masks have twice as many."""
    mask_depth: int = 4
    """Convolutions that read them."""
    positive_iou: float = 0.5
    """A region that overlaps an object this much learns it; all others are background."""
    samples: int = 512
    """Regions per picture that learn."""
    positive_share: float = 0.25
    """Share of objects among them, at most."""
    score_threshold: float = 0.05
    """What is found needs a higher score."""
    nms_iou: float = 0.5
    """Of two boxes of a class that overlap more, the better one stays."""
    max_per_image: int = 100
    """Best detections that are kept."""


SMALL = MaskRCNNConfig(
    width=64,
    rpn=RPNConfig(candidates=300, training_candidates=500, proposals=200),
    box_hidden=256,
    mask_depth=2,
    samples=128,
)
"""For CPUs and small data."""


class RoIHeads(nn.Module):
    """Second stage: a head for classes and boxes, one for masks."""

    def __init__(self, num_classes: int, config: MaskRCNNConfig) -> None:
        super().__init__()
        self.box = BoxHead(config.width, config.box_side, config.box_hidden, num_classes)
        self.mask = MaskHead(config.width, config.mask_depth, num_classes)


class MaskRCNNOutputs(NamedTuple):
    """First stage: ``levels`` (B, C, H, W) that regions are read from, at ``strides``, and the proposal network's ``maps``; and the second
    stage, which runs on proposals: in `losses` on some drawn with the truth in view, in `detect` on the best ones."""

    levels: list[Tensor]
    strides: Sequence[int]
    maps: AnchorMaps
    roi_heads: RoIHeads
    num_classes: int
    config: MaskRCNNConfig

    def pool(self, boxes: Sequence[Float[Tensor, "N 4"]], side: int) -> Tensor:
        """Regions (R, C, side, side) of each picture's boxes."""
        return pool_regions(self.levels, self.strides, torch.cat(list(boxes)), image_of(boxes), side)


class MaskRCNN(PyramidModel):
    """Pictures (B, C, H, W) → the first stage's outputs along with the second stage, in training and evaluation alike."""

    def __init__(self, backbone: Backbone, num_classes: int, config: MaskRCNNConfig = MaskRCNNConfig()) -> None:
        super().__init__(backbone, num_classes, config.strides, config.width, extra_kind="pool")
        self.config = config
        self.rpn = RPN(config.width, config.strides, config.rpn)
        self.roi_heads = RoIHeads(num_classes, config)

    def forward(self, images: Float[Tensor, "B C H W"]) -> MaskRCNNOutputs:
        levels = self.pyramid(images)
        regions_from = [level.contiguous() for level in levels[: len(self.taken)]]  # the layout that RoIAlign reads
        strides = self.strides[: len(self.taken)]
        return MaskRCNNOutputs(regions_from, strides, self.rpn(levels), self.roi_heads, self.num_classes, self.config)


def image_of(boxes: Sequence[Tensor]) -> Tensor:
    """Number of the picture that each of all boxes belongs to, (R,)."""
    return torch.cat([torch.full((len(some),), i, device=some.device) for i, some in enumerate(boxes)])


def losses(outputs: MaskRCNNOutputs, targets: Sequence[BoxTarget], valid: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """The first stage's losses (`rpn_losses`); cross entropy of the sampled regions' classes and L1 of the positive ones' offsets, divided
    by the number of sampled regions; binary cross entropy of the positive ones' masks, averaged. All over the whole batch.

    ``targets`` are in input pixels and have masks, ``valid`` is the (height, width) of each picture inside the padded batch. Regions are
    drawn with torch's global generator. ValueError for boxes that aren't finite, labels outside the classes, and objects without masks.
    """
    config, K = outputs.config, outputs.num_classes
    check_counts(len(outputs.levels[0]), targets, valid)
    objects = [learnable(target, K, outputs.levels[0].device) for target in targets]
    if missing := sum(picture.masks is None and len(picture.boxes) > 0 for picture in objects):
        raise ValueError(f"Mask R-CNN learns from masks, and {missing} of {len(objects)} pictures have boxes only.")
    proposals = propose(outputs.maps, config.rpn, valid, training=True)
    drawn = [_regions(found.boxes, picture, config) for found, picture in zip(proposals, objects, strict=True)]
    boxes, matches = [boxes for boxes, _ in drawn], torch.cat([matches for _, matches in drawn])
    logits, deltas = outputs.roi_heads.box(outputs.pool(boxes, config.box_side))
    positive = (matches >= 0).nonzero().flatten()
    image, index = image_of(boxes)[positive], matches[positive]
    wanted, labels = batch_objects(objects, image, index)
    classes = torch.full_like(matches, K)
    classes[positive] = labels
    offsets = encode(torch.cat(boxes)[positive], wanted, ROI_DEVIATIONS)
    count = max(len(matches), 1)
    return rpn_losses(outputs.maps, config.rpn, objects, valid) | {
        "classes": F.cross_entropy(logits, classes, reduction="sum") / count,
        "boxes": F.l1_loss(deltas[positive, labels], offsets, reduction="sum") / count,
        "masks": _mask_loss(outputs, objects, boxes, matches),
    }


def _regions(proposals: Float[Tensor, "N 4"], objects: Objects, config: MaskRCNNConfig) -> tuple[Tensor, Tensor]:
    """Regions of a picture to learn from, and the object of each or BACKGROUND: some of the proposals and of the objects themselves."""
    matches = match(proposals, objects, config.positive_iou, config.positive_iou, best_from=config.positive_iou)
    candidates = torch.cat((objects.boxes, proposals))
    matches = torch.cat((torch.arange(len(objects.boxes), device=matches.device), matches))
    positives, negatives = sample(matches, config.samples, config.positive_share)
    chosen = torch.cat((positives, negatives))
    return candidates[chosen], matches[chosen]


def _mask_loss(outputs: MaskRCNNOutputs, objects: Sequence[Objects], boxes: Sequence[Tensor], matches: Tensor) -> Tensor:
    """Binary cross entropy of the masks of all positive regions."""
    side = outputs.config.mask_side
    regions, labels, truths = [], [], []
    for picture, some, matched in zip(objects, boxes, matches.split([len(some) for some in boxes]), strict=True):
        positive = matched >= 0
        regions.append(some[positive])
        labels.append(picture.labels[matched[positive]])
        if picture.masks is not None:
            truths.append(crop_masks(picture.masks, matched[positive], regions[-1], 2 * side))
    logits = outputs.roi_heads.mask(outputs.pool(regions, side), torch.cat(labels))
    truth = torch.cat(truths) if truths else torch.zeros_like(logits)
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / max(logits.numel(), 1)


@torch.no_grad()
def detect(outputs: MaskRCNNOutputs, valid: Sequence[tuple[int, int]]) -> list[Found]:
    """Objects of every picture, with masks; ``valid`` is the (height, width) of each inside the padded batch, to which boxes are cut."""
    config = outputs.config
    proposals = [found.boxes for found in propose(outputs.maps, config.rpn, valid)]
    logits, deltas = outputs.roi_heads.box(outputs.pool(proposals, config.box_side))
    counts = [len(boxes) for boxes in proposals]
    found = []
    for origins, scores, offsets, size in zip(proposals, logits.softmax(1).split(counts), deltas.split(counts), valid, strict=True):
        region, label = (scores[:, :-1] > config.score_threshold).nonzero(as_tuple=True)
        boxes = decode(origins[region], offsets[region, label], size, ROI_DEVIATIONS)
        found.append(suppress(boxes, scores[region, label], label, config.nms_iou, config.max_per_image))
    regions = outputs.pool([one.boxes for one in found], config.mask_side)
    masks = outputs.roi_heads.mask(regions, torch.cat([one.labels for one in found])).sigmoid()
    return [one._replace(masks=some) for one, some in zip(found, masks.split([len(one.boxes) for one in found]), strict=True)]
