"""Every network by name."""

import difflib
import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from pyramidvit import weights as weights_io
from pyramidvit.errors import UserError
from pyramidvit.models import mvit, pvt, pvt_v2
from pyramidvit.models.classifier import Classifier
from pyramidvit.models.layers import Backbone

BACKBONES: dict[str, tuple[Callable[..., Backbone], Any]] = {
    **{name: (pvt.PVT, config) for name, config in pvt.VARIANTS.items()},
    **{name: (pvt_v2.PVTv2, config) for name, config in pvt_v2.VARIANTS.items()},
    **{name: (mvit.MViT, config) for name, config in mvit.VARIANTS.items()},
}
"""Name → (class, architecture)."""

HEADS = {"classify": Classifier}
"""Name → class that takes (backbone, num_classes)."""


@overload
def create_model(
    name: str,
    *,
    features_only: Literal[True],
    in_chans: int = 3,
    out_indices: Sequence[int] | None = None,
    drop_path_rate: float | None = None,
    weights: str | Path | None = None,
) -> Backbone: ...


@overload
def create_model(
    name: str,
    *,
    head: Literal["classify"] = "classify",
    num_classes: int = 1000,
    in_chans: int = 3,
    features_only: Literal[False] = False,
    drop_path_rate: float | None = None,
    weights: str | Path | None = None,
) -> Classifier: ...


def create_model(
    name: str,
    *,
    head: str = "classify",
    num_classes: int = 1000,
    in_chans: int = 3,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
    drop_path_rate: float | None = None,
    weights: str | Path | None = None,
) -> Classifier | Backbone:
    """A network by name, with random weights or those of a file.

    ``num_classes`` counts foreground classes only. ``features_only`` gives the bare backbone, which returns the maps ``out_indices`` (0 is
    the finest; negative indices count from the coarsest; all if not given). ``drop_path_rate`` defaults to the published one. Raises
    UserError with the nearest names for an unknown name or head, and ValueError for impossible settings.
    """
    if in_chans < 1 or num_classes < 1:
        raise ValueError(f"in_chans and num_classes must be at least 1, got in_chans={in_chans} and num_classes={num_classes}.")
    if out_indices is not None and not features_only:
        raise ValueError(f"out_indices {tuple(out_indices)} choose maps of a bare backbone: add features_only=True.")
    network, architecture = BACKBONES[_known(name, BACKBONES, "network")]
    build_head = None if features_only else HEADS[_known(head, HEADS, "head")]
    classify = build_head is Classifier
    backbone = network(architecture, in_chans=in_chans, out_indices=out_indices, drop_path_rate=drop_path_rate, classify=classify)
    model = backbone if build_head is None else build_head(backbone, num_classes)
    if weights is not None:
        report = weights_io.load(model, weights_io.read(Path(weights))[0], new_classes=True)
        if report.reset:
            warnings.warn(f"{weights}: {report}", stacklevel=2)
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell-style pattern, such as ``pvt_v2_*``."""
    return fnmatch.filter(BACKBONES, pattern)


def _known(name: str, table: Mapping[str, object], kind: str) -> str:
    if name in table:
        return name
    close = difflib.get_close_matches(name, table, n=3, cutoff=0.5) or sorted(table)[:5]
    raise UserError(f"There is no {kind} {name!r}; did you mean {' or '.join(close)}? `pyramidvit models` lists all.")


__all__ = ["Backbone", "Classifier", "create_model", "list_models"]
