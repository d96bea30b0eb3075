"""PVT v2 against numbers: published sizes, the official outputs, and timm's implementation."""

import importlib
import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from pyramidvit import create_model
from pyramidvit.models import Classifier
from pyramidvit.models.layers import BlockConv
from pyramidvit.models.pvt_v2 import VARIANTS, PVTv2Config
from pyramidvit.weights import load
from pyramidvit.weights.layouts import OFFICIAL_PVT_V2, TIMM_PVT_V2

PARAMETERS = {
    "pvt_v2_b0": 3_666_760,
    "pvt_v2_b1": 14_009_000,
    "pvt_v2_b2": 25_362_856,
    "pvt_v2_b2_li": 22_553_512,
    "pvt_v2_b3": 45_238_696,
    "pvt_v2_b4": 62_556_072,
    "pvt_v2_b5": 81_956_008,
}


def relative(got, want):
    """Largest difference, in standard deviations of what is wanted."""
    return ((got - want).abs().max() / want.std(correction=0)).item()


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_counts_to_the_last_digit(name):
    with torch.device("meta"):
        assert sum(p.numel() for p in create_model(name).parameters()) == PARAMETERS[name]


def test_widths_that_heads_do_not_divide():
    with pytest.raises(ValueError, match="next multiple is 66"):
        PVTv2Config(widths=(64, 128, 320, 512), heads=(3, 2, 5, 8))


def golden_cases():
    names = ["pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b2_li", "pvt_v2_b5"]
    dense = ["pvt_v2_b0", "pvt_v2_b2_li"]
    return [f"{n}/classify/224x224" for n in names] + [f"{n}/dense/{size}" for n in dense for size in ("256x320", "225x193")]


@pytest.fixture(scope="session")
def golden(shared):
    """Cases, keys and the weight generator of the official outputs."""
    folder = shared / "golden"
    sys.path.insert(0, str(folder))
    deterministic = importlib.import_module("deterministic")
    sys.path.remove(str(folder))
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text())["cases"]}
    return folder, cases, json.loads((folder / "keys.json").read_text()), deterministic


@pytest.mark.parametrize("case_name", golden_cases())
def test_equals_the_official_code(golden, case_name):
    folder, cases, keys, deterministic = golden
    case = cases[case_name]
    official = {key: deterministic.tensor(key, tuple(shape)) for key, shape in keys[case["keys"]].items()}
    classify = case["kind"] == "classify"
    net = (create_model(case["model"]) if classify else create_model(case["model"], features_only=True)).eval()
    assert load(net, official).layout == "official PVT v2"
    prefix = case_name + "/"
    want = {key.removeprefix(prefix): value for key, value in load_file(folder / case["file"]).items() if key.startswith(prefix)}
    x = deterministic.image(tuple(case["input"]["shape"]), case["input"]["seed"])
    with torch.inference_mode():
        if isinstance(net, Classifier):
            assert relative(net(x), want["logits"]) < 2e-5
            assert relative(net.backbone.embed(x), want["features"]) < 2e-5
        else:
            for i, got in enumerate(net(x), 1):
                assert list(got.shape) == case["outputs"][f"map{i}"]
                assert relative(got.flatten()[want[f"map{i}.index"].long()], want[f"map{i}.values"]) < 2e-5


@pytest.mark.parametrize("name", ["pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b2_li", "pvt_v2_b5"])
@pytest.mark.parametrize("size", [(224, 224), (225, 193)], ids=["224", "225x193"])
def test_equals_timm_with_copied_weights(name, size):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs, ours = timm.create_model(name, num_classes=10).eval(), create_model(name, num_classes=10).eval()
    randomise(theirs)
    load(ours, theirs.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert relative(ours(x), theirs(x)) < 1e-5


def randomise(model):
    """Biases and norms away from 0 and 1, so that none can be forgotten unseen."""
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key and key.endswith("weight") else 0.0, 0.1)


@pytest.mark.parametrize("layout", [OFFICIAL_PVT_V2, TIMM_PVT_V2], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", ["pvt_v2_b0", "pvt_v2_b2_li"])
def test_key_maps_go_both_ways(layout, name):
    ours = create_model(name, num_classes=5).state_dict()
    published, unknown = layout.from_ours({key.removeprefix("backbone."): tensor for key, tensor in ours.items()})
    assert unknown == []
    assert len(published) == len(ours)
    model = create_model(name, num_classes=5)
    load(model, published)
    assert all(torch.equal(tensor, ours[key]) for key, tensor in model.state_dict().items())


def test_block_convolution_is_the_convolution():
    """The matrix product over r × r blocks equals the strided convolution, with rows and columns that fill no block left out."""
    torch.manual_seed(0)
    conv = BlockConv(6, 4)
    x = torch.randn(2, 11, 9, 6)
    want = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), conv.weight, conv.bias, 4).permute(0, 2, 3, 1)
    torch.testing.assert_close(conv(x), want, rtol=1e-5, atol=1e-6)
