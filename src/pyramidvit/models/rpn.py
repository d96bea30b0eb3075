"""Region proposal network (Ren et al. 2015, https://arxiv.org/abs/1506.01497): where on a pyramid there may be objects, of any class.

Conventions of MMDetection's RPN head. Shapes: B batch, A anchors per cell, H W grid of a level, N proposals. Boxes are xyxy in
input pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.anchor_head import AnchorMaps, box_loss, levels_of, match_all, rows
from pyramidvit.models.box_coder import decode, has_area
from pyramidvit.models.found import Found, suppress
from pyramidvit.models.fpn import ConvReLU, PointConv, init_normal
from pyramidvit.models.matching import Objects, sample


@dataclass(frozen=True)
class RPNConfig:
    """Architecture, training and selection; the defaults are the published ones."""

    anchor_scale: float = 8.0
    """Side of a level's anchors, in strides."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Heights of anchors divided by their widths."""
    positive_iou: float = 0.7
    """An anchor that overlaps an object this much is one."""
    negative_iou: float = 0.3
    """One that overlaps none this much is background; between the two it learns nothing."""
    best_iou: float = 0.3
    """The anchors that overlap an object most are one as well, from this IoU on."""
    samples: int = 256
    """Anchors per picture that learn."""
    positive_share: float = 0.5
    """Share of objects among them, at most."""
    candidates: int = 1000
    """Best anchors of each level that are looked at."""
    training_candidates: int = 2000
    """The same in training."""
    nms_iou: float = 0.7
    """Of two proposals of a level that overlap more, the better one stays."""
    proposals: int = 1000
    """Best proposals of a picture that are kept."""


class RPN(nn.Module):
    """Levels of a pyramid → objectness and box offsets of every anchor."""

    def __init__(self, width: int, strides: Sequence[int], config: RPNConfig) -> None:
        super().__init__()
        self.config, self.strides = config, tuple(strides)
        anchors = len(config.anchor_ratios)
        self.conv = ConvReLU(width, width)
        self.objectness = PointConv(width, anchors)
        self.boxes = PointConv(width, anchors * 4)
        init_normal(self)

    def forward(self, levels: Sequence[Float[Tensor, "B C _ _"]]) -> AnchorMaps:
        hidden = [self.conv(x) for x in levels]
        sizes = [(self.config.anchor_scale * stride,) for stride in self.strides]
        objectness, deltas = [self.objectness(x) for x in hidden], [self.boxes(x) for x in hidden]
        return AnchorMaps(objectness, deltas, sizes, self.config.anchor_ratios, self.strides)


def rpn_losses(maps: AnchorMaps, config: RPNConfig, objects: Sequence[Objects], valid: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """Binary cross entropy of the sampled anchors' objectness and L1 of the positive ones' offsets, both summed over the batch and divided
    by its number of sampled anchors."""
    anchors = maps.anchors()
    matches = match_all(maps, anchors, objects, valid, (config.positive_iou, config.negative_iou, config.best_iou))
    drawn = [sample(found, config.samples, config.positive_share) for found in matches]
    positives = torch.cat([torch.stack((torch.full_like(p, i), p, matches[i, p]), 1) for i, (p, _) in enumerate(drawn)])
    negatives = torch.cat([torch.stack((torch.full_like(n, i), n), 1) for i, (_, n) in enumerate(drawn)])
    chosen = torch.cat((positives[:, :2], negatives))
    objectness = torch.cat([rows(x, 1) for x in maps.logits], 1)[chosen[:, 0], chosen[:, 1], 0].float()
    truth = torch.zeros_like(objectness)
    truth[: len(positives)] = 1
    count = max(len(chosen), 1)
    classes = F.binary_cross_entropy_with_logits(objectness, truth, reduction="sum") / count
    return {"rpn_objects": classes, "rpn_boxes": box_loss(maps, anchors, objects, positives) / count}


@torch.no_grad()
def propose(maps: AnchorMaps, config: RPNConfig, valid: Sequence[tuple[int, int]], training: bool = False) -> list[Found]:
    """The best boxes of every picture, without those that a better one of their level overlaps; labels are levels."""
    anchors = maps.anchors()
    count = config.training_candidates if training else config.candidates
    proposals = []
    for image, size in enumerate(valid):
        boxes, scores, numbers = [], [], []
        for number, level in enumerate(levels_of(maps, anchors, image, size)):
            best, index = level.logits[:, 0].topk(min(count, len(level.logits)))
            box = decode(level.anchors[index], level.deltas[index], size)
            keep = has_area(box)
            boxes.append(box[keep])
            scores.append(best[keep].sigmoid())
            numbers.append(torch.full_like(index[keep], number))
        proposals.append(suppress(torch.cat(boxes), torch.cat(scores), torch.cat(numbers), config.nms_iou, config.proposals))
    return proposals
