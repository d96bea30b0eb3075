"""Published weights by name: where each file is, what it was trained on, how pictures must be prepared, what it reaches.

Names are ``network.tag``. A tag without a library's name is the authors' own file; ``timm_in1k``, ``mmdet_coco_retinanet`` and so on are
those of other libraries. Numbers are the publishers' own, in percent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pyramidvit.errors import UserError, nearest
from pyramidvit.types import Preprocess

SSV2 = "Something-Something v2"
NUM_CLASSES = {"ImageNet-1k": 1000, "Kinetics-400": 400, "Kinetics-600": 600, SSV2: 174, "COCO": 80, "ADE20K": 150}
"""Classes of the data that networks were trained on."""

PICTURES = Preprocess()
"""ImageNet as PVT and MViT measure it: short side to 256, bicubic, centre crop 224."""
CLIPS = Preprocess(interpolation="bilinear", mean=(0.45,) * 3, std=(0.225,) * 3)
"""Kinetics as SlowFast measures it, one crop: short side to 256, centre crop 224."""
LARGE_CLIPS = Preprocess(size=(312, 312), interpolation="bilinear")
"""The same for MViT v2 large: short side to 356, crop 312, ImageNet statistics."""
DENSE = {
    "retinanet": Preprocess(size=(800, 1333), crop=1.0, interpolation="bilinear"),
    "mask_rcnn": Preprocess(size=(800, 1333), crop=1.0, interpolation="bilinear"),
    "semantic_fpn": Preprocess(size=(512, 2048), crop=1.0, interpolation="bilinear"),
}
"""Detectors and segmenters: pictures keep their shape, in the largest size whose short and long side fit."""


@dataclass(frozen=True)
class Published:
    """One file. ``layout`` is the library whose names it uses; ``mib`` its size in MiB, where the publisher gives one."""

    name: str
    url: str
    """https, or ``hf:owner/name`` for a repository of the Hugging Face hub."""
    layout: str
    numbers: Mapping[str, float]
    classes: str = "ImageNet-1k"
    preprocess: Preprocess = PICTURES
    head: str = "classify"
    mib: float | None = None
    bgr: bool = False
    """Trained on pictures with blue first."""
    licence: str = field(default="Apache-2.0")

    @property
    def model(self) -> str:
        return self.name.partition(".")[0]

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        return self.name + (PurePosixPath(self.url).suffix if not self.by_hand else ".pth")

    @property
    def sha256(self) -> str:
        """The beginning of the file's SHA-256, which torchvision and OpenMMLab put into file names; empty where none is known."""
        found = re.search(r"-([0-9a-f]{8})\.pth$", self.url)
        return found[1] if found else ""

    @property
    def by_hand(self) -> bool:
        """Google Drive hands large files to browsers only."""
        return self.url.startswith("https://drive.google.com/")


OFFICIAL = "https://github.com/whai362/PVT/releases/download/v2"
DRIVE = "https://drive.google.com/file/d"
SLOWFAST = "https://dl.fbaipublicfiles.com/pyslowfast/model_zoo"
MMDET = "https://download.openmmlab.com/mmdetection/v2.0/pvt"
MMACTION = "https://download.openmmlab.com/mmaction/v1.0/recognition/mvit/converted"
MMPRETRAIN = "https://download.openmmlab.com/mmclassification/v0/mvit"

PVT = (
    *(("pvt_tiny", 51, 75.1), ("pvt_small", 93, 79.8), ("pvt_medium", 168, 81.2), ("pvt_large", 234, 81.7)),
    *(("pvt_v2_b0", 14, 70.5), ("pvt_v2_b1", 54, 78.7), ("pvt_v2_b2", 97, 82.0), ("pvt_v2_b2_li", 86, 82.1)),
    *(("pvt_v2_b3", 173, 83.1), ("pvt_v2_b4", 239, 83.6), ("pvt_v2_b5", 313, 83.8)),
)
"""Network, MiB of the authors' file, top-1 on ImageNet-1k."""

