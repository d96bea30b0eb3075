"""PVT and PVT v2: the official code, timm, Transformers, MMDetection (whose PVT other OpenMMLab libraries share)."""

from pyramidvit.weights.layouts.keymap import Layout

OFFICIAL_EPS, ONE_EPS = 1e-5, 1e-6
"""Norms after patches and after reduction; all other norms have 1e-6 everywhere."""


def blocks(place: str, names: dict[str, str]) -> dict[str, str]:
    """The map of one block for all blocks, which stand at ``place``."""
    return {f"{place}.{theirs}": f"stages.{{s}}.blocks.{{j}}.{ours}" for theirs, ours in names.items()}


_OFFICIAL_BLOCK = {
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
_OFFICIAL_PATCHES = {"patch_embed{S}.proj": "stages.{s}.patches", "patch_embed{S}.norm": "stages.{s}.patch_norm"}

OFFICIAL_PVT = Layout(
    "official PVT",
    library="official",
    anchor="patch_embed1.proj.weight",
    marks=("pos_embed1",),
    names={
        **_OFFICIAL_PATCHES,
        "pos_embed1": "stages.0.positions",
        "pos_embed2": "stages.1.positions",
        "pos_embed3": "stages.2.positions",
        "pos_embed4[first]": "stages.3.class_position",
        "pos_embed4[others]": "stages.3.positions",
        "cls_token": "stages.3.class_token",
        **blocks("block{S}.{j}", _OFFICIAL_BLOCK),
        "norm": "norm",
    },
    head={"head": "head"},
    dense=True,
    patch_eps=OFFICIAL_EPS,
)

TRANSFORMERS_PVT = Layout(
    "Transformers PVT",
    library="transformers",
    anchor="patch_embeddings.0.projection.weight",
    prefix="pvt.encoder.",
    names={
        "patch_embeddings.{s}.projection": "stages.{s}.patches",
        "patch_embeddings.{s}.layer_norm": "stages.{s}.patch_norm",
        "patch_embeddings.0.position_embeddings": "stages.0.positions",
        "patch_embeddings.1.position_embeddings": "stages.1.positions",
        "patch_embeddings.2.position_embeddings": "stages.2.positions",
        "patch_embeddings.3.position_embeddings[first]": "stages.3.class_position",
        "patch_embeddings.3.position_embeddings[others]": "stages.3.positions",
        "patch_embeddings.3.cls_token": "stages.3.class_token",
        **blocks(
            "block.{s}.{j}",
            {
                "layer_norm_1": "norm1",
                "attention.self.query": "attn.q",
                "attention.self.key": "attn.kv[0-0/2]",
                "attention.self.value": "attn.kv[1-1/2]",
                "attention.self.sequence_reduction": "attn.reduce",
                "attention.self.layer_norm": "attn.norm",
                "attention.output.dense": "attn.proj",
                "layer_norm_2": "norm2",
                "mlp.dense1": "mlp.fc1",
                "mlp.dense2": "mlp.fc2",
            },
        ),
        "layer_norm": "norm",
    },
    head={"classifier": "head"},
    patch_eps=ONE_EPS,
)

_MM_PATCHES = {"layers.{s}.0.projection": "stages.{s}.patches", "layers.{s}.0.norm": "stages.{s}.patch_norm"}
_MM_BLOCK = {
    "norm1": "norm1",
    "attn.attn.in_proj_weight[0-0/3]": "attn.q.weight",
    "attn.attn.in_proj_weight[1-2/3]": "attn.kv.weight",
    "attn.attn.in_proj_bias[0-0/3]": "attn.q.bias",
    "attn.attn.in_proj_bias[1-2/3]": "attn.kv.bias",
    "attn.attn.out_proj": "attn.proj",
    "attn.sr": "attn.reduce",
    "attn.norm": "attn.norm",
    "norm2": "norm2",
    "ffn.layers.0": "mlp.fc1",  # linear layers as 1x1 convolutions
}

MMDETECTION_PVT = Layout(
    "MMDetection PVT",
    library="mmdet",
    anchor="layers.0.0.projection.weight",
    marks=("layers.0.1.0.pos_embed",),
    prefix="backbone.",
    wrapper="state_dict",
    names={
        **_MM_PATCHES,
        "layers.{s}.1.0.pos_embed": "stages.{s}.positions",
        **blocks("layers.{s}.1.{k}", _MM_BLOCK | {"ffn.layers.3": "mlp.fc2"}),
    },
    head={},
    dense=True,
    without=("norm.", "stages.3.class_"),
    axes={"ffn.layers.0.weight": 4, "ffn.layers.3.weight": 4},
    patch_eps=ONE_EPS,
)

OFFICIAL_PVT_V2 = Layout(
    "official PVT v2",
    library="official",
    anchor="patch_embed1.proj.weight",
    marks=("block1.0.mlp.dwconv.dwconv.weight",),
    names={
        **_OFFICIAL_PATCHES,
        **blocks("block{S}.{j}", _OFFICIAL_BLOCK | {"mlp.dwconv.dwconv": "mlp.dwconv"}),
        "norm{S}": "stages.{s}.norm",
    },
    head={"head": "head"},
    dense=True,
    patch_eps=OFFICIAL_EPS,
)

TIMM_PVT_V2 = Layout(
    "timm PVT v2",
    library="timm",
    anchor="patch_embed.proj.weight",
    marks=("stages.0.blocks.0.attn.kv.weight",),
    names={
        "patch_embed.proj": "stages.0.patches",
        "patch_embed.norm": "stages.0.patch_norm",
        "stages.{s}.downsample.proj": "stages.{s}.patches",
        "stages.{s}.downsample.norm": "stages.{s}.patch_norm",
        **blocks("stages.{s}.blocks.{j}", _OFFICIAL_BLOCK | {"mlp.dwconv": "mlp.dwconv"}),
        "stages.{s}.norm": "stages.{s}.norm",
    },
    head={"head": "head"},
    patch_eps=OFFICIAL_EPS,
)

TRANSFORMERS_PVT_V2 = Layout(
    "Transformers PVT v2",
    library="transformers",
    anchor="layers.0.patch_embedding.proj.weight",
    prefix="pvt_v2.encoder.",
    names={
        "layers.{s}.patch_embedding.proj": "stages.{s}.patches",
        "layers.{s}.patch_embedding.layer_norm": "stages.{s}.patch_norm",
        **blocks(
            "layers.{s}.blocks.{j}",
            {
                "layer_norm_1": "norm1",
                "attention.query": "attn.q",
                "attention.key": "attn.kv[0-0/2]",
                "attention.value": "attn.kv[1-1/2]",
                "attention.spatial_reduction": "attn.reduce",
                "attention.layer_norm": "attn.norm",
                "attention.proj": "attn.proj",
                "layer_norm_2": "norm2",
                "mlp.dense1": "mlp.fc1",
                "mlp.dwconv.dwconv": "mlp.dwconv",
                "mlp.dense2": "mlp.fc2",
            },
        ),
        "layers.{s}.layer_norm": "stages.{s}.norm",
    },
    head={"classifier": "head"},
    patch_eps=ONE_EPS,
)

MMDETECTION_PVT_V2 = Layout(
    "MMDetection PVT v2",
    library="mmdet",
    anchor="layers.0.0.projection.weight",
    marks=("layers.0.1.0.ffn.layers.4.weight",),
    prefix="backbone.",
    wrapper="state_dict",
    names={
        **_MM_PATCHES,
        **blocks("layers.{s}.1.{j}", _MM_BLOCK | {"ffn.layers.1": "mlp.dwconv", "ffn.layers.4": "mlp.fc2"}),
        "layers.{s}.2": "stages.{s}.norm",
    },
    head={},
    dense=True,
    axes={"ffn.layers.0.weight": 4, "ffn.layers.4.weight": 4},
    patch_eps=ONE_EPS,
)

PVT_LAYOUTS = (
    OFFICIAL_PVT,
    TRANSFORMERS_PVT,
    MMDETECTION_PVT,
    OFFICIAL_PVT_V2,
    TIMM_PVT_V2,
    TRANSFORMERS_PVT_V2,
    MMDETECTION_PVT_V2,
)
