"""Heads against the outputs of MMDetection and MMSegmentation: from the backbone's maps to final boxes, masks and labels."""

import dataclasses
import importlib
import json
import re
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torchvision.ops import batched_nms

from pyramidvit import create_model
from pyramidvit.models import mask_rcnn, retinanet, semantic_fpn
from pyramidvit.models.anchors import cell_anchors
from pyramidvit.models.box_coder import ROI_DEVIATIONS, decode
from pyramidvit.models.masks import paste_masks, paste_windows
from pyramidvit.models.roi_heads import levels_for, pool_regions
from pyramidvit.models.rpn import propose

BACKBONE = {
    r"layers\.(\d)\.0\.projection": r"stages.\1.patches",
    r"layers\.(\d)\.0\.norm": r"stages.\1.patch_norm",
    r"layers\.(\d)\.1\.0\.pos_embed": r"stages.\1.positions",
    r"layers\.(\d)\.2": r"stages.\1.norm",
    r"layers\.(\d)\.1\.(\d+)\.norm(\d)": r"stages.\1.blocks.\2.norm\3",
    r"layers\.(\d)\.1\.(\d+)\.attn\.attn\.out_proj": r"stages.\1.blocks.\2.attn.proj",
    r"layers\.(\d)\.1\.(\d+)\.attn\.sr": r"stages.\1.blocks.\2.attn.reduce",
    r"layers\.(\d)\.1\.(\d+)\.attn\.norm": r"stages.\1.blocks.\2.attn.norm",
    r"layers\.(\d)\.1\.(\d+)\.ffn\.layers\.0": r"stages.\1.blocks.\2.mlp.fc1",
    r"layers\.(\d)\.1\.(\d+)\.ffn\.layers\.1": r"stages.\1.blocks.\2.mlp.dwconv",
    r"layers\.(\d)\.1\.(\d+)\.ffn\.layers\.[34]": r"stages.\1.blocks.\2.mlp.fc2",
}
NECK = {r"neck\.lateral_convs\.(\d)\.conv": r"fpn.laterals.\1", r"neck\.fpn_convs\.(\d)\.conv": r"fpn.outputs.\1"}
HEADS = {
    "retinanet": {
        r"neck\.fpn_convs\.3\.conv": "fpn.extras.0",
        r"neck\.fpn_convs\.4\.conv": "fpn.extras.1",
        **NECK,
        r"bbox_head\.cls_convs\.(\d)\.conv": r"class_tower.\1",
        r"bbox_head\.reg_convs\.(\d)\.conv": r"box_tower.\1",
        r"bbox_head\.retina_cls": "classes",
        r"bbox_head\.retina_reg": "boxes",
    },
    "mask_rcnn": {
        **NECK,
        r"rpn_head\.rpn_conv": "rpn.conv",
        r"rpn_head\.rpn_cls": "rpn.objectness",
        r"rpn_head\.rpn_reg": "rpn.boxes",
        r"roi_head\.bbox_head\.shared_fcs\.(\d)": r"roi_heads.box.hidden.\1",
        r"roi_head\.bbox_head\.fc_cls": "roi_heads.box.classes",
        r"roi_head\.bbox_head\.fc_reg": "roi_heads.box.boxes",
        r"roi_head\.mask_head\.convs\.(\d)\.conv": r"roi_heads.mask.convs.\1",
        r"roi_head\.mask_head\.upsample": "roi_heads.mask.upsample",
        r"roi_head\.mask_head\.conv_logits": "roi_heads.mask.masks",
    },
    "semantic_fpn": {
        **NECK,
        r"decode_head\.scale_heads\.(\d)\.0\.conv": r"branches.\1.0.conv",
        r"decode_head\.scale_heads\.(\d)\.0\.bn": r"branches.\1.0.norm",
        r"decode_head\.scale_heads\.(\d)\.2\.conv": r"branches.\1.1.conv",
        r"decode_head\.scale_heads\.(\d)\.2\.bn": r"branches.\1.1.norm",
        r"decode_head\.scale_heads\.(\d)\.4\.conv": r"branches.\1.2.conv",
        r"decode_head\.scale_heads\.(\d)\.4\.bn": r"branches.\1.2.norm",
        r"decode_head\.conv_seg": "classes",
    },
}
"""MMDetection's and MMSegmentation's names → ours."""

BUILD = {"retinanet": retinanet.RetinaNet, "mask_rcnn": mask_rcnn.MaskRCNN, "semantic_fpn": semantic_fpn.SemanticFPN}
MODELS, SIZES = ("pvt_tiny", "pvt_v2_b0"), ("256x320", "200x333")


def renamed(key, kind):
    """One name of ours, without the parameter's own."""
    for theirs, ours in HEADS[kind].items() if not key.startswith("backbone.") else BACKBONE.items():
        if re.fullmatch(theirs, key.removeprefix("backbone.")):
            return ("backbone." if key.startswith("backbone.") else "") + re.sub(theirs, ours, key.removeprefix("backbone."))
    raise KeyError(key)