MVIT_V2 = (("tiny", "T", 82.3), ("small", "S", 83.6), ("base", "B", 84.4), ("large", "L", 85.3))

_PVT_FILES = (
    *(Published(f"{name}.in1k", f"{OFFICIAL}/{name}.pth", "official", {"top1": top1}, mib=mib) for name, mib, top1 in PVT),
    *(Published(f"{name}.timm_in1k", f"hf:timm/{name}.in1k", "timm", {"top1": top1}) for name, _, top1 in PVT[4:]),
    *(
        Published(f"{name}.hf_in1k", f"hf:Zetatech/{name.replace('_', '-')}-224", "transformers", {"top1": top1})
        for name, _, top1 in PVT[:4]
    ),
    *(
        Published(f"{name}.hf_in1k", f"hf:OpenGVLab/{name.replace('_li', '_linear')}", "transformers", {"top1": top1})
        for name, _, top1 in PVT[4:]
    ),
    *(
        Published(f"{name}.{tag}", f"{DRIVE}/{key}/view", "official", numbers, classes, DENSE[head], head)
        for name, tag, key, numbers, classes, head in (
            ("pvt_tiny", "coco_retinanet", "1ZbS-g3oqAChkYiDYTiZLzw61lal2pgbl", {"box_ap": 36.7}, "COCO", "retinanet"),
            ("pvt_small", "coco_retinanet", "1U02ngyT_IYxS8SlU3WXf5r0TFsoBE3Lm", {"box_ap": 40.4}, "COCO", "retinanet"),
            ("pvt_small", "coco_mask_rcnn", "1XGJQTivM_KviRDVvKTPgkJQhFco2oXSA", {"box_ap": 40.4, "mask_ap": 37.8}, "COCO", "mask_rcnn"),
            ("pvt_small", "ade20k_semantic_fpn", "13fy-FXAfYnHgHRaUiJWVBON670wFLIiD", {"miou": 41.9}, "ADE20K", "semantic_fpn"),
        )
    ),
    *(
        Published(
            f"{name}.mmdet_coco_retinanet",
            f"{MMDET}/{file}/{file}_{date}.pth",
            "mmdet",
            {"box_ap": ap},
            "COCO",
            DENSE["retinanet"],
            "retinanet",
        )
        for name, file, date, ap in (
            ("pvt_tiny", "retinanet_pvt-t_fpn_1x_coco", "20210831_103110-17b566bd", 36.6),
            ("pvt_small", "retinanet_pvt-s_fpn_1x_coco", "20210906_142921-b6c94a5b", 40.4),
            ("pvt_medium", "retinanet_pvt-m_fpn_1x_coco", "20210831_103243-55effa1b", 41.7),
            ("pvt_v2_b0", "retinanet_pvtv2-b0_fpn_1x_coco", "20210831_103157-13e9aabe", 37.1),
            ("pvt_v2_b1", "retinanet_pvtv2-b1_fpn_1x_coco", "20210831_103318-7e169a7d", 41.2),
            ("pvt_v2_b2", "retinanet_pvtv2-b2_fpn_1x_coco", "20210901_174843-529f0b9a", 44.6),
            ("pvt_v2_b3", "retinanet_pvtv2-b3_fpn_1x_coco", "20210903_151512-8357deff", 46.0),
            ("pvt_v2_b4", "retinanet_pvtv2-b4_fpn_1x_coco", "20210901_170151-83795c86", 46.3),
            ("pvt_v2_b5", "retinanet_pvtv2-b5_fpn_1x_coco", "20210902_201800-3420eb57", 46.1),
        )
    ),
)

