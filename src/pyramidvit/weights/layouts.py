"""Published key layouts, one readable map each.

The left side is the published name, the right side ours, without the ``backbone.`` prefix of models with a head. ``{S}`` counts stages
from 1, ``{s}`` from 0, ``{j}`` the blocks of a stage and ``{i}`` those of the whole network; ``.weight`` or ``.bias`` may follow. ``[n]``
is part n of a tensor: of a table the first row, which is the class token's, and the other rows; of a linear layer equal parts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

TABLES = ("class_token", "class_position", "positions", "frame_positions")
"""Ours that published files hold as rows (1, N, C)."""

_NUMBERS = {name: rf"(?P<{name}>\d+)" for name in "Ssij"}
_END = r"(?P<end>(?:\.weight|\.bias)?)"


@dataclass(frozen=True)
class Layout:
    """``names`` maps published name patterns to ours; ``marks`` are parts of names that only this layout has all of, ``^`` and ``$`` their
    ends."""

    name: str
    marks: tuple[str, ...]
    names: Mapping[str, str]
    bare_rows: bool = False
    """Tables are published without axes of length 1."""

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return all(any(mark in f"^{key}$" for key in tensors) for mark in self.marks)

    def to_ours(self, tensors: Mapping[str, Tensor], depths: Sequence[int]) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under our names, for a network with so many blocks per stage, and the keys that the map doesn't know.

        Shapes may still differ from ours by axes of length 1, and tables are rows where ours are grids.
        """
        return _rename(tensors, list(self.names.items()), depths)

    def from_ours(self, tensors: Mapping[str, Tensor], depths: Sequence[int]) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under the published names, and the keys of ours that the map doesn't know."""
        rows = {key: tensor.reshape(1, -1, tensor.shape[-1]) if key.split(".")[-1] in TABLES else tensor for key, tensor in tensors.items()}
        renamed, unknown = _rename(rows, [(ours, published) for published, ours in self.names.items()], depths)
        if self.bare_rows:
            renamed = {key: tensor.squeeze() if tensor.ndim == 3 else tensor for key, tensor in renamed.items()}
        return renamed, unknown


def _rename(tensors: Mapping[str, Tensor], names: Sequence[tuple[str, str]], depths: Sequence[int]) -> tuple[dict[str, Tensor], list[str]]:
    rules = [(*_part(source), *_part(target)) for source, target in names]
    patterns = {source: re.compile(_pattern(source) + _END) for source, *_ in rules}
    pieces: dict[str, dict[int, Tensor]] = {}
    unknown: list[str] = []
    for key, tensor in tensors.items():
        found = [(match, rule) for rule in rules if (match := patterns[rule[0]].fullmatch(key))]
        if found and found[0][1][1] is None:
            found = found[:1]  # the first of several maps of a whole tensor counts
        for match, (_, part, target, target_part) in found:
            piece = tensor if part is None else _cut(tensor, len(found))[part]
            pieces.setdefault(_fill(target, match, depths), {})[target_part or 0] = piece
        if not found:
            unknown.append(key)
    return {key: _join([parts[n] for n in sorted(parts)]) for key, parts in pieces.items()}, unknown


def _part(name: str) -> tuple[str, int | None]:
    """A name and which part of that tensor is meant."""
    base, bracket, number = name.rstrip("]").partition("[")
    return base, int(number) if bracket else None


def _cut(tensor: Tensor, parts: int) -> Sequence[Tensor]:
    return (tensor[:, :1], tensor[:, 1:]) if tensor.ndim == 3 else tensor.chunk(parts)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1 if parts[0].ndim == 3 else 0)


def _pattern(template: str) -> str:
    return re.sub(r"\\{(\w)\\}", lambda m: _NUMBERS[m[1]], re.escape(template))


