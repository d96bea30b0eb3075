"""A network as a graph: named tensors in, named tensors out; and its answers read back as the tasks know them.

Shapes: B batch, C channels, K classes, D detections of the whole batch, S cells per side of a mask, H W pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyramidvit.export.detectors import find_boxes, find_masks
from pyramidvit.models.classifier import Classifier
from pyramidvit.models.found import Deferred, Found
from pyramidvit.models.layers import Backbone
from pyramidvit.models.mask_rcnn import MaskRCNN
from pyramidvit.models.retinanet import RetinaNet
from pyramidvit.models.semantic_fpn import SemanticFPN, SemanticFPNOutputs

Run = Callable[..., list[Tensor]]
"""A graph that runs: tensors in the order of its inputs → tensors in the order of its outputs."""


class Graph(nn.Module):
    """Pictures (B, C, H, W) or clips (B, C, T, H, W) → class logits (B, K)."""

    inputs: ClassVar[tuple[str, ...]] = ("images",)
    outputs: tuple[str, ...] = ("logits",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.model(images),)


class Maps(Graph):
    """A bare backbone → its maps, finest first."""

    def __init__(self, model: Backbone) -> None:
        super().__init__(model)
        self.outputs = tuple(f"map_{info.stride}" for info in model.feature_info)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(images))


class Segmentation(Graph):
    """Pictures → class logits (B, K, H / 4, W / 4)."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.model(images).logits,)


class Boxes(Graph):
    """Pictures and the (height, width) of each in the padded batch, ``valid`` (B, 2) int64 → for all objects of the batch, picture by
    picture and the best first: number of the picture (D,), boxes (D, 4) xyxy in input pixels, labels (D,), scores (D,)."""

    inputs = ("images", "valid")
    outputs = ("image", "boxes", "labels", "scores")

    def forward(self, images: Tensor, valid: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(find_boxes(self.model(images), valid))


class BoxesAndMasks(Graph):
    """Like `Boxes`, with masks (D, S, S): probabilities on a grid over each box, which pasting onto the picture is left to the caller."""

    inputs = ("images", "valid")
    outputs = (*Boxes.outputs, "masks")

    def forward(self, images: Tensor, valid: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        found, masks = find_masks(self.model(images), valid)
        return (*found, masks)


GRAPHS: dict[type[nn.Module], type[Graph]] = {
    Classifier: Graph,
    SemanticFPN: Segmentation,
    RetinaNet: Boxes,
    MaskRCNN: BoxesAndMasks,
}
"""Network → its graph; bare backbones have `Maps`."""


def graph_of(model: nn.Module) -> Graph:
    """The graph of a network in evaluation mode."""
    return Maps(model).eval() if isinstance(model, Backbone) else GRAPHS[type(model)](model).eval()


def backbone_of(model: nn.Module) -> Backbone:
    """What looks at the pictures."""
    backbone = model if isinstance(model, Backbone) else model.get_submodule("backbone")
    assert isinstance(backbone, Backbone)
    return backbone


def answer(outputs: Sequence[str], run: Run, images: Tensor) -> Any:
    """What the network itself would have answered, or for detectors a `Deferred` answer; ``outputs`` are the graph's."""
    if outputs[: len(Boxes.outputs)] == Boxes.outputs:
        return Deferred(lambda valid: _apart(run(images, torch.tensor(valid, dtype=torch.int64).reshape(-1, 2)), len(images)))
    logits = run(images)
    if outputs != Graph.outputs:
        return logits
    return SemanticFPNOutputs(logits[0], (images.shape[2], images.shape[3])) if logits[0].ndim == 4 else logits[0]


def _apart(found: list[Tensor], pictures: int) -> list[Found]:
    """Detections of each picture."""
    image, *rest = found
    counts = torch.bincount(image, minlength=pictures).tolist()
    columns = [values.split(counts) for values in rest]
    masks = columns[3] if len(columns) == 4 else [None] * pictures
    return [Found(box, score, label, mask) for box, label, score, mask in zip(*columns[:3], masks, strict=True)]
