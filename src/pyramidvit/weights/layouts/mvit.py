"""MViT and MViT v2: SlowFast, facebookresearch/mvit, PyTorchVideo, torchvision, timm, MMAction2, MMPretrain, Detectron2."""

from dataclasses import replace

from pyramidvit.weights.layouts.keymap import Layout
from pyramidvit.weights.layouts.pvt import blocks

_NORMS = {"norm1": "norm1", "norm2": "norm2"}
_QKV = {"attn.qkv": "attn.qkv"}
_SPLIT_QKV = {"attn.q": "attn.qkv[0-0/3]", "attn.k": "attn.qkv[1-1/3]", "attn.v": "attn.qkv[2-2/3]"}
_RELATIVE = {f"attn.rel_pos_{axis}": f"attn.rel_pos_{axis}" for axis in "thw"}
_POOLS = {f"attn.pool_{part}": f"attn.pool_{part}" for part in "qkv"} | {f"attn.norm_{part}": f"attn.pool_{part}.norm" for part in "qkv"}
_LINEAR = {"attn.proj": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
_BLOCK = _NORMS | _QKV | _RELATIVE | _POOLS | _LINEAR
_PROJ = {"proj": "proj"}

_ALONE = {"cls_token": "class_token", "patch_embed.proj": "patches", "norm": "norm"}
_CLIP_TABLES = {"pos_embed_class": "class_position", "pos_embed_spatial": "positions", "pos_embed_temporal": "frame_positions"}
_PICTURE_TABLES = {"pos_embed[first]": "class_position", "pos_embed[others]": "positions"}


def _pools(axes: int) -> dict[str, int]:
    return {f".pool_{part}.weight": axes for part in "qkv"}


SLOWFAST_MVIT = Layout(
    "SlowFast MViT",
    library="slowfast",
    anchor="patch_embed.proj.weight",
    marks=("blocks.0.attn.qkv.weight",),
    wrapper="model_state",
    names=_ALONE | _CLIP_TABLES | blocks("blocks.{i}", _BLOCK | _PROJ),
    head={"head.projection": "head"},
    axes={"patch_embed.proj.weight": 5} | _pools(5),
)

SLOWFAST_MVIT_PICTURES = replace(  # convolutions of pictures still have an axis for frames when they pool
    SLOWFAST_MVIT,
    name="SlowFast MViT for pictures",
    names=_ALONE | _PICTURE_TABLES | blocks("blocks.{i}", _BLOCK | _PROJ),
    axes={"patch_embed.proj.weight": 4} | _pools(5),
)

MVIT = replace(SLOWFAST_MVIT_PICTURES, name="facebookresearch/mvit", library="mvit", axes={"patch_embed.proj.weight": 4} | _pools(4))

PYTORCHVIDEO_MVIT = Layout(
    "PyTorchVideo MViT",
    library="pytorchvideo",
    anchor="patch_embed.patch_model.weight",
    marks=("blocks.0.attn.q.weight",),
    wrapper="model_state",
    names={
        "patch_embed.patch_model": "patches",
        "cls_positional_encoding.cls_token": "class_token",
        **{f"cls_positional_encoding.{theirs}": ours for theirs, ours in _CLIP_TABLES.items()},
        **blocks("blocks.{i}", _NORMS | _SPLIT_QKV | _POOLS | _LINEAR | _PROJ),
        "norm_embed": "norm",
    },
    head={"head.proj": "head"},
)

PYTORCHVIDEO_MVIT_FUSED = replace(  # separate_qkv=False
    PYTORCHVIDEO_MVIT,
    name="PyTorchVideo MViT, queries, keys and values in one",
    library="pytorchvideo-fused",
    marks=("blocks.0.attn.qkv.weight",),
    names={theirs: ours for theirs, ours in PYTORCHVIDEO_MVIT.names.items() if "[" not in ours} | blocks("blocks.{i}", _QKV),
)

TORCHVISION_MVIT = Layout(
    "torchvision MViT",
    library="torchvision",
    anchor="conv_proj.weight",
    names={
        "conv_proj": "patches",
        "pos_encoding.class_token": "class_token",
        "pos_encoding.class_pos": "class_position",
        "pos_encoding.spatial_pos": "positions",
        "pos_encoding.temporal_pos": "frame_positions",
        **blocks(
            "blocks.{i}",
            _NORMS
            | _QKV
            | _RELATIVE
            | {f"attn.pool_{part}.pool": f"attn.pool_{part}" for part in "qkv"}
            | {f"attn.pool_{part}.norm_act.0": f"attn.pool_{part}.norm" for part in "qkv"}
            | {"attn.project.0": "attn.proj", "mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2", "project": "proj"},
        ),
        "norm": "norm",
    },
    head={"head.1": "head"},
    axes={"conv_proj.weight": 5},
    bare_rows=True,
)

TIMM_MVIT_V2 = Layout(
    "timm MViT v2",
    library="timm",
    anchor="patch_embed.proj.weight",
    marks=("stages.0.blocks.0.attn.qkv.weight", "stages.1.blocks.0.shortcut_proj_attn.weight"),
    names={
        "patch_embed.proj": "patches",
        **blocks("stages.{s}.blocks.{j}", _BLOCK),
        **{f"stages.{s}.blocks.0.shortcut_proj_attn": f"stages.{s}.blocks.0.proj" for s in (1, 2, 3)},
        "norm": "norm",
    },
    head={"head.fc": "head"},
    axes={"patch_embed.proj.weight": 4},
)

TIMM_MVIT_V2_LARGE = replace(  # widens in the feed-forward of the block before a stage
    TIMM_MVIT_V2,
    name="timm MViT v2 large",
    marks=TIMM_MVIT_V2.marks[:1],
    names={theirs: ours for theirs, ours in TIMM_MVIT_V2.names.items() if "shortcut" not in theirs}
    | {"stages.{s}.blocks.{j}.shortcut_proj_mlp": "stages.{s}.blocks.{j}.proj"},
)

MMACTION_MVIT = Layout(
    "MMAction2 MViT v2",
    library="mmaction2",
    anchor="patch_embed.projection.weight",
    marks=("blocks.0.attn.qkv.weight", "cls_token"),
    prefix="backbone.",
    wrapper="state_dict",
    names={
        "cls_token": "class_token",
        "patch_embed.projection": "patches",
        **blocks("blocks.{i}", _BLOCK | _PROJ),
        "norm3": "norm",
    },
    head={"cls_head.fc_cls": "head"},
    axes={"patch_embed.projection.weight": 5},
)

MMPRETRAIN_MVIT = replace(
    MMACTION_MVIT,
    name="MMPretrain MViT v2",
    library="mmpretrain",
    marks=("blocks.0.attn.qkv.weight",),
    names={theirs: ours for theirs, ours in MMACTION_MVIT.names.items() if theirs != "cls_token"},
    head={"head.fc": "head"},
    axes={"patch_embed.projection.weight": 4},
)

DETECTRON2_MVIT = Layout(
    "Detectron2 MViT v2",
    library="detectron2",
    anchor="patch_embed.proj.weight",
    marks=("blocks.0.attn.qkv.weight", "scale5_norm.weight"),
    prefix="backbone.bottom_up.",
    wrapper="model",
    names={"patch_embed.proj": "patches", **blocks("blocks.{i}", _BLOCK | _PROJ)},
    head={},
    axes={"patch_embed.proj.weight": 4} | _pools(4),
    dropped={
        rf"scale{n}_norm": "norms of Detectron2's maps; its blocks attend in windows, too, so outputs differ: a start for training"
        for n in (2, 3, 4, 5)
    },
)

MVIT_LAYOUTS = (
    DETECTRON2_MVIT,
    SLOWFAST_MVIT_PICTURES,
    SLOWFAST_MVIT,
    MVIT,
    PYTORCHVIDEO_MVIT,
    PYTORCHVIDEO_MVIT_FUSED,
    TORCHVISION_MVIT,
    TIMM_MVIT_V2,
    TIMM_MVIT_V2_LARGE,
    MMACTION_MVIT,
    MMPRETRAIN_MVIT,
)