def to_ours(theirs, kind, model):
    """A state dict under our names, in the shapes that ours have."""
    shift = "pos_embed" in " ".join(theirs)  # PVT's blocks are counted from 1 there
    named = {}
    for key, tensor in theirs.items():
        if "in_proj" in key:
            stage, block = map(int, re.findall(r"layers\.(\d)\.1\.(\d+)", key)[0])
            name = f"backbone.stages.{stage}.blocks.{block - shift}.attn"
            end = key.rsplit("_", 1)[1]
            C = len(tensor) // 3
            named |= {f"{name}.q.{end}": tensor[:C], f"{name}.kv.{end}": tensor[C:]}
        elif key.endswith("pos_embed"):
            named[renamed(key, kind)] = tensor
        else:
            stem, end = key.rsplit(".", 1)
            name = renamed(stem, kind)
            if shift and (block := re.search(r"blocks\.(\d+)", name)):
                name = name.replace(block[0], f"blocks.{int(block[1]) - 1}")
            named[f"{name}.{end}"] = tensor
    shapes = model.state_dict()
    return {key: tensor.reshape(shapes[key].shape) for key, tensor in named.items()}


class Dense:
    """The dense goldens: cases, weights, outputs."""

    def __init__(self, folder):
        sys.path.insert(0, str(folder))
        self.deterministic = importlib.import_module("deterministic")
        self.dense = importlib.import_module("dense_deterministic")
        sys.path.remove(str(folder))
        described = json.loads((folder / "dense_cases.json").read_text())
        self.adjust, self.cases = described["adjust"], {case["name"]: case for case in described["cases"]}
        self.keys = json.loads((folder / "dense_keys.json").read_text())
        self.stored = load_file(folder / "dense.safetensors")

    def tensors(self, prefix):
        return {key.removeprefix(prefix + "/"): value for key, value in self.stored.items() if key.startswith(prefix + "/")}

    def model(self, name, kind, num_classes):
        indices = (1, 2, 3) if kind == "retinanet" else None
        model = BUILD[kind](create_model(name, features_only=True, out_indices=indices), num_classes).eval()
        theirs = {k: self.dense.tensor(k, tuple(shape), self.adjust[kind]) for k, shape in self.keys[f"{name}/{kind}"].items()}
        state = {key: value for key, value in model.state_dict().items() if key.endswith("_extra_state")}
        model.load_state_dict(state | to_ours(theirs, kind, model))
        for module in model.backbone.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6  # everywhere, in MMDetection
        return model

    def run(self, name, kind, size, num_classes):
        """Network, padded input, its size without padding, the wanted tensors."""
        case = self.cases[f"{name}/{kind}/{size}"]
        shape, (H, W) = case["input"]["shape"], case["input"]["padded"]
        x = self.deterministic.image(tuple(shape), case["input"]["seed"])
        x = F.pad(x, (0, W - shape[3], 0, H - shape[2]))
        return self.model(name, kind, num_classes), x, (shape[2], shape[3]), self.tensors(case["name"])


@pytest.fixture(scope="session")
def dense(shared):
    return Dense(shared / "golden")


@pytest.fixture(scope="session")
def ops(dense):
    return dense.tensors("ops")


def check(got, want, name, bound):
    """The stored numbers of a tensor, relative to the whole tensor's deviation."""
    index, values = want[f"{name}.index"].long(), want[f"{name}.values"]
    assert ((got.flatten()[index] - values).abs().max() / want[f"{name}.mean_std"][1]).item() < bound, name


def check_pyramid(model, x, want, first):
    for i, level in enumerate(model.pyramid(x), first):
        check(level, want, f"fpn{i}", 5e-5)


def check_anchors(maps, want, first):
    for i, (anchors, logits, deltas) in enumerate(zip(maps.anchors(), maps.logits, maps.deltas, strict=True), first):
        check(logits, want, f"cls{i}", 1e-4)
        check(deltas, want, f"reg{i}", 1e-4)
        rows = want[f"anchors{i}.index"].long()
        assert (anchors[rows] - want[f"anchors{i}.values"]).abs().max() < 1e-3


