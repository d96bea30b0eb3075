"""Every published backbone by name."""

from collections.abc import Callable
from typing import Any

from pyramidvit.models import mvit, pvt, pvt_v2
from pyramidvit.models.layers import Backbone

BACKBONES: dict[str, tuple[Callable[..., Backbone], Any]] = {
    **{name: (pvt.PVT, config) for name, config in pvt.VARIANTS.items()},
    **{name: (pvt_v2.PVTv2, config) for name, config in pvt_v2.VARIANTS.items()},
    **{name: (mvit.MViT, config) for name, config in mvit.VARIANTS.items()},
}
"""Name → (class, architecture)."""
