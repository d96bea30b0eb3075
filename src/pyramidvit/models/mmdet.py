"""Backbones as configurations of MMDetection and of the official PVT code describe them, read as data: nothing in them is run."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pyramidvit.errors import UserError, expect, is_share, is_whole, nearest
from pyramidvit.models.layers import Backbone
from pyramidvit.models.pvt import PVT, PVTConfig
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.models.variants import BACKBONES

CLASSES = ("PyramidVisionTransformer", "PyramidVisionTransformerV2")

FIXED: dict[str, tuple[Any, ...]] = {
    "num_stages": (4,),
    "qkv_bias": (True,),
    "qk_scale": (None,),
    "drop_rate": (0,),
    "attn_drop_rate": (0,),
    "num_classes": (None, 0, 80, 150, 1000),  # no backbone has a use for it
    "convert_weights": (True, False),
    "style": ("pytorch",),
    "act_cfg": ({"type": "GELU"},),
    "_delete_": (True, False),  # how configurations that inherit start anew
}
"""Settings that no published network sets otherwise, and what they may be."""

PER_CLASS: dict[str, dict[str, Any]] = {
    CLASSES[0]: {
        "patch_sizes": [4, 2, 2, 2],
        "paddings": [0, 0, 0, 0],
        "use_abs_pos_embed": True,
        "norm_after_stage": False,
        "use_conv_ffn": False,
        "patch_size": 4,
    },
    CLASSES[1]: {"patch_sizes": [7, 3, 3, 3], "paddings": [3, 1, 1, 1], "use_abs_pos_embed": False, "norm_after_stage": True}
    | {"use_conv_ffn": True, "patch_size": 4},
}
"""What makes the first version the first and the second the second."""

WEIGHTS = ("init_cfg", "pretrained")

OFFICIAL, MMDETECTION = ("depths", "in_chans", "img_size"), ("num_layers", "in_channels", "pretrain_img_size", "norm_cfg")
"""Settings that only one of the two has."""


def from_mmdet(config: Mapping[str, Any]) -> Backbone:
    """A bare backbone from ``backbone=dict(type='PyramidVisionTransformer', …)``, from a detector's configuration that has one, or from a
    whole configuration with ``model=dict(backbone=…)``.

    The class may be either version by MMDetection's settings (``embed_dims=64``, times ``num_heads``; ``num_layers``) or the official ones
    (``embed_dims=[64, 128, 320, 512]``, ``depths=[3, 4, 6, 3]``), which compute with different epsilons and therefore can't be mixed, or
    one of the official names such as ``pvt_v2_b2``. Weights that it names are not fetched, with a warning: load them with
    `pyramidvit.weights.load`, which sets the epsilon that they were trained with.
    UserError for settings that are unknown, or that no published network has.
    """
    settings = _backbone_of(config)
    named = settings.pop("type", None)
    if not isinstance(named, str):
        keys = ", ".join(map(str, settings))
        raise UserError(f"type has to be the name of a backbone, such as {CLASSES[0]!r}; got {named!r} in a dict with {keys or 'nothing'}.")
    kind = named.rpartition(".")[2]  # 'mmdet.PyramidVisionTransformer' in configurations of other libraries
    if weights := [settings.pop(key) for key in WEIGHTS if settings.get(key) is not None]:
        warnings.warn(f"The configuration names weights that are not loaded: {weights[0]}", stacklevel=2)
    for key in WEIGHTS:
        settings.pop(key, None)
    official = _is_official(settings)
    out_indices = settings.pop("out_indices", (0, 1, 2, 3))
    indices = (out_indices,) if is_whole(out_indices) else out_indices
    in_chans = settings.pop("in_channels", settings.pop("in_chans", 3))
    rate = settings.pop("drop_path_rate", None)
    expect(is_whole(in_chans, 1), "in_channels", in_chans, "a whole number of at least 1")
    expect(rate is None or is_share(rate), "drop_path_rate", rate, "a number from 0 and below 1")
    if kind in BACKBONES and kind not in CLASSES:
        _reject_rest(settings, kind, {})
        network, architecture = BACKBONES[kind]
        return network(architecture, in_chans=in_chans, out_indices=indices, drop_path_rate=rate)
    if kind not in CLASSES:
        close = nearest(kind, [*CLASSES, *BACKBONES]) or CLASSES
        raise UserError(f"There is no backbone of type {named!r} here; did you mean {' or '.join(close)}?")
    common: dict[str, Any] = {**_architecture(settings, official), "drop_path_rate": 0.1 if rate is None else rate}
    size, linear = settings.pop("pretrain_img_size", settings.pop("img_size", 224)), settings.pop("linear", False)
    expect(isinstance(linear, bool), "linear", linear, "True or False")
    _reject_rest(settings, kind, PER_CLASS[kind] | {"strides": [4, 2, 2, 2]})
    if kind == CLASSES[1]:
        return PVTv2(PVTv2Config(**common, linear=linear), in_chans, indices)
    if linear:
        raise UserError(f"{kind} has no linear attention; {CLASSES[1]} has.")
    return PVT(PVTConfig(**common, size=_pair(size)), in_chans, indices)


def _backbone_of(config: Any) -> dict[str, Any]:
    """The backbone's settings, which may lie in those of a detector, and these in those of a run."""
    for key in ("model", "backbone"):
        if isinstance(config, Mapping) and key in config:
            config = config[key]
    if not isinstance(config, Mapping):
        raise UserError(f"Expected the settings of a backbone as a dict, such as dict(type={CLASSES[0]!r}, …); got {config!r}.")
    return dict(config)


