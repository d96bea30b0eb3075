"""Which published network a file holds, from the names and shapes of its tensors."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from pyramidvit.models.variants import BACKBONES
from pyramidvit.weights.layouts.keymap import TABLES, WIDTHS, depths_of

ENOUGH = 0.95
"""Share of a network's tensors that a file must have in the same shapes to look like it."""


def guess(tensors: Mapping[str, Tensor]) -> str | None:
    """The published network whose tensors these are, by our names for a backbone; None if they are no such network's.

    Tables of positions and the number of input channels count only between networks that are the same otherwise.
    """
    depths = depths_of(tensors, WIDTHS)
    given = {key: _sides(tensor.shape) for key, tensor in tensors.items()}
    scores = {name: _likeness(given, _shapes(name)) for name, (_, config) in BACKBONES.items() if tuple(config.depths) == depths}
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best][0] >= ENOUGH else None


def shape_of(tensors: Mapping[str, Tensor]) -> str:
    """Blocks and channels of a backbone's stages, by our names, such as ``blocks 2, 2, 2, 2, channels 32, 64, 160, 256``."""
    depths = depths_of(tensors, WIDTHS)
    widths = [tensors.get(f"{WIDTHS.format(s=stage, j=depth - 1)}.weight") for stage, depth in enumerate(depths)]
    channels = [str(len(tensor)) for tensor in widths if tensor is not None]
    return f"blocks {', '.join(map(str, depths))}, channels {', '.join(channels)}" if channels else "without our stages"


def _likeness(given: Mapping[str, list[int]], wanted: Mapping[str, list[int]]) -> tuple[float, float]:
    firm = [key for key in wanted if not _fitted(key)]
    same = [key for key in wanted if given.get(key) == wanted[key]]
    return sum(not _fitted(key) for key in same) / len(firm), len(same) / len(wanted)


def _fitted(key: str) -> bool:
    """Whether loading fits a tensor to another shape."""
    return key.endswith("patches.weight") or key.split(".")[-1] in TABLES or ".rel_pos_" in key or key.startswith("norm.")


def _sides(shape: torch.Size) -> list[int]:
    return [side for side in shape if side != 1]


@cache
def _shapes(name: str) -> dict[str, list[int]]:
    network, config = BACKBONES[name]
    with torch.device("meta"):
        state = network(config, classify=True).state_dict()
    return {key: _sides(tensor.shape) for key, tensor in state.items() if not key.endswith("_extra_state")}
