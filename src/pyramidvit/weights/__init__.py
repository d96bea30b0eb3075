"""Weights in and out, with proof: a file loads whole and exactly, or not at all."""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.files import read_tensors, write_tensors
from pyramidvit.models.layers import Backbone
from pyramidvit.models.pos_embed import resize_table
from pyramidvit.types import Preprocess
from pyramidvit.weights.layouts import LAYOUTS, TABLES

META_KEY = "pyramidvit"


@dataclass(frozen=True)
class WeightsMeta:
    """What travels inside a weights file, so that the file alone is enough to predict."""

    model: str
    head: str
    classes: tuple[str, ...]
    preprocess: Preprocess
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "WeightsMeta":
        values: dict[str, Any] = json.loads(text)
        stored: dict[str, Any] = values["preprocess"]
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
        preprocess = Preprocess(**fields)
        return cls(**(values | {"classes": tuple(values["classes"]), "preprocess": preprocess}))


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor: ``loaded`` counts those taken as they are; the others are named.

    ``adapted`` were fitted to this number of input channels, ``resized`` are position tables made for another input size, ``reset`` kept
    their random start because the classes differ, and ``dropped`` are the file's, which this cut of the network does without.
    """

    layout: str
    loaded: int
    adapted: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        total = self.loaded + len(self.adapted) + len(self.resized) + len(self.reset)
        text = f"{self.loaded} of {total} tensors loaded ({self.layout} layout)"
        for keys, fate in (
            (self.adapted, "fitted to this number of input channels"),
            (self.resized, "position tables resized to this input size"),
            (self.reset, "left at their random start, since the classes differ"),
            (self.dropped, "in the file but not needed here"),
        ):
            if keys:
                text += f"; {fate}: {_sample(keys)}"
        return text


def save(path: Path, tensors: Mapping[str, Tensor], meta: WeightsMeta) -> None:
    """Write a weights file (safetensors, ``meta`` as JSON in its header), whole or not at all."""
    write_tensors(path, tensors, {META_KEY: meta.to_json()})


def read(path: Path) -> tuple[dict[str, Tensor], WeightsMeta | None]:
    """Tensors of a safetensors file, and what our own files say about themselves (None for anyone else's)."""
    tensors, metadata = read_tensors(path)
    if META_KEY not in metadata:
        return tensors, None
    try:
        return tensors, WeightsMeta.from_json(metadata[META_KEY])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} holds a description of itself that this version can't read ({error}); was it made by a newer one?"
        ) from None


