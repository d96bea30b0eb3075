"""Settings → the configuration of a head: those given, over a preset."""

from dataclasses import fields, replace
from typing import Any

from pyramidvit.config import HeadConfig
from pyramidvit.models import mask_rcnn, retinanet, semantic_fpn
from pyramidvit.models.rpn import RPNConfig

HEADS: dict[str, tuple[type[Any], ...]] = {
    "segment": (semantic_fpn.SemanticFPNConfig,),
    "detect": (retinanet.RetinaNetConfig,),
    "instances": (mask_rcnn.MaskRCNNConfig, RPNConfig),
}
"""Task → what has the settings of its head."""


def semantic_fpn_config(head: HeadConfig) -> semantic_fpn.SemanticFPNConfig:
    return _over(semantic_fpn.SMALL if head.preset == "small" else semantic_fpn.SemanticFPNConfig(), head)


def retinanet_config(head: HeadConfig) -> retinanet.RetinaNetConfig:
    return _over(retinanet.SMALL if head.preset == "small" else retinanet.RetinaNetConfig(), head)


def mask_rcnn_config(head: HeadConfig) -> mask_rcnn.MaskRCNNConfig:
    """Anchors and proposals are settings of the first stage; ``samples`` and ``nms_iou`` are those of the second one."""
    config = mask_rcnn.SMALL if head.preset == "small" else mask_rcnn.MaskRCNNConfig()
    first_stage = head.model_copy(update={"samples": None, "nms_iou": None})
    return replace(_over(config, head), rpn=_over(config.rpn, first_stage))


def _over(preset: Any, head: HeadConfig) -> Any:
    """The preset with the settings that were given and that it has."""
    names = {field.name for field in fields(preset)}
    return replace(preset, **{name: value for name, value in head if name in names and value is not None})
