"""What travels inside an exported file, so that the file alone is enough: the task with its settings, and how to call the graph."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from torch import nn

from pyramidvit.errors import UserError
from pyramidvit.weights import WeightsMeta

KEY = "pyramidvit"
"""Under which a file holds its description: in ONNX's metadata_props, OpenVINO's rt_info, the extra files of torch."""
FORMAT = 1
"""Of the description; a newer one is refused."""


@dataclass(frozen=True)
class Description:
    """``meta`` is what our weights files hold, preprocessing and classes included. ``size`` (height, width) and ``frames`` are the only
    ones that the graph takes, None where any will do; ``weights`` is a hash of the network's tensors."""

    meta: WeightsMeta
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: tuple[int, int] | None = None
    frames: int | None = None
    precision: str = "fp32"
    weights: str = ""
    versions: Mapping[str, str] = field(default_factory=lambda: {name: version(name) for name in ("pyramidvit", "torch")})
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"meta": json.loads(self.meta.to_json())}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None, path: Any) -> "Description":
        """UserError when a file has no description, or one that this version can't read."""
        if not text:
            raise UserError(f"{path} doesn't say what it was trained for; expected a file that `pyramidvit export` wrote.")
        try:
            values: dict[str, Any] = json.loads(text)
            if not isinstance(values, dict):
                raise ValueError("it is no JSON object")
            if values["format"] > FORMAT:
                raise UserError(
                    f"{path} was exported by a newer version ({values['versions']['pyramidvit']}): update pyramidvit to use it."
                )
            names = {name: tuple(values[name]) for name in ("inputs", "outputs")}
            size = None if values["size"] is None else tuple(values["size"])
            values |= names | {"size": size, "meta": WeightsMeta.from_json(json.dumps(values["meta"]))}
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, UserError):
                raise
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UserError(f"{path} holds a description of itself that this version can't read ({why}); export it anew.") from None


def digest(model: nn.Module) -> str:
    """A hash of all tensors of a network, by which a file is known to be its export."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
