"""Weights of other libraries give their outputs here. PVT v2 and MViT v2 of timm, MViT of torchvision and PVT of Transformers are
compared in tests/models; the official code by its stored outputs."""

import importlib
import json
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from pyramidvit import create_model
from pyramidvit.models import Classifier
from pyramidvit.models.pvt import PVT, PVTConfig
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.weights import load
from pyramidvit.weights.layouts import to_library

DEPTHS = (2, 1, 1, 2)


def relative(got, want):
    return ((got - want).abs().max() / want.std(correction=0)).item()


def disturbed(model):
    """Norms and biases away from 1 and 0; streams small, so that a wrong epsilon shows."""
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key and key.endswith("weight") else 0.0, 0.1)
        elif key.endswith(("proj.weight", "projection.weight", "reduction.weight", "dense2.weight")):
            parameter.data /= 8
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("linear", [False, True])
def test_pvt_v2_of_transformers(linear):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.PvtV2Config(depths=list(DEPTHS), hidden_sizes=[64, 128, 320, 512], linear_attention=linear, num_labels=10)
    theirs = disturbed(transformers.PvtV2ForImageClassification(config))
    ours = Classifier(PVTv2(PVTv2Config(depths=DEPTHS, linear=linear), classify=True), 10).eval()
    report = load(ours, theirs.state_dict())
    assert (report.layout, report.patch_eps, report.loaded) == ("Transformers PVT v2", 1e-6, len(list(ours.parameters())))
    x = torch.randn(2, 3, 96, 64)
    with torch.inference_mode():
        assert relative(ours(x), theirs(x).logits) < 1e-5
        ours.backbone.set_extra_state(torch.tensor(1e-5, dtype=torch.float64))
        assert relative(ours(x), theirs(x).logits) > 1e-5, "the epsilon makes no difference in this test"
    back = to_library(ours.state_dict(), "transformers", other_eps=True).tensors
    assert {key: tensor.shape for key, tensor in back.items()} == {key: tensor.shape for key, tensor in theirs.state_dict().items()}
    assert all(torch.equal(back[key], tensor) for key, tensor in theirs.state_dict().items())


@pytest.mark.parametrize("kind", ["Pvt", "PvtV2"])
def test_bare_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(depths=[1, 1, 1, 1], hidden_sizes=[64, 128, 320, 512])
    theirs = getattr(transformers, f"{kind}Model")(config)
    ours = PVT(PVTConfig(depths=(1, 1, 1, 1))) if kind == "Pvt" else PVTv2(PVTv2Config(depths=(1, 1, 1, 1)))
    report = load(ours, theirs.state_dict())
    assert report.loaded == len(list(ours.parameters()))
    assert ours.config.patch_eps == 1e-6


class DenseGolden:
    """Weights and outputs of MMDetection and MMSegmentation."""

    def __init__(self, folder):
        sys.path.insert(0, str(folder))
        self.tensor = importlib.import_module("dense_deterministic").tensor
        self.image = importlib.import_module("deterministic").image
        sys.path.remove(str(folder))
        stored = json.loads((folder / "dense_cases.json").read_text())
        self.adjust = stored["adjust"]
        self.cases = {case["name"]: case for case in stored["cases"]}
        self.keys = json.loads((folder / "dense_keys.json").read_text())
        self.outputs = load_file(folder / "dense.safetensors")

    def weights(self, keys):
        kind = keys.split("/")[1]
        return {key: self.tensor(key, shape, self.adjust[kind]) for key, shape in self.keys[keys].items()}


@pytest.fixture(scope="module")
def dense(shared):
    return DenseGolden(shared / "golden")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["256x320", "200x333"])
