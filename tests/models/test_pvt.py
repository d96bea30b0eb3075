"""PVT against numbers: published sizes, the official outputs, and Transformers' implementation."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pyramidvit import UserError, create_model
from pyramidvit.models import Classifier
from pyramidvit.models.cost import measure_cost
from pyramidvit.models.layers import FeedForward
from pyramidvit.models.pvt import PVT, VARIANTS, PVTConfig
from pyramidvit.weights import load
from pyramidvit.weights.layouts import to_library

PARAMETERS = {"pvt_tiny": 13_229_288, "pvt_small": 24_485_864, "pvt_medium": 44_208_104, "pvt_large": 61_369_320}
SHALLOW = PVTConfig(depths=(1, 1, 1, 1))


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_counts_to_the_last_digit(name):
    with torch.device("meta"):
        assert sum(p.numel() for p in create_model(name).parameters()) == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "giga"), [("pvt_tiny", 1.933), ("pvt_small", 3.816), ("pvt_medium", 6.659), ("pvt_large", 9.814)])
def test_multiply_adds_at_the_published_size(name, giga):
    assert measure_cost(name, lambda: create_model(name)).macs / 1e9 == pytest.approx(giga, rel=1e-3)


def test_widths_that_heads_do_not_divide():
    with pytest.raises(ValueError, match="next multiple is 66"):
        PVTConfig(heads=(3, 2, 5, 8))


def golden_cases():
    dense = [f"{name}/dense/{size}" for name in ("pvt_tiny", "pvt_small") for size in ("224x224", "256x320", "192x448")]
    return [f"{name}/classify/224x224" for name in ("pvt_tiny", "pvt_small", "pvt_large")] + dense


@pytest.mark.slow
@pytest.mark.parametrize("case", golden_cases())
def test_equals_the_official_code(golden, case):
    golden.check(case, "official PVT")


@pytest.mark.slow
def test_equals_transformers_with_copied_weights(relative, randomise):
    """Transformers has one epsilon for all norms, which comes with its weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.PvtForImageClassification(transformers.PvtConfig(depths=[2, 1, 1, 2], num_labels=10)).eval()
    randomise(theirs)
    ours = Classifier(PVT(PVTConfig(depths=(2, 1, 1, 2)), classify=True), 10).eval()
    report = load(ours, theirs.state_dict())
    assert (report.layout, report.loaded, report.patch_eps) == ("Transformers PVT", len(list(ours.parameters())), 1e-6)
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        assert relative(ours(x), theirs(x).logits) < 1e-5


def test_names_and_shapes_are_the_official_ones(golden):
    model = create_model("pvt_tiny")
    published = to_library(model.state_dict(), "official").tensors
    assert {key: list(tensor.shape) for key, tensor in published.items()} == golden.keys["pvt_tiny"]


def test_a_bare_backbone_reports_what_it_leaves_in_a_classification_file(quick):
    whole = quick(lambda: Classifier(PVT(SHALLOW, classify=True), 5)).state_dict()
    bare, finest = PVT(SHALLOW), PVT(SHALLOW, out_indices=(0,))
    report = load(bare, whole)
    assert set(report.dropped) == {
        "head.weight", "head.bias", "norm.weight", "norm.bias", "stages.3.class_token", "stages.3.class_position"
    }  # fmt: skip
    assert "in the file but not needed here, the head of another task: head.bias" in str(report)
    assert all(torch.equal(tensor, whole["backbone." + key]) for key, tensor in bare.state_dict().items())
    assert all(key.startswith(("stages.1.", "stages.2.", "stages.3.", "norm.", "head.")) for key in load(finest, whole).dropped)
    with pytest.raises(UserError, match=r"backbone\.norm\.bias, backbone\.norm\.weight, backbone\.stages\.3\.class_position"):
        load(Classifier(PVT(SHALLOW, classify=True), 5), {"backbone." + key: tensor for key, tensor in bare.state_dict().items()})


@pytest.mark.parametrize("size", [(256, 832), (448, 448), (196, 256)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_positions_follow_the_grid(quick, size):
    """PB-01: the same as a network made for that size, its tables resized on loading. 448x448 gives stage 2 a grid of 56x56 and 196x256
    gives stage 1 one of 49x64: as many cells as the first table, which the official code then takes unresized."""
    trained = quick(lambda: PVT(SHALLOW)).eval()
    made_for_it = PVT(dataclasses.replace(SHALLOW, size=size)).eval()
    report = load(made_for_it, trained.state_dict())
    assert set(report.resized) == {f"stages.{i}.positions" for i in range(4)}
    assert "position tables resized" in str(report)
    x = torch.randn(1, 3, *size)
    with torch.inference_mode():
        for ours, want in zip(trained(x), made_for_it(x), strict=True):
            assert torch.equal(ours, want)
    table = trained.get_parameter("stages.1.positions").detach()
    want = F.interpolate(table.permute(2, 0, 1)[None], (size[0] // 8, size[1] // 8), mode="bilinear")[0].permute(1, 2, 0)
    assert torch.equal(made_for_it.get_parameter("stages.1.positions"), want)


def test_official_tables_of_another_size_are_resized_on_loading(quick):
    """A file trained at 384x384 fits a network made for 224x224, and the report says so."""
    large = dataclasses.replace(SHALLOW, size=(384, 384))
    theirs = to_library(quick(lambda: Classifier(PVT(large, classify=True), 5)).state_dict(), "official").tensors
    assert theirs["pos_embed4"].shape == (1, 145, 512)
    ours = PVT(SHALLOW, classify=True)
    assert len(load(ours, theirs).resized) == 4
    assert torch.equal(ours.get_parameter("stages.3.class_position")[None], theirs["pos_embed4"][:, :1])


def test_the_class_token_has_no_weight_decay_and_positions_have():
    """As published: parameters with one axis are left out of weight decay."""
    net = PVT(SHALLOW, classify=True)
    assert [net.get_parameter(f"stages.3.{name}").ndim for name in ("class_token", "class_position", "positions")] == [1, 2, 3]


def test_feed_forward_is_the_same_with_and_without_gradients():
    """Inference computes the GELU along with the layer before it."""
    torch.manual_seed(0)
    mlp = FeedForward(16, 64, 24)
    x = 3 * torch.randn(2, 5, 7, 16)
    want = F.linear(F.gelu(F.linear(x, mlp.fc1.weight, mlp.fc1.bias)), mlp.fc2.weight, mlp.fc2.bias)
    torch.testing.assert_close(mlp(x), want)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), want)
