"""One contract for Semantic FPN, RetinaNet and Mask R-CNN on any backbone and at any size."""

import dataclasses

import pytest
import torch

from pyramidvit import UserError, create_model, list_models
from pyramidvit.models import BACKBONES, mask_rcnn, retinanet, semantic_fpn
from pyramidvit.models.mvit import VARIANTS, MViT
from pyramidvit.models.pvt import PVT, PVTConfig
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.models.rpn import RPNConfig
from pyramidvit.types import BoxTarget, MaskTarget

WIDTHS, ONES, TWOS = (8, 16, 24, 32), (1, 1, 1, 1), (2, 2, 2, 2)
TINY = {
    "pvt": lambda **settings: PVT(PVTConfig(widths=WIDTHS, depths=ONES, heads=ONES, expansions=TWOS), **settings),
    "pvt_v2": lambda **settings: PVTv2(PVTv2Config(widths=WIDTHS, depths=ONES, heads=ONES, expansions=TWOS), **settings),
    "mvitv2": lambda **settings: MViT(dataclasses.replace(VARIANTS["mvitv2_tiny"], depths=(1, 1, 1, 1), width=16), **settings),
}
SEGMENT = semantic_fpn.SemanticFPNConfig(width=16, channels=16)
DETECT = retinanet.RetinaNetConfig(width=16, depth=1)
INSTANCES = mask_rcnn.MaskRCNNConfig(
    width=16, box_hidden=16, mask_depth=1, samples=32, rpn=RPNConfig(candidates=50, training_candidates=50, proposals=50)
)
K = 3


@pytest.fixture(params=TINY)
def backbone(request):
    torch.manual_seed(0)
    return TINY[request.param]


def build(kind, backbone=TINY["pvt_v2"]):
    torch.manual_seed(0)
    if kind == "semantic_fpn":
        return semantic_fpn.SemanticFPN(backbone(drop_path_rate=0.0), K, SEGMENT)
    if kind == "retinanet":
        return retinanet.RetinaNet(backbone(out_indices=(1, 2, 3), drop_path_rate=0.0), K, DETECT)
    return mask_rcnn.MaskRCNN(backbone(drop_path_rate=0.0), K, INSTANCES)


MODULES = {"retinanet": retinanet, "mask_rcnn": mask_rcnn, "semantic_fpn": semantic_fpn}
HEADS = {"retinanet": retinanet.RetinaNet, "mask_rcnn": mask_rcnn.MaskRCNN, "semantic_fpn": semantic_fpn.SemanticFPN}
DETECTORS = ("retinanet", "mask_rcnn")


def target(*boxes, size=(97, 97), crowd=None):
    """Objects that fill their boxes, labelled 0, 1, 2, 0, …"""
    masks = torch.zeros(len(boxes), *size, dtype=torch.bool)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes, strict=True):
        mask[y0:y1, x0:x1] = True
    labels = torch.arange(len(boxes)) % K
    crowd = None if crowd is None else torch.tensor(crowd)
    return BoxTarget(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), labels, masks, crowd)


def total(terms):
    return torch.stack(list(terms.values())).sum()


