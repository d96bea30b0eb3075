"""PVT v2 against numbers: published sizes, the official outputs, and timm's implementation."""

import pytest
import torch

from pyramidvit import create_model
from pyramidvit.models.layers import BlockConv
from pyramidvit.models.pvt_v2 import VARIANTS, PVTv2Config
from pyramidvit.weights import load

PARAMETERS = {
    "pvt_v2_b0": 3_666_760,
    "pvt_v2_b1": 14_009_000,
    "pvt_v2_b2": 25_362_856,
    "pvt_v2_b2_li": 22_553_512,
    "pvt_v2_b3": 45_238_696,
    "pvt_v2_b4": 62_556_072,
    "pvt_v2_b5": 81_956_008,
}


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


@pytest.mark.slow
@pytest.mark.parametrize("case", golden_cases())
def test_equals_the_official_code(golden, case):
    golden.check(case, "official PVT v2")


@pytest.mark.parametrize("name", ["pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b2_li", pytest.param("pvt_v2_b5", marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [(224, 224), (225, 193)], ids=["224", "225x193"])
def test_equals_timm_with_copied_weights(name, size, relative, randomise):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs, ours = timm.create_model(name, num_classes=10).eval(), create_model(name, num_classes=10).eval()
    randomise(theirs)
    load(ours, theirs.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert relative(ours(x), theirs(x)) < 1e-5


def test_block_convolution_is_the_convolution():
    """The matrix product over r × r blocks equals the strided convolution, with rows and columns that fill no block left out."""
    torch.manual_seed(0)
    conv = BlockConv(6, 4)
    x = torch.randn(2, 11, 9, 6)
    want = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), conv.weight, conv.bias, 4).permute(0, 2, 3, 1)
    torch.testing.assert_close(conv(x), want, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(conv(x), want, rtol=1e-5, atol=1e-6)
