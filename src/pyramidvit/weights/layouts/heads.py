"""Heads of MMDetection and MMSegmentation, which the official PVT detectors and segmentors share: published name → ours."""

_NECK = {
    **{f"neck.lateral_convs.{i}.conv": f"fpn.laterals.{i}" for i in range(4)},
    **{f"neck.fpn_convs.{i}.conv": f"fpn.outputs.{i}" for i in range(4)},
}

RETINANET = {
    **{theirs: ours for theirs, ours in _NECK.items() if ".3" not in theirs},  # from the maps at strides 8, 16 and 32
    "neck.fpn_convs.3.conv": "fpn.extras.0",
    "neck.fpn_convs.4.conv": "fpn.extras.1",
    **{f"bbox_head.cls_convs.{i}.conv": f"class_tower.{i}" for i in range(4)},
    **{f"bbox_head.reg_convs.{i}.conv": f"box_tower.{i}" for i in range(4)},
    "bbox_head.retina_cls": "classes",
    "bbox_head.retina_reg": "boxes",
}

MASK_RCNN = {
    **_NECK,
    "rpn_head.rpn_conv": "rpn.conv",
    "rpn_head.rpn_cls": "rpn.objectness",
    "rpn_head.rpn_reg": "rpn.boxes",
    "roi_head.bbox_head.shared_fcs.0": "roi_heads.box.hidden.0",
    "roi_head.bbox_head.shared_fcs.1": "roi_heads.box.hidden.1",
    "roi_head.bbox_head.fc_cls": "roi_heads.box.classes",  # background last, here as there
    "roi_head.bbox_head.fc_reg": "roi_heads.box.boxes",
    **{f"roi_head.mask_head.convs.{i}.conv": f"roi_heads.mask.convs.{i}" for i in range(4)},
    "roi_head.mask_head.upsample": "roi_heads.mask.upsample",
    "roi_head.mask_head.conv_logits": "roi_heads.mask.masks",
}

_STEPS = [(i, k) for i in range(4) for k in range(max(i, 1))]
"""Branch and step; between theirs stand upsamplings, which have a number, too."""

SEMANTIC_FPN = {
    **_NECK,
    **{f"decode_head.scale_heads.{i}.{2 * k}.conv": f"branches.{i}.{k}.conv" for i, k in _STEPS},
    **{f"decode_head.scale_heads.{i}.{2 * k}.bn": f"branches.{i}.{k}.norm" for i, k in _STEPS},
    "decode_head.conv_seg": "classes",
}

DENSE_HEADS = {
    "bbox_head.retina_cls.weight": RETINANET,
    "roi_head.bbox_head.fc_cls.weight": MASK_RCNN,
    "decode_head.conv_seg.weight": SEMANTIC_FPN,
}
"""A name that only this head has → its map."""