def gradients(model):
    return {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("size", [(97, 97), (225, 193), (64, 160)], ids=lambda size: f"{size[0]}x{size[1]}")
@torch.inference_mode()
def test_any_size_segments_to_exactly_that_size(backbone, size):
    """PB-04: odd sizes, not square."""
    model = build("semantic_fpn", backbone).eval()
    outputs = model(torch.randn(2, 3, *size))
    valid = [size, (size[0] - 20, size[1] - 9)]
    logits, labels = semantic_fpn.logits_at_input_size(outputs, valid), semantic_fpn.label_maps(outputs, valid)
    assert [x.shape for x in logits] == [(K, *wanted) for wanted in valid]
    assert [x.shape for x in labels] == valid
    for scores, found in zip(logits, labels, strict=True):
        assert (scores.argmax(0) == found).float().mean() > 0.999
    larger = semantic_fpn.label_maps(outputs, valid, [(300, 200), (31, 17)])
    assert [x.shape for x in larger] == [(300, 200), (31, 17)]


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("size", [(97, 97), (225, 193)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_any_size_detects_and_learns(backbone, kind, size):
    """PB-04; and the same outputs in training and evaluation."""
    model, module = build(kind, backbone), MODULES[kind]
    x, valid = torch.randn(2, 3, *size), [size, (size[0] - 20, size[1] - 9)]
    outputs = model.train()(x)
    assert type(outputs) is type(model.eval()(x))
    terms = module.losses(outputs, [target((10, 12, 60, 70), size=size), target((3, 3, 40, 30), size=size)], valid)
    assert all(term.isfinite() and term >= 0 for term in terms.values())
    low = outputs._replace(config=dataclasses.replace(outputs.config, score_threshold=0.0))
    with torch.inference_mode():
        for found, (H, W) in zip(module.detect(low, valid), valid, strict=True):
            assert 0 < len(found.boxes) == len(found.scores) == len(found.labels) <= 100
            assert (found.scores.diff() <= 0).all()
            assert found.boxes.min() >= 0
            assert (found.boxes <= torch.tensor([W, H, W, H])).all()
            assert found.labels.max() < K
            assert kind == "retinanet" or found.masks.shape == (len(found.boxes), 28, 28)


@pytest.mark.parametrize("kind", MODULES)
def test_every_parameter_learns(backbone, kind):
    model, size = build(kind, backbone), (97, 65)
    targets = [target((5, 5, 60, 50), (20, 30, 44, 90), (0, 0, 30, 30), size=size)] * 2
    if kind == "semantic_fpn":
        targets = [MaskTarget(torch.randint(0, K, size)) for _ in range(2)]
    total(MODULES[kind].losses(model(torch.randn(2, 3, *size)), targets, [size] * 2)).backward()
    assert [key for key, grad in gradients(model).items() if grad is None or not grad.any()] == []


EMPTY, ALL_CROWD = target(), target((0, 0, 97, 97), crowd=[True])


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("targets", [[EMPTY, EMPTY], [ALL_CROWD, ALL_CROWD], [EMPTY, target((0, 0, 0, 0))]], ids=["empty", "crowd", "zero"])
def test_batches_without_objects_have_a_finite_loss_and_gradients_everywhere(kind, targets):
    """PB-41, PB-43: every process has a gradient for every parameter, if only of zeros."""
    model = build(kind)
    terms = MODULES[kind].losses(model(torch.randn(2, 3, 97, 97)), targets, [(97, 97)] * 2)
    total(terms).backward()
    assert all(term.isfinite() for term in terms.values())
    assert all(term == 0 for name, term in terms.items() if name in ("boxes", "rpn_boxes", "masks"))
    assert [key for key, grad in gradients(model).items() if grad is None or not grad.isfinite().all()] == []
    if targets[0] is EMPTY:
        assert terms["classes"] > 0


def test_empty_images_without_masks_beside_others():
    """An image without objects needs no masks, one with objects does."""
    model, none = build("mask_rcnn"), BoxTarget(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    outputs = model(torch.randn(2, 3, 97, 97))
    assert mask_rcnn.losses(outputs, [none, target((5, 5, 60, 60))], [(97, 97)] * 2)["masks"] > 0
    boxes_only = BoxTarget(torch.tensor([[5.0, 5, 60, 60]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="learns from masks, and 1 of 2 pictures have boxes only"):
        mask_rcnn.losses(outputs, [none, boxes_only], [(97, 97)] * 2)


@pytest.mark.parametrize("kind", MODULES)
def test_as_many_targets_as_pictures(kind):
    outputs = build(kind)(torch.randn(2, 3, 64, 64))
    with pytest.raises(ValueError, match="2 pictures need as many targets and valid sizes, got 1 and 2"):
        MODULES[kind].losses(outputs, [EMPTY], [(64, 64)] * 2)


def test_losses_are_normalised_over_the_batch():
    """The mean over pictures would weigh the two objects of one picture as much as the one of the other."""
    model = build("retinanet")
    x, size = torch.randn(2, 3, 96, 96), (96, 96)
    targets = [target((5, 5, 60, 50), (50, 60, 90, 90), size=size), target((10, 10, 40, 45), size=size)]
    together = retinanet.losses(model(x), targets, [size] * 2)["boxes"]
    single = [retinanet.losses(model(x[i : i + 1]), targets[i : i + 1], [size])["boxes"] for i in range(2)]
    outputs = model(x)
    counts = [int((found >= 0).sum()) for found in matches_of(outputs, targets, size)]
    want = sum(loss * count for loss, count in zip(single, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together, want, rtol=1e-4, atol=1e-5)


def matches_of(outputs, targets, size):
    objects = [retinanet.learnable(one, K, torch.device("cpu")) for one in targets]
    return retinanet.match_all(outputs.maps, outputs.maps.anchors(), objects, [size] * 2, (0.5, 0.4, 0))


@pytest.mark.parametrize("kind", DETECTORS)
@torch.inference_mode()
def test_padding_for_the_sake_of_others_finds_nothing(kind):
    """Cells that belong to no part of a picture are neither searched nor learned."""
    model = build(kind).eval()
    outputs, valid = model(torch.randn(1, 3, 256, 256)), [(64, 96)]
    maps = outputs.maps
    loud = [x.clone() for x in maps.logits]
    for x, stride in zip(loud, maps.strides, strict=True):
        x[:, :, -(-64 // stride) :] = x[:, :, :, -(-96 // stride) :] = 50
    noisy = outputs._replace(maps=maps._replace(logits=loud), config=dataclasses.replace(outputs.config, score_threshold=0.0))
    quiet = outputs._replace(config=noisy.config)
    for a, b in zip(MODULES[kind].detect(noisy, valid)[0][:3], MODULES[kind].detect(quiet, valid)[0][:3], strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(1)
    a = MODULES[kind].losses(noisy, [target((5, 5, 60, 60), size=(64, 96))], valid)
    torch.manual_seed(1)
    b = MODULES[kind].losses(quiet, [target((5, 5, 60, 60), size=(64, 96))], valid)
    assert a == b


def test_unlabelled_pixels_and_padding_teach_nothing():
    model = build("semantic_fpn").eval()
    outputs = model(torch.randn(1, 3, 64, 64))
    nothing = semantic_fpn.losses(outputs, [MaskTarget(torch.full((40, 50), 255))], [(40, 50)])
    assert nothing["pixels"] == 0
    labels = torch.zeros(40, 50, dtype=torch.uint8)
    inside = semantic_fpn.losses(outputs, [MaskTarget(labels)], [(40, 50)])["pixels"]
    logits = semantic_fpn.logits_at_input_size(outputs, [(40, 50)])[0]
    torch.testing.assert_close(inside, -logits.log_softmax(0)[0].mean())
    labels[3, 4:6] = 7
    with pytest.raises(ValueError, match="2 pixels have the label 7, and 3 classes have 0 to 2"):
        semantic_fpn.losses(outputs, [MaskTarget(labels)], [(40, 50)])


def test_large_label_maps_in_pieces(monkeypatch):
    """PB-103: the same labels, few rows at a time."""
    outputs = build("semantic_fpn").eval()(torch.randn(1, 3, 97, 65))
    whole = semantic_fpn.label_maps(outputs, [(97, 65)], [(300, 211)])
    monkeypatch.setattr(semantic_fpn, "SCORES_AT_ONCE", 3000)
    assert torch.equal(semantic_fpn.label_maps(outputs, [(97, 65)], [(300, 211)])[0], whole[0])


PUBLISHED = {
    "retinanet": {"pvt_tiny": 23.0, "pvt_small": 34.2, "pvt_large": 71.1, "pvt_v2_b0": 13.0, "pvt_v2_b1": 23.8, "pvt_v2_b5": 91.7},
    "mask_rcnn": {"pvt_tiny": 32.9, "pvt_medium": 63.9, "pvt_v2_b0": 23.5, "pvt_v2_b2": 45.0, "pvt_v2_b2_li": 42.2, "pvt_v2_b4": 82.2},
    "semantic_fpn": {"pvt_tiny": 17.0, "pvt_medium": 48.0, "pvt_v2_b0": 7.6, "pvt_v2_b1": 17.8, "pvt_v2_b3": 49.0},
}
"""Millions of parameters."""


@pytest.mark.parametrize(("kind", "name", "millions"), [(k, n, m) for k, row in PUBLISHED.items() for n, m in row.items()])
def test_published_parameter_counts(kind, name, millions):
    classes = 150 if kind == "semantic_fpn" else 80
    with torch.device("meta"):
        model = create_model(name, head=kind, num_classes=classes)
    assert type(model) is HEADS[kind]
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize("name", [name for name in list_models() if len(getattr(BACKBONES[name][1], "size", (0, 0))) == 2])
@pytest.mark.parametrize("kind", MODULES)
def test_every_picture_network_carries_every_head(kind, name):
    with torch.device("meta"):
        model = create_model(name, head=kind, num_classes=K, head_config=MODULES[kind].SMALL)
    assert model.config == MODULES[kind].SMALL
    assert model.stage_of("fpn.laterals.0.weight") == 4


def test_settings_and_heads_that_do_not_go_together():
    with pytest.raises(ValueError, match="name that head"):
        create_model("pvt_v2_b0", head_config=SEGMENT)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UserError, match="did you mean retinanet"):
        create_model("pvt_v2_b0", head="retinenet", num_classes=3)  # pyright: ignore[reportCallIssue, reportArgumentType]


class Tensors(torch.nn.Module):
    """What a graph can return of a model's outputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        outputs = self.model(x)
        if not hasattr(outputs, "maps"):
            return [outputs.logits]
        return [*outputs.maps.logits, *outputs.maps.deltas, *getattr(outputs, "levels", [])]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
@torch.no_grad()
def test_one_graph_for_any_size(kind):
    """PB-95: traced at one size, equal at others; a side needs more than one cell on the coarsest level."""
    model = Tensors(build(kind).eval())
    batch, height, width = torch.export.Dim("B", min=1, max=64), *(torch.export.Dim(name, min=129, max=4096) for name in "HW")
    graph = torch.export.export(model, (torch.randn(2, 3, 160, 224),), dynamic_shapes=({0: batch, 2: height, 3: width},)).module()
    x = torch.randn(3, 3, 193, 257)
    for got, want in zip(graph(x), model(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