_MVIT_PICTURES = (
    Published("mvit_base16.in1k", f"{DRIVE}/1dYYqUB-3DSgBVc9d6o-rW8ojtVsrFLgp/view", "slowfast", {"top1": 82.9}),
    *(
        Published(
            f"mvitv2_{size}.in1k", f"https://dl.fbaipublicfiles.com/mvit/mvitv2_models/MViTv2_{letter}_in1k.pyth", "mvit", {"top1": top1}
        )
        for size, letter, top1 in MVIT_V2
    ),
    *(Published(f"mvitv2_{size}.timm_in1k", f"hf:timm/mvitv2_{size}.fb_in1k", "timm", {"top1": top1}) for size, _, top1 in MVIT_V2),
    *(
        Published(
            f"mvitv2_{size}.mmpretrain_in1k", f"{MMPRETRAIN}/mvitv2-{size}_3rdparty_in1k_20220722-{sha}.pth", "mmpretrain", {"top1": top1}
        )
        for size, sha, top1 in (
            *(("tiny", "db7beeef", 82.33), ("small", "986bd741", 83.63), ("base", "9c4f0a17", 84.34), ("large", "2b57b983", 85.25)),
        )
    ),
)

_MVIT_CLIPS = (
    *(
        Published(f"{name}.{tag}", f"{SLOWFAST}/mvitv2/pysf_video_models/{file}.pyth", "slowfast", {"top1": top1}, classes, clips, bgr=bgr)
        for name, tag, file, top1, classes, clips, bgr in (
            ("mvitv2_small_16x4", "k400", "MViTv2_S_16x4_k400_f302660347", 81.0, "Kinetics-400", CLIPS, False),
            ("mvitv2_base_32x3", "k400", "MViTv2_B_32x3_k400_f304025456", 82.9, "Kinetics-400", CLIPS, False),
            ("mvitv2_large_40x3", "k400", "MViTv2_L_40x3_k400_f306903192", 86.1, "Kinetics-400", LARGE_CLIPS, False),
            ("mvitv2_small_16x4", "ssv2", "MViTv2_S_16x4_ssv2_f308341823", 68.2, SSV2, CLIPS, True),
            ("mvitv2_base_32x3", "ssv2", "MViTv2_B_32x3_ssv2_f305803282", 70.5, SSV2, CLIPS, True),
            ("mvitv2_large_40x3", "ssv2", "MViTv2_L_40x3_ssv2_f309603968", 73.3, SSV2, LARGE_CLIPS, True),
        )
    ),
    Published("mvit_base_16x4.k400", f"{DRIVE}/194gJinVejq6A1FmySNKQ8vAN5-FOY-QL/view", "slowfast", {"top1": 78.4}, "Kinetics-400", CLIPS),
    Published("mvit_base24_32x3.k400", f"{SLOWFAST}/mvit/k400.pyth", "slowfast", {"top1": 80.4}, "Kinetics-400", CLIPS),
    Published("mvit_base24_32x3.k600", f"{SLOWFAST}/mvit/k600.pyth", "slowfast", {"top1": 83.9}, "Kinetics-600", CLIPS),
    *(
        Published(
            name,
            f"https://download.pytorch.org/models/{file}",
            "torchvision",
            {"top1": top1},
            "Kinetics-400",
            CLIPS,
            mib=mib,
            licence="BSD-3-Clause",
        )
        for name, file, top1, mib in (
            ("mvit_base_16x4.torchvision_k400", "mvit_v1_b-dbeb1030.pth", 78.477, 139.8),
            ("mvitv2_small_16x4.torchvision_k400", "mvit_v2_s-ae3be167.pth", 80.757, 131.9),
        )
    ),
    Published(
        "mvit_base_16x4.pytorchvideo_k400",
        "https://dl.fbaipublicfiles.com/pytorchvideo/model_zoo/kinetics/MVIT_B_16x4.pyth",
        "pytorchvideo",
        {},
        "Kinetics-400",
        CLIPS,
    ),
    *(
        Published(
            f"{name}.mmaction2_{tag}",
            f"{MMACTION}/{file}.pth",
            "mmaction2",
            {"top1": top1},
            classes,
            LARGE_CLIPS if "large" in name else CLIPS,
        )
        for name, tag, file, top1, classes in (
            ("mvitv2_small_16x4", "k400", "mvit-small-p244_16x4x1_kinetics400-rgb_20221021-9ebaaeed", 81.1, "Kinetics-400"),
            ("mvitv2_base_32x3", "k400", "mvit-base-p244_32x3x1_kinetics400-rgb_20221021-f392cd2d", 82.6, "Kinetics-400"),
            ("mvitv2_large_40x3", "k400", "mvit-large-p244_40x3x1_kinetics400-rgb_20221021-11fe1f97", 85.4, "Kinetics-400"),
            ("mvitv2_small_16x4", "ssv2", "mvit-small-p244_u16_sthv2-rgb_20221021-65ecae7d", 68.1, SSV2),
            ("mvitv2_base_32x3", "ssv2", "mvit-base-p244_u32_sthv2-rgb_20221021-d5de5da6", 70.8, SSV2),
            ("mvitv2_large_40x3", "ssv2", "mvit-large-p244_u40_sthv2-rgb_20221021-61696e07", 73.2, SSV2),
        )
    ),
)

