"""Our own weights files: safetensors with a description in the header, so that the file alone is enough to predict."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.files import DamagedFile, read_tensors, write_tensors
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


def _other_than_weights(path: Path) -> str | None:
    """What a file is that is no file of tensors at all, as far as its beginning tells; None if it may be one."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return None  # which the reader says
    text = start.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    if not start:
        return "it is empty (0 bytes)"
    if text.startswith("version https://git-lfs"):
        return "it is a pointer of Git LFS in place of the file itself: fetch that with `git lfs pull`"
    if text.lower().startswith(("<!doctype", "<html", "<head", "<?xml")):
        return "it is a web page, most likely one of an error or a login, saved in place of the file"
    plain = all(byte >= 32 or byte in b"\t\n\r\f" for byte in start)  # lengths in binary files hold zeros
    return f"it is text that begins with {text[:40]!r}" if plain else None


def read(path: Path) -> tuple[dict[str, Tensor], WeightsMeta | None]:
    """Tensors of a safetensors file, and what our own files say about themselves (None for anyone else's)."""
    if other := _other_than_weights(path):
        raise DamagedFile(f"{path} holds no weights: {other}.")
    tensors, metadata = read_tensors(path)
    if META_KEY not in metadata:
        return tensors, None
    try:
        return tensors, WeightsMeta.from_json(metadata[META_KEY])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} holds a description of itself that this version can't read ({error}); was it made by a newer one?"
        ) from None
