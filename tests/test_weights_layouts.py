"""Every published layout, both ways: names and shapes made from ours are recognised and load bit for bit, and go back bit for bit."""

from dataclasses import replace

import pytest
import torch

from pyramidvit.models import Classifier
from pyramidvit.models.mvit import CLIPS, CLIPS_V2, PICTURES, PICTURES_V2, MViT
from pyramidvit.models.pvt import PVT, PVTConfig
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.weights import load
from pyramidvit.weights.layouts import LAYOUTS, OWN, find, to_library

DEPTHS = (2, 1, 2, 1)
SMALL = {"depths": DEPTHS, "widths": (16, 32, 48, 64), "heads": (1, 2, 3, 4)}


def pvt(eps=1e-5):
    return PVT(PVTConfig(**SMALL, patch_eps=eps), classify=True)


def pvt_v2(eps=1e-5, linear=False):
    return PVTv2(PVTv2Config(**SMALL, patch_eps=eps, linear=linear), classify=True)


def mvit(config, **changes):
    return MViT(replace(config, depths=DEPTHS, width=16, size=(*config.size[:-2], 64, 96), **changes), classify=True)


CASES = {
    "official PVT": ("official", lambda: pvt()),
    "Transformers PVT": ("transformers", lambda: pvt(1e-6)),
    "MMDetection PVT": ("mmdet", lambda: pvt(1e-6)),
    "official PVT v2": ("official", lambda: pvt_v2()),
    "official PVT v2, linear": ("official", lambda: pvt_v2(linear=True)),
    "timm PVT v2": ("timm", lambda: pvt_v2()),
    "timm PVT v2, linear": ("timm", lambda: pvt_v2(linear=True)),
    "Transformers PVT v2": ("transformers", lambda: pvt_v2(1e-6)),
    "Transformers PVT v2, linear": ("transformers", lambda: pvt_v2(1e-6, linear=True)),
    "MMDetection PVT v2": ("mmdet", lambda: pvt_v2(1e-6)),
    "SlowFast MViT": ("slowfast", lambda: mvit(CLIPS)),
    "SlowFast MViT, v2": ("slowfast", lambda: mvit(CLIPS_V2)),
    "SlowFast MViT for pictures": ("slowfast", lambda: mvit(PICTURES)),
    "SlowFast MViT for pictures, v2": ("slowfast", lambda: mvit(PICTURES_V2)),
    "facebookresearch/mvit": ("mvit", lambda: mvit(PICTURES_V2)),
    "facebookresearch/mvit, large": ("mvit", lambda: mvit(PICTURES_V2, widen_in_attention=False)),
    "PyTorchVideo MViT": ("pytorchvideo", lambda: mvit(CLIPS)),
    "PyTorchVideo MViT, queries, keys and values in one": ("pytorchvideo-fused", lambda: mvit(CLIPS)),
    "torchvision MViT": ("torchvision", lambda: mvit(CLIPS)),
    "torchvision MViT, v2": ("torchvision", lambda: mvit(CLIPS_V2)),
    "timm MViT v2": ("timm", lambda: mvit(PICTURES_V2)),
    "timm MViT v2 large": ("timm", lambda: mvit(PICTURES_V2, widen_in_attention=False)),
    "MMAction2 MViT v2": ("mmaction2", lambda: mvit(CLIPS_V2)),
    "MMPretrain MViT v2": ("mmpretrain", lambda: mvit(PICTURES_V2)),
    "own": ("own", lambda: pvt_v2(1e-6)),
    "own, MViT": ("own", lambda: mvit(CLIPS)),
}
HEADLESS = {"MMDetection PVT", "MMDetection PVT v2"}
READ_ONLY = {"Detectron2 MViT v2"}


def made(case):
    """A network without a value that could be taken for another, and how to build the same anew."""
    library, build = CASES[case]
    torch.manual_seed(0)
    whole = Classifier(build(), 5)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter)
    return library, whole, lambda: Classifier(build(), 5)


@pytest.mark.parametrize("case", CASES)
def test_a_layout_goes_both_ways_bit_for_bit(case):
    """PB-17, PB-22."""
    library, ours, build = made(case)
    written = to_library(ours.state_dict(), library)
    anew = build()
    report = load(anew, written.tensors, new_classes=case in HEADLESS)
    assert report.layout == case.removesuffix(", linear").removesuffix(", v2").removesuffix(", large").removesuffix(", MViT")
    assert all(key.startswith(("head.", "backbone.norm.", "backbone.stages.3.class_")) for key in (*report.reset, *written.dropped))
    assert bool(report.reset) == (case in HEADLESS)
    assert (report.adapted, report.resized, report.inflated, report.dropped) == ((), (), (), {})
    mine, theirs = ours.state_dict(), anew.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine if key not in report.reset)
    again = to_library(theirs, library).tensors
    assert list(again) == list(written.tensors)
    for key, tensor in written.tensors.items():
        assert again[key].shape == tensor.shape
        assert torch.equal(again[key], tensor)