def _fill(template: str, match: re.Match[str], depths: Sequence[int]) -> str:
    found = {name: int(number) for name, number in match.groupdict().items() if name != "end"}
    starts = [0, *accumulate(depths)]
    if "i" in found:
        stage = max(s for s, start in enumerate(starts[:-1]) if start <= found["i"])
        found |= {"s": stage, "j": found["i"] - starts[stage]}
    stage = found["S"] - 1 if "S" in found else found.get("s", 0)
    block = found.get("j", 0)
    before = starts[min(stage, len(depths))]
    return template.format(S=stage + 1, s=stage, j=block, i=before + block) + match["end"]


_BLOCK = {name: name for name in ("norm1", "attn.q", "attn.kv", "attn.norm", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")}
_PVT_BLOCK = _BLOCK | {"attn.sr": "attn.reduce"}

OFFICIAL_PVT = Layout(
    "official PVT",
    marks=("pos_embed1", "patch_embed2.proj."),
    names={
        "patch_embed{S}.proj": "stages.{s}.patches",
        "patch_embed{S}.norm": "stages.{s}.patch_norm",
        "pos_embed1": "stages.0.positions",
        "pos_embed2": "stages.1.positions",
        "pos_embed3": "stages.2.positions",
        "pos_embed4[0]": "stages.3.class_position",
        "pos_embed4[1]": "stages.3.positions",
        "cls_token": "stages.3.class_token",
        **{f"block{{S}}.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _PVT_BLOCK.items()},
        "norm": "norm",
        "head": "head",
    },
)

TRANSFORMERS_PVT = Layout(
    "Transformers PVT",
    marks=("pvt.encoder.patch_embeddings.", "attention.self.query."),
    names={
        "pvt.encoder.patch_embeddings.{s}.projection": "stages.{s}.patches",
        "pvt.encoder.patch_embeddings.{s}.layer_norm": "stages.{s}.patch_norm",
        "pvt.encoder.patch_embeddings.0.position_embeddings": "stages.0.positions",
        "pvt.encoder.patch_embeddings.1.position_embeddings": "stages.1.positions",
        "pvt.encoder.patch_embeddings.2.position_embeddings": "stages.2.positions",
        "pvt.encoder.patch_embeddings.3.position_embeddings[0]": "stages.3.class_position",
        "pvt.encoder.patch_embeddings.3.position_embeddings[1]": "stages.3.positions",
        "pvt.encoder.patch_embeddings.3.cls_token": "stages.3.class_token",
        **{
            f"pvt.encoder.block.{{s}}.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}"
            for theirs, ours in {
                "layer_norm_1": "norm1",
                "attention.self.query": "attn.q",
                "attention.self.key": "attn.kv[0]",
                "attention.self.value": "attn.kv[1]",
                "attention.self.sequence_reduction": "attn.reduce",
                "attention.self.layer_norm": "attn.norm",
                "attention.output.dense": "attn.proj",
                "layer_norm_2": "norm2",
                "mlp.dense1": "mlp.fc1",
                "mlp.dense2": "mlp.fc2",
            }.items()
        },
        "pvt.encoder.layer_norm": "norm",
        "classifier": "head",
    },
)

OFFICIAL_PVT_V2 = Layout(
    "official PVT v2",
    marks=("patch_embed2.", "block1.0.mlp.dwconv.dwconv."),
    names={
        "patch_embed{S}.proj": "stages.{s}.patches",
        "patch_embed{S}.norm": "stages.{s}.patch_norm",
        **{f"block{{S}}.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _PVT_BLOCK.items()},
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
        **{f"stages.{{s}}.blocks.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _PVT_BLOCK.items()},
        "stages.{s}.blocks.{j}.mlp.dwconv": "stages.{s}.blocks.{j}.mlp.dwconv",
        "stages.{s}.norm": "stages.{s}.norm",
        "head": "head",
    },
)

_MVIT_BLOCK = {name: name for name in ("norm1", "attn.qkv", "attn.rel_pos_t", "attn.rel_pos_h", "attn.rel_pos_w", "norm2")} | {
    "attn.pool_q": "attn.pool_q",
    "attn.pool_k": "attn.pool_k",
    "attn.pool_v": "attn.pool_v",
    "attn.norm_q": "attn.pool_q.norm",
    "attn.norm_k": "attn.pool_k.norm",
    "attn.norm_v": "attn.pool_v.norm",
    "attn.proj": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}

SLOWFAST_MVIT = Layout(
    "SlowFast MViT",  # also that of facebookresearch/mvit
    marks=("^blocks.0.attn.qkv.", "^patch_embed.proj."),
    names={
        "cls_token": "class_token",
        "pos_embed_class": "class_position",
        "pos_embed_spatial": "positions",
        "pos_embed_temporal": "frame_positions",
        "patch_embed.proj": "patches",
        **{f"blocks.{{i}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _MVIT_BLOCK.items()},
        "blocks.{i}.proj": "stages.{s}.blocks.{j}.proj",
        "norm": "norm",
        "head.projection": "head",
    },
)

SLOWFAST_MVIT_PICTURES = Layout(
    "SlowFast MViT for pictures",
    marks=(*SLOWFAST_MVIT.marks, "^pos_embed$"),
    names={"pos_embed[0]": "class_position", "pos_embed[1]": "positions"}
    | {theirs: ours for theirs, ours in SLOWFAST_MVIT.names.items() if not theirs.startswith("pos_embed_")},
)

TORCHVISION_MVIT = Layout(
    "torchvision MViT",
    marks=("conv_proj.", "pos_encoding.class_token", "blocks.0.attn.project.0."),
    names={
        "pos_encoding.class_token": "class_token",
        "pos_encoding.class_pos": "class_position",
        "pos_encoding.spatial_pos": "positions",
        "pos_encoding.temporal_pos": "frame_positions",
        "conv_proj": "patches",
        **{
            f"blocks.{{i}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}"
            for theirs, ours in {
                "norm1": "norm1",
                "attn.qkv": "attn.qkv",
                "attn.rel_pos_t": "attn.rel_pos_t",
                "attn.rel_pos_h": "attn.rel_pos_h",
                "attn.rel_pos_w": "attn.rel_pos_w",
                "attn.pool_q.pool": "attn.pool_q",
                "attn.pool_k.pool": "attn.pool_k",
                "attn.pool_v.pool": "attn.pool_v",
                "attn.pool_q.norm_act.0": "attn.pool_q.norm",
                "attn.pool_k.norm_act.0": "attn.pool_k.norm",
                "attn.pool_v.norm_act.0": "attn.pool_v.norm",
                "attn.project.0": "attn.proj",
                "project": "proj",
                "norm2": "norm2",
                "mlp.0": "mlp.fc1",
                "mlp.3": "mlp.fc2",
            }.items()
        },
        "norm": "norm",
        "head.1": "head",
    },
    bare_rows=True,
)

TIMM_MVIT_V2 = Layout(
    "timm MViT v2",
    marks=("patch_embed.proj.", "stages.0.blocks.0.attn.qkv.", "shortcut_proj_attn."),
    names={
        "patch_embed.proj": "patches",
        **{f"stages.{{s}}.blocks.{{j}}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in _MVIT_BLOCK.items()},
        "stages.{s}.blocks.{j}.shortcut_proj_attn": "stages.{s}.blocks.{j}.proj",
        "norm": "norm",
        "head.fc": "head",
    },
)

TIMM_MVIT_V2_LARGE = Layout(
    "timm MViT v2 large",  # widens in the feed-forward
    marks=(*TIMM_MVIT_V2.marks[:2], "shortcut_proj_mlp."),
    names={theirs.replace("shortcut_proj_attn", "shortcut_proj_mlp"): ours for theirs, ours in TIMM_MVIT_V2.names.items()},
)

LAYOUTS = (
    OFFICIAL_PVT,
    TRANSFORMERS_PVT,
    OFFICIAL_PVT_V2,
    TIMM_PVT_V2,
    SLOWFAST_MVIT_PICTURES,
    SLOWFAST_MVIT,
    TORCHVISION_MVIT,
    TIMM_MVIT_V2,
    TIMM_MVIT_V2_LARGE,
)
