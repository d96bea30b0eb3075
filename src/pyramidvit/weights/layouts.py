"""Published key layouts, one readable map each. ``{S}`` counts stages from 1, ``{s}`` from 0, ``{j}`` blocks; a ``.weight`` or ``.bias``
follows every name. The left side is the published name, the right side ours, without the ``backbone.`` prefix of models with a head."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

_NUMBERS = {"S": r"(?P<S>\d+)", "s": r"(?P<s>\d+)", "j": r"(?P<j>\d+)"}


@dataclass(frozen=True)
class Layout:
    """``names`` maps published name patterns to ours; ``marks`` are names that only this layout has."""

    name: str
    marks: tuple[str, ...]
    names: Mapping[str, str]

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return all(any(key.startswith(mark) for key in tensors) for mark in self.marks)

    def to_ours(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under our names, and the keys that the map doesn't know."""
        return _rename(tensors, self.names)

    def from_ours(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under the published names, and the keys of ours that the map doesn't know."""
        return _rename(tensors, {ours: published for published, ours in self.names.items()})


def _rename(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> tuple[dict[str, Tensor], list[str]]:
    rules = [(re.compile(_pattern(source) + r"(?P<end>\.weight|\.bias)"), target) for source, target in names.items()]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in tensors.items():
        for pattern, target in rules:
            if match := pattern.fullmatch(key):
                renamed[_fill(target, match) + match["end"]] = tensor
                break
        else:
            unknown.append(key)
    return renamed, unknown


def _pattern(template: str) -> str:
    return re.sub(r"\\{(\w)\\}", lambda m: _NUMBERS[m[1]], re.escape(template))


def _fill(template: str, match: re.Match[str]) -> str:
    found = match.groupdict()
    stage = int(found["S"]) - 1 if found.get("S") else int(found.get("s") or 0)
    return template.format(S=stage + 1, s=stage, j=found.get("j"))


_PVT_V2_BLOCK = {
    "norm1": "norm1",
    "attn.q": "attn.q",
    "attn.kv": "attn.kv",
    "attn.sr": "attn.reduce",
    "attn.norm": "attn.norm",
    "attn.proj": "attn.proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}

OFFICIAL_PVT_V2 = Layout(
    "official PVT v2",
    marks=("patch_embed2.", "block1.0.mlp.dwconv.dwconv."),
    names={
        "patch_embed{S}.proj": "stages.{s}.patches",
        "patch_embed{S}.norm": "stages.{s}.patch_norm",
        **{f"block{{S}}.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _PVT_V2_BLOCK.items()},
        "block{S}.{j}.mlp.dwconv.dwconv": "stages.{s}.blocks.{j}.mlp.dwconv",
        "norm{S}": "stages.{s}.norm",
        "head": "head",
    },
)

TIMM_PVT_V2 = Layout(
    "timm PVT v2",
    marks=("patch_embed.proj.", "stages.1.downsample.proj."),
    names={
        "patch_embed.proj": "stages.0.patches",
        "patch_embed.norm": "stages.0.patch_norm",
        "stages.{s}.downsample.proj": "stages.{s}.patches",
        "stages.{s}.downsample.norm": "stages.{s}.patch_norm",
        **{f"stages.{{s}}.blocks.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _PVT_V2_BLOCK.items()},
        "stages.{s}.blocks.{j}.mlp.dwconv": "stages.{s}.blocks.{j}.mlp.dwconv",
        "stages.{s}.norm": "stages.{s}.norm",
        "head": "head",
    },
)

LAYOUTS = (OFFICIAL_PVT_V2, TIMM_PVT_V2)