@pytest.mark.slow
def test_every_layout_has_a_case():
    assert {layout.name for layout in LAYOUTS} == {
        find(to_library(made(c)[1].state_dict(), CASES[c][0]).tensors).layout.name for c in CASES
    } | (READ_ONLY)


@pytest.mark.parametrize("case", [case for case in CASES if "own" not in case])
@pytest.mark.parametrize("wrapping", ["module.", "model.", "module.model.", "backbone.", "encoder.", "student.encoder."])
def test_wrapped_names_are_unwrapped(case, wrapping):
    library, ours, build = made(case)
    tensors = to_library(ours.state_dict(), library).tensors
    report = load(build(), {wrapping + key: tensor for key, tensor in tensors.items()}, new_classes=case in HEADLESS)
    assert bool(report.reset) == (case in HEADLESS)


@pytest.mark.parametrize("case", CASES)
def test_a_bare_backbone_loads_from_every_layout(case):
    """PB-16: whole files and backbones alone; what is left is named with the reason."""
    library, ours, _ = made(case)
    build = CASES[case][1]
    bare = type(build())(build().config)
    report = load(bare, to_library(ours.state_dict(), library).tensors)
    assert report.loaded == len(list(bare.parameters()))
    assert all(torch.equal(value, ours.get_parameter(f"backbone.{key}")) for key, value in bare.named_parameters())
    alone = to_library(bare.state_dict(), library).tensors
    report = load(type(bare)(bare.config), alone)
    assert all(key.startswith("stages.3.class_position") for key in report.dropped)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("library", "eps"), [("official", 1e-5), ("timm", 1e-5), ("transformers", 1e-6), ("mmdet", 1e-6)])
def test_the_epsilon_belongs_to_the_weights(library, eps, linear):
    """From the layout into the network and its configuration, and from there wherever the state dict goes."""
    source = Classifier(pvt_v2(eps, linear), 5)
    model = Classifier(pvt_v2(1e-3, linear), 5)
    report = load(model, to_library(source.state_dict(), library).tensors, new_classes=True)
    assert report.patch_eps == model.backbone.get_extra_state().item() == eps
    norms = {name: module.eps for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert {eps for name, eps in norms.items() if not name.endswith(("patch_norm", "attn.norm"))} == {1e-6}
    assert {eps for name, eps in norms.items() if name.endswith(("patch_norm", "attn.norm"))} == {eps}
    copy = Classifier(pvt_v2(1e-3, linear), 5)
    copy.load_state_dict(model.state_dict())
    assert copy.backbone.get_extra_state().item() == eps


def test_a_table_without_the_class_tokens_row_and_one_with_it():
    """49 and 50 entries: detectors drop the row of the class token, or keep one that they never read."""
    source = pvt()
    official = to_library(source.state_dict(), "official").tensors
    rows = source.get_parameter("stages.3.positions").flatten(0, 1)
    assert official["pos_embed4"].shape == (1, 50, 64)
    without = {key: tensor[:, 1:] if key == "pos_embed4" else tensor for key, tensor in official.items() if key != "cls_token"}
    for tensors in (official, without):
        bare = PVT(PVTConfig(**SMALL))
        load(bare, tensors)
        assert torch.equal(bare.get_parameter("stages.3.positions").flatten(0, 1), rows)
    alone = to_library(bare.state_dict(), "official").tensors["pos_embed4"]
    assert alone.shape == (1, 50, 64)
    assert torch.equal(alone[0, 1:], rows)
    assert not alone[0, 0].any()


def test_detectron2_backbones_start_a_training():
    """Their maps have norms and their blocks windows, which the report says."""
    ours = mvit(PICTURES_V2)
    named = to_library(ours.state_dict(), "mvit").tensors
    theirs = {f"backbone.bottom_up.{key}": tensor for key, tensor in named.items() if not key.startswith(("norm.", "head."))}
    theirs |= {f"backbone.bottom_up.scale{n}_norm.weight": torch.ones(16) for n in (2, 3, 4, 5)}
    theirs |= {"backbone.fpn_lateral2.weight": torch.ones(1), "proposal_generator.rpn_head.conv.weight": torch.ones(1)}
    bare = MViT(ours.config)
    report = load(bare, theirs)
    assert report.layout == "Detectron2 MViT v2"
    assert len(report.dropped) == 6
    assert "attend in windows" in str(report)
    assert all(torch.equal(value, ours.get_parameter(key)) for key, value in bare.named_parameters())


def test_own_layouts_come_first():
    assert LAYOUTS[: len(OWN)] == OWN