def load(model: nn.Module, tensors: Mapping[str, Tensor], *, new_classes: bool = False) -> LoadReport:
    """Fill ``model`` from ``tensors`` in our own or a published layout.

    Every tensor of the file must have its place and every place its tensor. These differences are allowed, and reported: the first
    convolution is fitted to another number of input channels (see ``adapt_stem``); position tables are resized to the model's; with
    ``new_classes`` a last layer of another size, or one that the file lacks, keeps its random start; and a bare backbone drops the head and
    what else it was built without. Anything else, and values that are not finite, raise UserError, and the model is left as it was.
    """
    wanted = model.state_dict()
    layout, given = _to_our_names(tensors, model)
    dropped = tuple(key for key in given if key.startswith("head.") or model.leaves_out(key)) if isinstance(model, Backbone) else ()
    no_head = {key for key in wanted.keys() - given.keys() if new_classes and key.startswith("head.")}
    missing, unexpected = wanted.keys() - given.keys() - no_head, given.keys() - wanted.keys() - set(dropped)
    if missing or unexpected:
        raise UserError(_key_mismatch(missing, unexpected, len(wanted)))
    if damaged := [key for key, tensor in given.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        raise UserError(f"The weights hold values that are not finite, in {_sample(damaged)}: they are damaged, or training diverged.")
    fates: dict[str, list[str]] = {"adapted": [], "resized": [], "reset": []}
    for key, now in wanted.items():
        fitted, fate = (None, "reset") if key in no_head else _fit(key, given[key], now.shape)
        if fitted is None and not (new_classes and key.startswith("head.")):
            raise UserError(
                f"{key} has shape {tuple(given[key].shape)} in the file and {tuple(now.shape)} in the model: the file holds another "
                "network or another head."
            )
        wanted[key] = now if fitted is None else fitted
        if fate:
            fates[fate].append(key)
    model.load_state_dict(wanted)
    adapted, resized, reset = (tuple(keys) for keys in fates.values())
    return LoadReport(layout, len(wanted) - len(adapted) - len(resized) - len(reset), adapted, resized, reset, dropped)


def _fit(key: str, tensor: Tensor, shape: torch.Size) -> tuple[Tensor | None, str]:
    """The tensor in the model's shape and what had to be done for it; None if nothing may be."""
    if tensor.shape == shape:
        return tensor, ""
    if _without_ones(tensor.shape) == _without_ones(shape):
        return tensor.reshape(shape), ""
    if re.search(r"(^|\.)(stages\.0\.)?patches\.weight$", key) and tensor.shape[:1] + tensor.shape[2:] == shape[:1] + shape[2:]:
        return adapt_stem(tensor, shape[1]), "adapted"
    if (key.split(".")[-1] in TABLES or ".rel_pos_" in key) and tensor.shape[-1] == shape[-1]:
        grid = _grid(tensor.shape[:-1], shape[:-1])
        if grid is not None:
            return resize_table(tensor.reshape(*grid, shape[-1]), shape[:-1]), "" if grid == tuple(shape[:-1]) else "resized"
    return None, "reset"


def _without_ones(shape: torch.Size) -> list[int]:
    return [side for side in shape if side != 1]


def _grid(shape: torch.Size, wanted: torch.Size) -> tuple[int, ...] | None:
    """The grid of a table's rows: its own axes, else a square where they fill one, else the wanted grid; None if they fill none."""
    if len(_without_ones(shape)) == len(wanted):
        return tuple(_without_ones(shape))
    rows, side = shape.numel(), math.isqrt(shape.numel())
    if len(wanted) == 1:
        return (rows,)
    if side * side == rows:
        return side, side
    return tuple(wanted) if rows == wanted.numel() else None


def adapt_stem(weight: Tensor, in_chans: int) -> Tensor:
    """A first convolution (C, n, *kernel) for ``in_chans`` channels, with exactly the same response to grey pictures.

    Old channels are dealt to new ones in turn. Where several old ones meet they are added (one channel gets the sum of all); where an old
    one goes to several new ones it is divided among them.
    """
    n = weight.shape[1]
    if in_chans < n:
        return torch.stack([weight[:, j::in_chans].sum(1) for j in range(in_chans)], 1)
    order = torch.arange(in_chans) % n
    return weight[:, order] / order.bincount(minlength=n)[order].view(1, -1, *[1] * (weight.ndim - 2))


def _to_our_names(tensors: Mapping[str, Tensor], model: nn.Module) -> tuple[str, dict[str, Tensor]]:
    """The layout's name, and the tensors under the names that this model has for them."""
    bare = isinstance(model, Backbone)
    backbone = model if bare else getattr(model, "backbone", None)
    for layout in LAYOUTS:
        if isinstance(backbone, Backbone) and layout.recognises(tensors):
            given, unknown = layout.to_ours(tensors, backbone.published_depths)
            given |= {key: tensors[key] for key in unknown}
            return layout.name, given if bare else {_prefixed(key): tensor for key, tensor in given.items()}
    return "own", {key.removeprefix("backbone.") if bare else key: tensor for key, tensor in tensors.items()}


def _prefixed(key: str) -> str:
    return key if key.startswith("head.") else f"backbone.{key}"


def _sample(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys)[:5]) + (", …" if len(keys) > 5 else "")


def _key_mismatch(missing: set[str], unexpected: set[str], total: int) -> str:
    lines = ["The file does not fit this model."]
    if missing:
        lines.append(f"  {len(missing)} of the model's {total} tensors are not in the file: {_sample(missing)}")
    if unexpected:
        lines.append(f"  {len(unexpected)} tensors of the file have no place in the model: {_sample(unexpected)}")
    return "\n".join([*lines, "Choose the model that the file was made for, or another file."])
