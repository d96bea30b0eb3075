"""Losses, in fp32 whatever the precision of the network. B batch, K classes."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.types import ClassTarget


def soft_targets(targets: Sequence[ClassTarget], num_classes: int, smoothing: float = 0.0) -> Tensor:
    """What each class should get, (B, K) float32 on the CPU, every row with sum 1.

    ``smoothing`` is the share spread evenly over all classes; a mixed picture splits the rest between its two classes.
    UserError for a label outside the classes.
    """
    soft = torch.full((len(targets), num_classes), smoothing / num_classes)
    for row, target in zip(soft, targets, strict=True):
        for label, share in ((target.label, target.share), (target.other, 1 - target.share)):
            if label is None:
                continue
            if label >= num_classes:
                raise UserError(
                    f"Label {label} is outside the {num_classes} classes 0 to {num_classes - 1}; use the class list of the data."
                )
            row[label] += (1 - smoothing) * share
    return soft


def classification_loss(logits: Tensor, soft: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross entropy of ``logits`` (B, K) to ``soft`` (B, K), averaged over the B >= 1 pictures; scalar fp32.

    ``weights`` (K,) multiply each class's share; the sum is divided by B and not by the weights met, so that batches of any make-up add up.
    """
    return F.cross_entropy(logits.float(), soft.to(logits.device), weight=None if weights is None else weights.to(logits.device))


def class_weights(counts: Sequence[int]) -> Tensor:
    """Weights (K,) float32 that make every class count the same: n / (K * n_k), on average 1 over the n pictures.

    K counts the classes that occur. A class without pictures never meets its weight; it gets 1, which is finite.
    """
    count = torch.tensor(counts, dtype=torch.float64)
    present = count > 0
    weights = count.sum() / (present.sum() * count)
    return torch.where(present, weights, 1.0).float()
