"""Our own weights files: safetensors with a description in the header, so that the file alone is enough to predict."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.files import read_tensors, write_tensors
from pyramidvit.types import Preprocess

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
