"""A backbone with a linear layer on its embedding. Shapes: B batch, V views, D embedding, K classes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.models.layers import Backbone, init_linear


class Classifier(nn.Module):
    """Pictures (B, C, H, W) or clips (B, C, T, H, W) → logits (B, K), in training and evaluation alike.

    V views of each, as one more axis behind B, give logits (B, V, K); one view is in memory at a time.
    """

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.dropout = nn.Dropout(backbone.embed_dropout)
        self.head = nn.Linear(backbone.width, num_classes)
        self.head.apply(init_linear)
        self.num_depths = backbone.num_depths + 1

    def forward(self, x: Float[Tensor, "B C *size"]) -> Float[Tensor, "B *V K"]:
        if x.ndim == 6 and len(self.backbone.input_shape) == 4:  # views of clips, one after the other
            return torch.stack([self(view) for view in x.unbind(1)], 1)
        return self.head(self.dropout(self.backbone.embed(x)))

    def depth_of(self, parameter: str) -> int:
        """Place of a parameter between stem (0) and head (num_depths - 1)."""
        name = parameter.removeprefix("backbone.")
        return self.num_depths - 1 if name == parameter else self.backbone.depth_of(name)

    def stage_of(self, parameter: str) -> int:
        """Stage of a parameter, from 0; 4 is the head."""
        name = parameter.removeprefix("backbone.")
        return 4 if name == parameter else self.backbone.stage_of(name)

    def set_grad_checkpointing(self, on: bool = True) -> None:
        self.backbone.set_grad_checkpointing(on)
