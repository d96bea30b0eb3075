"""Every network by name."""

import fnmatch
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from pyramidvit import weights as weights_io
from pyramidvit.errors import UserError, expect, is_share, is_whole, nearest
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

CONFIGS = {"semantic_fpn": SemanticFPNConfig, "retinanet": RetinaNetConfig, "mask_rcnn": MaskRCNNConfig}
"""Name of a head → what its config is."""


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
    head: Literal["classify"] | None = None,
    num_classes: int | None = None,
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
    head: str | None = None,
    head_config: DenseConfig | None = None,
    num_classes: int | None = None,
    in_chans: int = 3,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> Model | Backbone:
    """A network by name, one of ours or ``timm/<any timm backbone>``, with random or trained weights.

    ``weights`` is a file, a published name (``pvt_v2_b2.in1k``) or ``hf:owner/name``; ``pretrained`` chooses the authors' own for this
    network. A warning tells every tensor that is not as the file has it, such as a last layer for another number of classes, which starts
    anew, or a first one fitted to other channels.

    ``head`` is what stands on the backbone, one of `HEADS`, a classifier if not given, with the published settings or those of
    ``head_config``. ``num_classes`` counts foreground classes only; for classifiers it defaults to that of the published weights, which is
    1000 for pictures and 400 for clips. ``features_only`` gives the bare backbone, which returns the maps ``out_indices`` (0 is the finest;
    negative indices count from the coarsest; all if not given). ``drop_path_rate`` defaults to the published one, for networks of timm to
    none. Raises UserError with the nearest names for an unknown name or head, and for impossible settings.
    """
    given = {"head": head, "head_config": head_config, "num_classes": num_classes}
    settings = {"in_chans": in_chans, "out_indices": out_indices, "drop_path_rate": drop_path_rate}
    _check({"name": name, **given, **settings, "features_only": features_only, "pretrained": pretrained, "weights": weights})
    build_head = HEADS[_known("classify" if head is None else head, HEADS, "head")]
    _check_together(features_only, given, out_indices)
    if pretrained and weights is not None:
        raise UserError(f"pretrained=True and weights={str(weights)!r} are two answers to one question: give one of them.")
    network, architecture = _backbone(name)
    weights = zoo.pretrained(name).name if pretrained else weights
    backbone = network(architecture, **settings, classify=build_head is Classifier and not features_only)
    if features_only:
        model = backbone
    elif build_head is Classifier:
        model = Classifier(backbone, zoo.classes_of(name, weights) if num_classes is None else num_classes)
    else:
        model = build_head(backbone, num_classes, *(() if head_config is None else (head_config,)))
    if weights is not None:
        tensors, meta = obtain(weights)
        report = weights_io.load(model, tensors, new_classes=True)
        if report.altered:
            warnings.warn(f"{weights}: {report}", stacklevel=2)
        warn_when_far(model, backbone, None if meta is None else meta.preprocess.size)
    return model


ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str), "the name of a network, such as 'pvt_v2_b0'"),
    "head": (lambda value: value is None or isinstance(value, str), f"one of {', '.join(HEADS)}"),
    "head_config": (lambda value: value is None or isinstance(value, DenseConfig), "the settings of a head, such as RetinaNetConfig()"),
    "num_classes": (lambda value: value is None or is_whole(value, 1), "a whole number of at least 1"),
    "in_chans": (lambda value: is_whole(value, 1), "a whole number of at least 1"),
    "out_indices": (
        lambda value: value is None or (isinstance(value, Sequence) and all(map(is_whole, value))),
        "several whole numbers, such as (1, 2, 3) or (-1,)",
    ),
    "drop_path_rate": (lambda value: value is None or is_share(value), "the share of branches that are dropped, from 0 and below 1"),
    "features_only": (lambda value: isinstance(value, bool), "True or False"),
    "pretrained": (lambda value: isinstance(value, bool), "True or False"),
    "weights": (lambda value: value is None or isinstance(value, str | os.PathLike), "a file, a published name or hf:owner/name"),
    "pattern": (lambda value: isinstance(value, str), "a pattern of names, such as 'pvt_v2_*'"),
}
"""Argument → what it may be, as a test and in words."""


def _check(given: Mapping[str, Any]) -> None:
    """UserError for the first argument that can't be what it is."""
    for name, value in given.items():
        fits, wanted = ARGUMENTS[name]
        expect(fits(value), name, value, wanted)


def _check_together(features_only: bool, given: Mapping[str, Any], out_indices: Sequence[int] | None) -> None:
    """UserError for arguments that don't go together: ``given`` are those of a head."""
    named = [name for name, value in given.items() if value is not None]
    if features_only and named:
        raise UserError(f"features_only=True gives a bare backbone, which has no head: leave {' and '.join(named)} out.")
    if out_indices is not None and not features_only:
        raise UserError(f"out_indices {tuple(out_indices)} choose maps of a bare backbone: add features_only=True.")
    head, config = given["head"], given["head_config"]
    if head in (None, "classify"):
        if config is not None:
            raise UserError("head_config holds settings of a segmentation or detection head: name that head, or leave head_config out.")
    elif given["num_classes"] is None:
        raise UserError(f"head={head!r} needs num_classes, the number of classes without background.")
    elif config is not None and not isinstance(config, CONFIGS[head]):
        raise UserError(f"head={head!r} takes a {CONFIGS[head].__name__} as head_config; got a {type(config).__name__}.")


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell-style pattern, such as ``pvt_v2_*``; those of timm only where it starts with ``timm/``."""
    _check({"pattern": pattern})
    return baselines.list_names(pattern) if pattern.startswith(baselines.PREFIX) else fnmatch.filter(BACKBONES, pattern)


def _backbone(name: str) -> tuple[Callable[..., Backbone], Any]:
    """Class and architecture."""
    if name.startswith(baselines.PREFIX):
        return baselines.TimmBackbone, baselines.known(name)
    return BACKBONES[_known(name, BACKBONES, "network")]


def _known(name: str, table: Mapping[str, object], kind: str) -> str:
    if name in table:
        return name
    close = nearest(name, table) or sorted(table)[:5]
    hint = f" `pyramidvit models` lists all; those of timm are named {baselines.PREFIX}<name>." if kind == "network" else ""
    raise UserError(f"There is no {kind} {name!r}; did you mean {' or '.join(close)}?{hint}")


__all__ = ["Backbone", "Classifier", "MaskRCNN", "RetinaNet", "SemanticFPN", "create_model", "list_models"]
