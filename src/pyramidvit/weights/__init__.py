"""Weights in and out, with proof: a file loads whole and exactly, or not at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.files import read_tensors, write_tensors
from pyramidvit.types import Preprocess
from pyramidvit.weights.layouts import LAYOUTS

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
    """What became of every tensor: ``loaded`` counts those taken as they are; ``adapted`` and ``reset`` name the others."""

    layout: str
    loaded: int
    adapted: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.loaded} of {self.loaded + len(self.adapted) + len(self.reset)} tensors loaded ({self.layout} layout)"
        if self.adapted:
            text += f"; fitted to this number of input channels: {', '.join(self.adapted)}"
        if self.reset:
            text += f"; left at their random start, since the classes differ: {', '.join(self.reset)}"
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

    Every tensor of the file must have its place and every place its tensor. Two differences are allowed, and reported: the first
    convolution is fitted to another number of input channels (see ``adapt_stem``), and with ``new_classes`` a last layer of another
    size keeps its random start. Anything else raises UserError, and the model is left as it was.
    """
    wanted = model.state_dict()
    has_backbone = any(key.startswith("backbone.") for key in wanted)
    layout, given = _to_our_names(tensors, with_backbone=has_backbone)
    if not has_backbone:
        given = {key: tensor for key, tensor in given.items() if not key.startswith("head.")}
    missing, unexpected = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    if missing or unexpected:
        raise UserError(_key_mismatch(missing, unexpected, len(wanted)))
    adapted: list[str] = []
    reset: list[str] = []
    for key, tensor in given.items():
        shape, target = tuple(tensor.shape), tuple(wanted[key].shape)
        if shape == target:
            wanted[key] = tensor
        elif len(shape) == 4 and shape[:1] + shape[2:] == target[:1] + target[2:] and ".0.patches." in f".{key}":
            wanted[key] = adapt_stem(tensor, target[1])
            adapted.append(key)
        elif new_classes and key.startswith("head."):
            reset.append(key)
        else:
            raise UserError(
                f"{key} has shape {shape} in the file and {target} in the model: the file holds another network or another head."
            )
    model.load_state_dict(wanted)
    return LoadReport(layout, len(wanted) - len(adapted) - len(reset), tuple(adapted), tuple(reset))


def adapt_stem(weight: Tensor, in_chans: int) -> Tensor:
    """A first convolution (C, n, k, k) for ``in_chans`` channels, with exactly the same response to grey pictures.

    Old channels are dealt to new ones in turn. Where several old ones meet they are added (one channel gets the sum of all); where an old
    one goes to several new ones it is divided among them.
    """
    n = weight.shape[1]
    if in_chans < n:
        return torch.stack([weight[:, j::in_chans].sum(1) for j in range(in_chans)], 1)
    order = torch.arange(in_chans) % n
    return weight[:, order] / order.bincount(minlength=n)[order].view(1, -1, 1, 1)


def _to_our_names(tensors: Mapping[str, Tensor], with_backbone: bool) -> tuple[str, dict[str, Tensor]]:
    for layout in LAYOUTS:
        if layout.recognises(tensors):
            given, unknown = layout.to_ours(tensors)
            given |= {key: tensors[key] for key in unknown}
            return layout.name, {_prefixed(key) if with_backbone else key: tensor for key, tensor in given.items()}
    return "own", {key if with_backbone else key.removeprefix("backbone."): tensor for key, tensor in tensors.items()}


def _prefixed(key: str) -> str:
    return key if key.startswith("head.") else f"backbone.{key}"


def _key_mismatch(missing: set[str], unexpected: set[str], total: int) -> str:
    def sample(keys: set[str]) -> str:
        return ", ".join(sorted(keys)[:5]) + (", …" if len(keys) > 5 else "")

    lines = ["The file does not fit this model."]
    if missing:
        lines.append(f"  {len(missing)} of the model's {total} tensors are not in the file: {sample(missing)}")
    if unexpected:
        lines.append(f"  {len(unexpected)} tensors of the file have no place in the model: {sample(unexpected)}")
    return "\n".join([*lines, "Choose the model that the file was made for, or another file."])