ZOO: dict[str, Published] = {record.name: record for record in (*_PVT_FILES, *_MVIT_PICTURES, *_MVIT_CLIPS)}
"""Name → file."""


def find(name: str) -> Published:
    """The published file of that name. UserError with the nearest names for any other."""
    if name in ZOO:
        return ZOO[name]
    tags = [record.name for record in ZOO.values() if record.model == name.partition(".")[0].casefold()]
    close = tags or nearest(name, ZOO) or list(ZOO)[:3]
    raise UserError(f"There are no published weights {name!r}; did you mean {' or '.join(close)}? `pyramidvit weights` lists all.")


def pretrained(model: str) -> Published:
    """The first file of a network that classifies and can be fetched: the authors' own where there is one. UserError when there is none."""
    for record in ZOO.values():
        if record.model == model and record.head == "classify" and not record.by_hand:
            return record
    by_hand = [f"{record.name} ({record.url})" for record in ZOO.values() if record.model == model]
    known = ", ".join(dict.fromkeys(record.model for record in ZOO.values() if not record.by_hand))
    remedy = f"Fetch {' or '.join(by_hand)} in a browser and give the file as weights." if by_hand else f"Networks with weights: {known}."
    raise UserError(f"Nobody publishes weights of {model} that can be fetched. {remedy}")


def classes_of(model: str, weights: object = None) -> int:
    """How many classes a classifier has if nobody says: those of the published ``weights``, else those that the network was made for."""
    record = ZOO.get(str(weights)) or next((record for record in ZOO.values() if record.model == model), None)
    if record is not None and record.head == "classify":
        return NUM_CLASSES[record.classes]
    return NUM_CLASSES["Kinetics-400" if clip_of(model) else "ImageNet-1k"]


def clip_of(model: str) -> tuple[int, int] | None:
    """Frames of a clip network's input, and the step from one to the next, which its name tells; None for pictures."""
    found = re.search(r"_(\d+)x(\d)$", model)
    return (int(found[1]), int(found[2])) if found else None


def class_names(classes: str) -> tuple[str, ...]:
    """Names of the classes of a data set as torchvision has them, in the order of training; numbers where it has none."""
    from torchvision import models  # noqa: PLC0415 - slow to import, and seldom needed

    known = {
        "ImageNet-1k": models.ResNet50_Weights.IMAGENET1K_V2,
        "Kinetics-400": models.video.MViT_V1_B_Weights.KINETICS400_V1,
        "COCO": models.detection.RetinaNet_ResNet50_FPN_Weights.COCO_V1,
    }
    if classes not in known:
        return tuple(map(str, range(NUM_CLASSES[classes])))
    return tuple(name for name in known[classes].meta["categories"] if name not in ("__background__", "N/A"))