@pytest.mark.parametrize("keys", ["pvt_tiny/retinanet", "pvt_v2_b0/retinanet", "pvt_tiny/semantic_fpn", "pvt_v2_b0/mask_rcnn"])
def test_backbones_out_of_mmdetection_and_mmsegmentation_files(dense, keys, size):
    """Names, values and maps of a whole detector or segmentor; its head is named in the report."""
    case = dense.cases[f"{keys}/{size}"]
    net = create_model(case["model"], features_only=True).eval()
    report = load(net, dense.weights(keys))
    assert report.layout == f"MMDetection PVT{' v2' * ('v2' in keys)}"
    assert report.loaded == len(list(net.parameters()))
    assert report.patch_eps == 1e-6
    assert report.dropped
    assert "the head of another task" in str(report)
    shape, (H, W) = case["input"]["shape"], case["input"]["padded"]
    x = F.pad(dense.image(tuple(shape), case["input"]["seed"]), (0, W - shape[3], 0, H - shape[2]))
    with torch.inference_mode():
        for i, got in enumerate(net(x), 1):
            place = f"{case['name']}/map{i}"
            want, index = dense.outputs[f"{place}.values"], dense.outputs[f"{place}.index"].long()
            assert ((got.flatten()[index] - want).abs().max() / dense.outputs[f"{place}.mean_std"][1]).item() < 5e-5


@pytest.mark.slow
def test_backbones_of_mmdetection_go_back_as_they_came(dense):
    for keys in ("pvt_tiny/retinanet", "pvt_v2_b0/retinanet"):
        theirs = {key: tensor for key, tensor in dense.weights(keys).items() if key.startswith("backbone.")}
        net = create_model(keys.split("/")[0], features_only=True)
        load(net, theirs)
        back = to_library(net.state_dict(), "mmdet").tensors
        assert back.keys() == theirs.keys()
        assert all(torch.equal(back[key], theirs[key]) for key in theirs)


def test_a_detectors_file_starts_a_classifier_whose_head_is_new(dense):
    model = create_model("pvt_v2_b0", num_classes=3)
    report = load(model, dense.weights("pvt_v2_b0/retinanet"), new_classes=True)
    assert set(report.reset) == {"head.weight", "head.bias"}
    assert model.backbone.get_extra_state().item() == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("head", ["retinanet", "mask_rcnn", "semantic_fpn"])
@pytest.mark.parametrize("name", ["pvt_tiny", "pvt_v2_b0"])
def test_whole_detectors_and_segmentors_go_both_ways(dense, name, head):
    """Every tensor of the backbone, the pyramid and the heads; other classes leave only the last layers at random."""
    theirs = dense.weights(f"{name}/{head}")
    classes = 150 if head == "semantic_fpn" else 80
    model = create_model(name, head=head, num_classes=classes)
    report = load(model, theirs)
    assert (report.dropped, report.reset, report.patch_eps) == ({}, (), 1e-6)
    back = to_library(model.state_dict(), "mmdet").tensors
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[key], theirs[key]) for key in theirs)
    official = to_library(model.state_dict(), "official", other_eps=True).tensors
    again = create_model(name, head=head, num_classes=classes)
    assert load(again, official).layout == f"official PVT{' v2' * ('v2' in name)}"
    assert all(torch.equal(value, again.get_parameter(key)) for key, value in model.named_parameters())


@pytest.mark.slow
def test_a_detector_for_other_classes_resets_its_last_layers_only(dense):
    """PB-25."""
    model = create_model("pvt_v2_b0", head="retinanet", num_classes=3)
    assert set(load(model, dense.weights("pvt_v2_b0/retinanet"), new_classes=True).reset) == {"classes.weight", "classes.bias"}
    model = create_model("pvt_v2_b0", head="mask_rcnn", num_classes=3)
    last = {f"roi_heads.{part}.{kind}" for part in ("box.classes", "box.boxes", "mask.masks") for kind in ("weight", "bias")}
    assert set(load(model, dense.weights("pvt_v2_b0/mask_rcnn"), new_classes=True).reset) == last


def test_a_classifiers_file_starts_a_detector():
    source = create_model("pvt_v2_b0", num_classes=7)
    model = create_model("pvt_v2_b0", head="retinanet", num_classes=3)
    report = load(model, source.state_dict(), new_classes=True)
    assert set(report.dropped) == {"head.weight", "head.bias"}
    assert all(not key.startswith("backbone.") for key in report.reset)
