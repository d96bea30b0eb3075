"""The one number besides the weights in which published PVTs differ."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit.models.layers import Backbone


class PatchEpsilon(Backbone):
    """A backbone whose norms after patches and after reduction have an epsilon that belongs to the weights.

    The official code and timm train with 1e-5, Transformers and MMDetection with 1e-6; the other norms have 1e-6 everywhere. Exchanging
    them moves the outputs by a hundredth to half of their deviation. So the epsilon, ``config.patch_eps``, is part of the state dict, as
    ``_extra_state``: it goes wherever the weights go.
    """

    config: Any
    """Architecture, a frozen dataclass with a field ``patch_eps``."""

    def set_patch_eps(self, eps: float) -> None:
        """Use another epsilon in the norms after patches and after reduction."""
        self.config = replace(self.config, patch_eps=eps)
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm) and name.endswith(("patch_norm", "attn.norm")):
                module.eps = eps

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.config.patch_eps, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self.set_patch_eps(state.item())
