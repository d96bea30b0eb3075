"""Second stage of Mask R-CNN (He et al. 2017, https://arxiv.org/abs/1703.06870): class, box and mask of each region of a pyramid.

Conventions of MMDetection's standard RoI head. Shapes: R regions of all pictures of a batch, C channels, S cells per side, K classes.
Boxes are xyxy in input pixels.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torchvision.ops import roi_align

from pyramidvit.models.fpn import PointConv, climb, init_normal, tower
from pyramidvit.models.kernels import Linear

FINEST_SCALE = 56
"""Regions with sides below twice this many pixels are read from the finest level."""


def levels_for(boxes: Float[Tensor, "R 4"], levels: int) -> Int[Tensor, " R"]:
    """Index of the level that each region is read from: twice the size, one level coarser."""
    scale = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    return torch.log2(scale / FINEST_SCALE + 1e-6).floor().clamp(0, levels - 1).long()


def pool_regions(
    levels: Sequence[Float[Tensor, "B C _ _"]], strides: Sequence[int], boxes: Float[Tensor, "R 4"], image: Int[Tensor, " R"], side: int
) -> Float[Tensor, "R C S S"]:
    """RoIAlign of every region on its level; samples are half a cell away from borders, as many per cell as its size asks for."""
    regions = torch.cat((image[:, None].to(boxes), boxes), 1)
    place = levels_for(boxes, len(levels))
    pooled, order = [], []
    for number, (level, stride) in enumerate(zip(levels, strides, strict=True)):
        here = (place == number).nonzero().flatten()
        pooled.append(roi_align(level.float(), regions[here], side, 1 / stride, sampling_ratio=0, aligned=True))
        order.append(here)
    found = torch.cat(order)
    return torch.cat(pooled)[torch.empty_like(place).index_copy_(0, found, torch.arange(place.shape[0], device=place.device))]


class BoxHead(nn.Module):
    """Pooled regions (R, C, S, S) → class logits (R, K + 1), background last, and box offsets (R, K, 4)."""

    def __init__(self, width: int, side: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList([Linear(width * side * side, hidden), Linear(hidden, hidden)])
        self.classes = Linear(hidden, num_classes + 1)
        self.boxes = Linear(hidden, num_classes * 4)
        for layer in self.hidden:
            nn.init.xavier_uniform_(layer.get_parameter("weight"))
        nn.init.normal_(self.classes.weight, 0, 0.01)
        nn.init.normal_(self.boxes.weight, 0, 0.001)
        for layer in (*self.hidden, self.classes, self.boxes):
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Float[Tensor, "R C S S"]) -> tuple[Float[Tensor, "R K1"], Float[Tensor, "R K 4"]]:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.classes(x).float(), self.boxes(x).float().unflatten(1, (-1, 4))


class MaskHead(nn.Module):
    """Pooled regions (R, C, S, S) → mask logits of each one's class, (R, 2 * S, 2 * S)."""

    def __init__(self, width: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.convs = tower(width, width, depth)
        self.upsample = nn.ConvTranspose2d(width, width, 2, 2)
        self.masks = PointConv(width, num_classes)
        for layer in (*self.convs, self.upsample):
            nn.init.kaiming_normal_(layer.get_parameter("weight"), mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))
        init_normal(self.masks)  # by its few outputs, as published, the last layer would begin far too sure of itself

    def forward(self, x: Float[Tensor, "R C S S"], labels: Int[Tensor, " R"]) -> Float[Tensor, "R S2 S2"]:
        x = self.masks(F.relu_(self.upsample(climb(x, self.convs))))
        return x[torch.arange(x.shape[0], device=x.device), labels].float()