def check_found(found, want, prefix, pixels, score):
    assert torch.equal(found.labels.int(), want[f"{prefix}labels"])
    assert (found.boxes - want[f"{prefix}boxes"]).abs().max() < pixels
    assert (found.scores - want[f"{prefix}scores"]).abs().max() < score


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_retinanet(dense, name, size):
    model, x, valid, want = dense.run(name, "retinanet", size, 80)
    check_pyramid(model, x, want, 3)
    outputs = model(x)
    check_anchors(outputs.maps, want, 3)
    check_found(retinanet.detect(outputs, [valid])[0], want, "", 0.01, 5e-5)
    few = outputs._replace(config=dataclasses.replace(outputs.config, nms_candidates=20))
    check_found(retinanet.detect(few, [valid])[0], want, "few.", 0.01, 5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_mask_rcnn(dense, name, size):
    model, x, valid, want = dense.run(name, "mask_rcnn", size, 80)
    check_pyramid(model, x, want, 2)
    outputs = model(x)
    check_anchors(outputs.maps, want, 2)
    proposals = propose(outputs.maps, outputs.config.rpn, [valid])[0]
    assert (proposals.boxes[:50] - want["proposals"]).abs().max() < 0.005
    assert (proposals.scores[:50] - want["proposal_scores"]).abs().max() < 5e-6
    first = proposals.boxes[:50]
    assert torch.equal(levels_for(first, 4).int(), want["box_levels"])
    features = outputs.pool([first], 7)
    check(features, want, "box_features", 1e-3)
    classes, deltas = outputs.roi_heads.box(features)
    check(classes, want, "box_cls", 1e-3)
    check(deltas, want, "box_reg", 1e-3)
    found = mask_rcnn.detect(outputs, [valid])[0]
    check_found(found, want, "", 0.01, 2e-4)
    assert torch.equal(levels_for(found.boxes, 4).int(), want["mask_levels"])
    features = outputs.pool([found.boxes], 14)
    check(features, want, "mask_features", 3e-3)
    check(outputs.roi_heads.mask(features, found.labels), want, "mask_logits", 3e-3)
    assert found.masks is not None
    area = paste_masks(found.masks, found.boxes, valid).sum((1, 2))
    assert ((area - want["mask_area"]).abs() <= want["mask_near"] + 1).all()
    for window, pixels, probabilities in zip(
        paste_windows(found.masks, found.boxes, valid), want["mask_pixels"].long(), want["mask_probs"], strict=True
    ):
        whole = torch.zeros(valid)
        h, w = window.probabilities.shape
        whole[window.top : window.top + h, window.left : window.left + w] = window.probabilities
        assert (whole[pixels[:, 0], pixels[:, 1]] - probabilities).abs().max() < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_semantic_fpn(dense, name, size):
    model, x, valid, want = dense.run(name, "semantic_fpn", size, 150)
    check_pyramid(model, x, want, 2)
    outputs = model(x)
    check(outputs.logits, want, "logits4", 1e-4)
    check(semantic_fpn.logits_at_input_size(outputs, [valid])[0], want, "logits", 1e-4)
    labels = semantic_fpn.label_maps(outputs, [valid])[0]
    assert labels.shape == valid
    assert torch.equal(labels.flatten()[want["argmax.index"].long()].int(), want["argmax.values"].int())


def test_anchors(ops):
    sizes = retinanet.RetinaNetConfig().anchor_sizes
    for got, want in zip(sizes, ops["anchors/retinanet"], strict=True):
        torch.testing.assert_close(cell_anchors(got, (0.5, 1.0, 2.0)), want, rtol=0, atol=1e-3)
    for stride, want in zip((4, 8, 16, 32, 64), ops["anchors/rpn"], strict=True):
        torch.testing.assert_close(cell_anchors([8 * stride], (0.5, 1.0, 2.0)), want, rtol=0, atol=1e-3)


def test_decoding_and_its_limits(ops):
    boxes = ops["decode/boxes"]
    torch.testing.assert_close(decode(boxes, ops["decode/deltas"], (240, 320)), ops["decode/out"], rtol=0, atol=1e-3)
    got = decode(boxes, ops["decode/rcnn_deltas"], (240, 320), ROI_DEVIATIONS)
    torch.testing.assert_close(got, ops["decode/rcnn_out"], rtol=0, atol=1e-3)


def test_regions_of_all_levels(ops, dense):
    levels = [torch.from_numpy(dense.deterministic.normal(7100 + i, (1, 4, 480 >> i + 2, 640 >> i + 2))).float() for i in range(4)]
    rois = ops["roi_align/rois"]
    assert torch.equal(levels_for(rois, 4).int(), ops["roi_align/levels"])
    for side in (7, 14):
        got = pool_regions(levels, (4, 8, 16, 32), rois, torch.zeros(len(rois)), side)
        torch.testing.assert_close(got, ops[f"roi_align/out{side}"], rtol=1e-5, atol=1e-5)


def test_an_overlap_of_exactly_the_threshold_stays(ops):
    assert torch.equal(batched_nms(ops["nms/boxes"], ops["nms/scores"], ops["nms/labels"], 0.5).int(), ops["nms/keep"])


def test_pasting(ops, dense):
    logits = torch.from_numpy(2 * dense.deterministic.normal(7200, (6, 28, 28))).float()
    assert torch.equal(paste_masks(logits.sigmoid(), ops["paste/boxes"], (48, 64)), ops["paste/masks"])