def _is_official(settings: Mapping[str, Any]) -> bool:
    """Whether the settings are those of the official code; UserError when some are and others are MMDetection's."""
    widths = settings.get("embed_dims")
    theirs = [key for key in OFFICIAL if key in settings] + (["embed_dims=[…]"] if isinstance(widths, list | tuple) else [])
    mmdet = [key for key in MMDETECTION if key in settings] + (["embed_dims=64"] if is_whole(widths) else [])
    if theirs and mmdet:
        raise UserError(
            f"{theirs[0]} is a setting of the official code and {mmdet[0]} one of MMDetection, whose networks compute with different "
            f"epsilons: write all settings as one of them does ({', '.join((*OFFICIAL, 'embed_dims=[…]'))}; or "
            f"{', '.join((*MMDETECTION, 'embed_dims=64'))})."
        )
    return bool(theirs)


def _architecture(settings: dict[str, Any], official: bool) -> dict[str, Any]:
    """Our names for the settings that tell networks apart, taken out of ``settings``."""
    depths = _four(settings.pop("depths" if official else "num_layers", (3, 4, 6, 3)), "number of blocks")
    heads = _four(settings.pop("num_heads", (1, 2, 5, 8)), "num_heads")
    widths = settings.pop("embed_dims", 64)
    widths = tuple(widths * count for count in heads) if is_whole(widths, 1) else _four(widths, "embed_dims")
    norm = settings.pop("norm_cfg", {"type": "LN", "eps": 1e-6})
    if not isinstance(norm, Mapping) or dict(norm) | {"requires_grad": True} != {"type": "LN", "eps": 1e-6, "requires_grad": True}:
        raise UserError(f"norm_cfg has to be dict(type='LN', eps=1e-6), as in every published network; got {norm!r}.")
    return {
        "depths": depths,
        "widths": widths,
        "heads": heads,
        "expansions": _four(settings.pop("mlp_ratios", (8, 8, 4, 4)), "mlp_ratios"),
        "reductions": _four(settings.pop("sr_ratios", (8, 4, 2, 1)), "sr_ratios"),
        "patch_eps": 1e-5 if official else 1e-6,
    }


def _four(values: Any, name: str) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or len(values) != 4 or not all(is_whole(value, 1) for value in values):
        raise UserError(f"{name} needs four whole numbers above 0, one per stage; got {values!r}.")
    return tuple(values)


def _pair(size: Any) -> tuple[int, int]:
    sides: tuple[Any, ...] = (size, size) if is_whole(size) else tuple(size) if isinstance(size, Sequence) else ()
    if len(sides) not in (1, 2) or not all(is_whole(side, 32) for side in sides):
        raise UserError(f"pretrain_img_size is one whole number or (height, width), each at least 32; got {size!r}.")
    return sides[0], sides[-1]


def _reject_rest(settings: Mapping[str, Any], kind: str, fixed: Mapping[str, Any]) -> None:
    """UserError for a setting that is unknown, or isn't what every published network has."""
    for key, value in settings.items():
        allowed = (fixed[key],) if key in fixed else FIXED.get(key)
        if allowed is None:
            known = [
                *FIXED,
                *fixed,
                "embed_dims",
                "num_layers",
                "depths",
                "num_heads",
                "mlp_ratios",
                "sr_ratios",
                "drop_path_rate",
                "out_indices",
            ]
            close = nearest(str(key), known, 1)
            raise UserError(f"{kind} has no setting {key!r}{f'; did you mean {close[0]}?' if close else '.'} Got {key}={value!r}.")
        if (list(value) if isinstance(value, tuple) else value) not in allowed:
            raise UserError(f"{key} is {allowed[0]!r} in every published {kind}, and can't be {value!r} here.")
