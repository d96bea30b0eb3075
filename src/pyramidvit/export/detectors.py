"""What detectors find in a batch, in tensors of fixed rank and without Python that looks at values: the part of a detector's graph behind
the network. It finds what ``detect`` of `models.retinanet` and `models.mask_rcnn` finds.

Shapes: B batch, K classes, N anchors or candidates of a picture, P proposals, D detections of the whole batch, S cells per side of a mask.
Boxes are xyxy in input pixels; ``valid`` (B, 2) int64 is the height and width of each picture inside the padded batch. A score of 0 means
that there is nothing.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pyramidvit.export.suppress import suppress
from pyramidvit.models.anchor_head import AnchorMaps, rows
from pyramidvit.models.anchors import PADDED_TO
from pyramidvit.models.box_coder import ROI_DEVIATIONS, has_area, shifted
from pyramidvit.models.mask_rcnn import MaskRCNNOutputs
from pyramidvit.models.retinanet import RetinaNetOutputs
from pyramidvit.models.roi_heads import pool_regions
from pyramidvit.models.rpn import RPNConfig


class Candidates(NamedTuple):
    """Boxes of every picture, as many for each; ``labels`` are classes or levels."""

    boxes: Float[Tensor, "B N 4"]
    scores: Float[Tensor, "B N"]
    labels: Int[Tensor, "B N"]


class DetectedBoxes(NamedTuple):
    """Detections of all pictures, those of each best first; ``image`` says which picture each is in."""

    image: Int[Tensor, " D"]
    boxes: Float[Tensor, "D 4"]
    labels: Int[Tensor, " D"]
    scores: Float[Tensor, " D"]


def find_boxes(outputs: RetinaNetOutputs, valid: Int[Tensor, "B 2"]) -> DetectedBoxes:
    """Objects of every picture, by RetinaNet."""
    maps, K, config = outputs
    floor = torch.logit(torch.tensor(config.score_threshold)).item()
    parts = []
    for level, anchors in enumerate(maps.anchors()):
        logits, deltas = _level(maps, level, valid)
        best, place = logits.amax(2).topk(_at_most(config.nms_candidates, logits.shape[1]), 1)
        logits = _take(logits, place)  # (B, k, K): the best pairs of anchor and class are among those of the best anchors
        boxes = _cut(shifted(anchors[place], _take(deltas, place)), valid)
        B, k = best.shape
        if config.legacy_selection:
            pairs, order = logits.flatten(1), torch.arange(k * K, device=logits.device).expand(B, -1)
        else:
            pairs, order = logits.flatten(1).topk(_at_most(config.nms_candidates, k * K), 1)
        boxes = _take(boxes, order // K)
        there = pairs > floor if config.legacy_selection else (pairs > floor) & _has_area(boxes)
        parts.append(Candidates(boxes, torch.where(there, pairs.sigmoid(), 0), order % K))
    found = _best(_joined(parts), K, config.nms_iou, config.max_per_image)
    return _flat(found)


def propose(maps: AnchorMaps, config: RPNConfig, valid: Int[Tensor, "B 2"]) -> Candidates:
    """Proposals of every picture, as many for each; labels are levels."""
    parts = []
    for level, anchors in enumerate(maps.anchors()):
        logits, deltas = _level(maps, level, valid)
        best, place = logits[..., 0].topk(_at_most(config.candidates, logits.shape[1]), 1)
        boxes = _cut(shifted(anchors[place], _take(deltas, place)), valid)
        there = (best > -torch.inf) & _has_area(boxes)
        parts.append(Candidates(boxes, torch.where(there, best.sigmoid(), 0), torch.full_like(place, level)))
    return _best(_joined(parts), len(parts), config.nms_iou, config.proposals)


def find_masks(outputs: MaskRCNNOutputs, valid: Int[Tensor, "B 2"]) -> tuple[DetectedBoxes, Float[Tensor, "D S S"]]:
    """Objects of every picture with masks over their boxes, by Mask R-CNN."""
    config, K = outputs.config, outputs.num_classes
    proposals = propose(outputs.maps, config.rpn, valid)
    B, P = proposals.scores.shape
    image = torch.arange(B, device=valid.device)[:, None].expand(B, P)
    regions = _pool(outputs, proposals.boxes.flatten(0, 1), image.flatten(), config.box_side)
    logits, deltas = outputs.roi_heads.box(regions)
    scores = logits.softmax(1)[:, :K].unflatten(0, (B, P))
    scores = torch.where((scores > config.score_threshold) & (proposals.scores > 0)[..., None], scores, 0).transpose(1, 2)  # (B, K, P)
    boxes = shifted(proposals.boxes[:, :, None], deltas.unflatten(0, (B, P)), ROI_DEVIATIONS)  # (B, P, K, 4)
    boxes = _cut(boxes.transpose(1, 2).flatten(1, 2), valid)  # (B, K * P, 4)
    kept = suppress(boxes.reshape(B * K, P, 4), scores.reshape(B * K, 1, P), config.nms_iou, config.max_per_image)
    labels = torch.arange(K, device=valid.device)[:, None].expand(B, K, P).flatten(1)  # repeat_interleave has no right form in ONNX
    found = _flat(_top(Candidates(boxes, kept.reshape(B, K * P), labels), config.max_per_image))
    cells = _pool(outputs, found.boxes, found.image, config.mask_side)
    return found, outputs.roi_heads.mask(cells, found.labels).sigmoid()


def _level(maps: AnchorMaps, number: int, valid: Int[Tensor, "B 2"]) -> tuple[Float[Tensor, "B N K"], Float[Tensor, "B N 4"]]:
    """Logits and offsets of a level's anchors; cells that only the batch's padding has get a logit of minus infinity."""
    logits, deltas, stride = maps.logits[number], maps.deltas[number], maps.strides[number]
    _, C, H, W = deltas.shape
    anchors = C // 4
    inside = _inside(valid, stride, H, W)[..., None].expand(-1, -1, -1, anchors).flatten(1)  # (B, N)
    scores = rows(logits, logits.shape[1] // anchors).float()
    return scores.masked_fill(~inside[..., None], -torch.inf), rows(deltas, 4).float()


def _inside(valid: Int[Tensor, "B 2"], stride: int, H: int, W: int) -> Bool[Tensor, "B H W"]:
    """Cells of a level that belong to each picture, its own padding to multiples of 32 included; see `anchors.cells_of`."""
    cells = ((valid + PADDED_TO - 1) // PADDED_TO * PADDED_TO + stride - 1) // stride  # (B, 2)
    rows, columns = (torch.arange(side, device=valid.device) < cells[:, axis, None] for axis, side in enumerate((H, W)))
    return rows[:, :, None] & columns[:, None]


def _pool(outputs: MaskRCNNOutputs, boxes: Float[Tensor, "R 4"], image: Int[Tensor, " R"], side: int) -> Float[Tensor, "R C S S"]:
    return pool_regions(outputs.levels, outputs.strides, boxes, image, side)


def _cut(boxes: Float[Tensor, "B N 4"], valid: Int[Tensor, "B 2"]) -> Float[Tensor, "B N 4"]:
    """Boxes cut to their pictures."""
    limits = valid[:, [1, 0, 1, 0]].to(boxes.dtype)[:, None]  # (B, 1, 4)
    return torch.minimum(boxes.clamp(min=0), limits)


def _has_area(boxes: Float[Tensor, "B N 4"]) -> Bool[Tensor, "B N"]:
    return has_area(boxes.flatten(0, 1)).unflatten(0, boxes.shape[:2])


def _best(found: Candidates, groups: int, iou: float, limit: int) -> Candidates:
    """The best boxes of every picture that no better one of their group overlaps."""
    group = torch.arange(groups, device=found.labels.device)[:, None]
    scores = torch.where(found.labels[:, None] == group, found.scores[:, None], 0)  # (B, G, N)
    return _top(found._replace(scores=suppress(found.boxes, scores, iou, limit).amax(1)), limit)


def _top(found: Candidates, limit: int) -> Candidates:
    scores, place = found.scores.topk(_at_most(limit, found.scores.shape[1]), 1)
    return Candidates(_take(found.boxes, place), scores, found.labels.gather(1, place))


def _flat(found: Candidates) -> DetectedBoxes:
    """What is there, of all pictures."""
    image, place = (found.scores > 0).nonzero(as_tuple=True)
    return DetectedBoxes(image, found.boxes[image, place], found.labels[image, place], found.scores[image, place])


def _joined(parts: list[Candidates]) -> Candidates:
    return Candidates(*(torch.cat(same, 1) for same in zip(*parts, strict=True)))


def _take(x: Float[Tensor, "B N C"], place: Int[Tensor, "B M"]) -> Float[Tensor, "B M C"]:
    """Rows of every picture."""
    return x.gather(1, place[..., None].expand(-1, -1, x.shape[2]))


def _at_most(count: int, there: int) -> Any:
    """The smaller number, also where one of them is only known when the graph runs."""
    return torch.sym_min(count, there)
