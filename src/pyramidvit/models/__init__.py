"""Every network by name."""

import difflib
import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from pyramidvit import weights as weights_io
from pyramidvit.errors import UserError
from pyramidvit.models import baselines
from pyramidvit.models.classifier import Classifier
from pyramidvit.models.layers import Backbone
from pyramidvit.models.mask_rcnn import MaskRCNN, MaskRCNNConfig
from pyramidvit.models.retinanet import RetinaNet, RetinaNetConfig
from pyramidvit.models.semantic_fpn import SemanticFPN, SemanticFPNConfig
from pyramidvit.models.trained_size import warn_when_far
from pyramidvit.models.variants import BACKBONES
from pyramidvit.weights import zoo
from pyramidvit.weights.source import obtain

DenseConfig = SemanticFPNConfig | RetinaNetConfig | MaskRCNNConfig
Model = Classifier | SemanticFPN | RetinaNet | MaskRCNN

HEADS: dict[str, Callable[..., Model]] = {
    "classify": Classifier,
    "semantic_fpn": SemanticFPN,
    "retinanet": RetinaNet,
    "mask_rcnn": MaskRCNN,
}
"""Name → class that takes (backbone, num_classes), all but the first also a config."""


@overload
def create_model(
    name: str,
    *,
    features_only: Literal[True],
    in_chans: int = 3,
    out_indices: Sequence[int] | None = None,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
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
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> Classifier: ...


@overload
def create_model(
    name: str,
    *,
    head: Literal["semantic_fpn"],
    head_config: SemanticFPNConfig | None = None,
    num_classes: int,
    in_chans: int = 3,
    features_only: Literal[False] = False,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> SemanticFPN: ...


@overload
def create_model(
    name: str,
    *,
    head: Literal["retinanet"],
    head_config: RetinaNetConfig | None = None,
    num_classes: int,
    in_chans: int = 3,
    features_only: Literal[False] = False,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> RetinaNet: ...


@overload
def create_model(
    name: str,
    *,
    head: Literal["mask_rcnn"],
    head_config: MaskRCNNConfig | None = None,
    num_classes: int,
    in_chans: int = 3,
    features_only: Literal[False] = False,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> MaskRCNN: ...


def create_model(
    name: str,
    *,
    head: str = "classify",
    head_config: DenseConfig | None = None,
    num_classes: int = 1000,
    in_chans: int = 3,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> Model | Backbone:
    """A network by name, one of ours or ``timm/<any timm backbone>``, with random or trained weights.

    ``weights`` is a file, a published name (``pvt_v2_b2.in1k``) or ``hf:owner/name``; ``pretrained`` chooses the authors' own for this
    network. A last layer for another number of classes starts anew, with a warning.

    ``head`` is what stands on the backbone, one of `HEADS`, with the published settings or those of ``head_config``. ``num_classes`` counts
    foreground classes only. ``features_only`` gives the bare backbone, which returns the maps ``out_indices`` (0 is the finest; negative
    indices count from the coarsest; all if not given). ``drop_path_rate`` defaults to the published one, for networks of timm to none.
    Raises UserError with the nearest names for an unknown name or head, and ValueError for impossible settings.
    """
    if in_chans < 1 or num_classes < 1:
        raise ValueError(f"in_chans and num_classes must be at least 1, got in_chans={in_chans} and num_classes={num_classes}.")
    if drop_path_rate is not None and not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate is the share of branches that are dropped, from 0 and below 1; got {drop_path_rate}.")
    if out_indices is not None and not features_only:
        raise ValueError(f"out_indices {tuple(out_indices)} choose maps of a bare backbone: add features_only=True.")
    network, architecture = _backbone(name)
    build_head = None if features_only else HEADS[_known(head, HEADS, "head")]
    classify = build_head is Classifier
    backbone = network(architecture, in_chans=in_chans, out_indices=out_indices, drop_path_rate=drop_path_rate, classify=classify)
    if head_config is not None and (build_head is None or classify):
        raise ValueError("head_config holds settings of a segmentation or detection head: name that head, or leave head_config out.")
    settings = () if head_config is None else (head_config,)
    model = backbone if build_head is None else build_head(backbone, num_classes, *settings)
    if pretrained and weights is not None:
        raise ValueError(f"pretrained=True and weights={str(weights)!r} are two answers to one question: give one of them.")
    weights = zoo.pretrained(name).name if pretrained else weights
    if weights is not None:
        tensors, meta = obtain(weights)
        report = weights_io.load(model, tensors, new_classes=True)
        if report.reset:
            warnings.warn(f"{weights}: {report}", stacklevel=2)
        warn_when_far(model, backbone, None if meta is None else meta.preprocess.size)
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell-style pattern, such as ``pvt_v2_*``; those of timm only where it starts with ``timm/``."""
    return baselines.list_names(pattern) if pattern.startswith(baselines.PREFIX) else fnmatch.filter(BACKBONES, pattern)


def _backbone(name: str) -> tuple[Callable[..., Backbone], Any]:
    """Class and architecture."""
    if name.startswith(baselines.PREFIX):
        return baselines.TimmBackbone, baselines.known(name)
    return BACKBONES[_known(name, BACKBONES, "network")]


def _known(name: str, table: Mapping[str, object], kind: str) -> str:
    if name in table:
        return name
    close = difflib.get_close_matches(name, table, n=3, cutoff=0.5) or sorted(table)[:5]
    hint = f" `pyramidvit models` lists all; those of timm are named {baselines.PREFIX}<name>." if kind == "network" else ""
    raise UserError(f"There is no {kind} {name!r}; did you mean {' or '.join(close)}?{hint}")


__all__ = ["Backbone", "Classifier", "MaskRCNN", "RetinaNet", "SemanticFPN", "create_model", "list_models"]
