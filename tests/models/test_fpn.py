"""Feature pyramids at any size, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F

from pyramidvit.models.fpn import FPN, ConvReLU, PyramidModel
from pyramidvit.models.mvit import MViT
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config

TINY = PVTv2Config(widths=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 1, 1, 1), expansions=(2, 2, 2, 2))


def maps(*sides, channels=(8, 16, 32)):
    return [torch.randn(2, width, side, side + 1) for width, side in zip(channels, sides, strict=True)]


def test_levels_keep_the_size_of_their_maps():
    """PB-04: also where a map is not twice as large as the next one."""
    levels = FPN((8, 16, 32), width=4, extra=2)(maps(25, 12, 7))
    assert [tuple(x.shape) for x in levels] == [(2, 4, 25, 26), (2, 4, 12, 13), (2, 4, 7, 8), (2, 4, 4, 4), (2, 4, 2, 2)]


def test_finer_levels_see_the_coarsest_map_and_not_the_other_way_round():
    fpn, x = FPN((8, 16, 32), width=4), maps(8, 4, 2)
    before = fpn(x)
    changed = [a.equal(b) for a, b in zip(before, fpn([*x[:2], x[2] + 1]), strict=True)]
    assert changed == [False, False, False]
    assert [a.equal(b) for a, b in zip(before, fpn([x[0] + 1, *x[1:]]), strict=True)] == [False, True, True]


def test_added_levels_come_from_the_backbone_without_a_relu():
    """Also where the backbone's last map has as many channels as the pyramid."""
    fpn, x = FPN((8, 16, 4), width=4, extra=2), maps(8, 4, 3, channels=(8, 16, 4))
    *_, six, seven = fpn(x)
    assert six.equal(fpn.extras[0](x[2]))
    assert seven.equal(fpn.extras[1](six))
    assert (six < 0).any()


def test_pooled_levels_take_every_other_cell():
    *_, last, pooled = FPN((8, 16, 32), width=4, extra=1, extra_kind="pool")(maps(20, 10, 5))
    assert pooled.equal(last[:, :, ::2, ::2])


def test_conv_relu_with_groups_is_normalised():
    layer, x = ConvReLU(8, 8, norm_groups=2), torch.randn(2, 8, 6, 6)
    want = F.relu(F.group_norm(F.conv2d(x, layer.weight, layer.bias, padding=1), 2))
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        ((8, 16, 64), "double from one to the next"),
        ((), "double from one to the next"),
        ((2, 4, 8, 16, 32), "maps at strides \\[4, 8, 16, 32\\]"),
        ((4, 8, 16), "at least to 32"),
    ],
)
def test_levels_that_do_not_fit_the_backbone(strides, message):
    """PB-13: found at construction, with both lists of strides."""
    with pytest.raises(ValueError, match=message):
        PyramidModel(PVTv2(TINY), 3, strides, 8)


def test_clip_networks_are_refused():
    with torch.device("meta"), pytest.raises(ValueError, match="this backbone takes clips"):
        PyramidModel(MViT(), 3, (4, 8, 16, 32), 8)


def test_places_of_parameters():
    """PB-15: stages from the backbone, 4 for the head."""
    model = PyramidModel(PVTv2(TINY), 3, (8, 16, 32), 8)
    assert model.num_depths == 6
    assert [model.depth_of(key) for key in ("backbone.stages.0.patches.weight", "backbone.stages.3.norm.bias", "fpn.laterals.0.bias")] == [
        0, 4, 5
    ]  # fmt: skip
    assert [model.stage_of(key) for key in ("backbone.stages.2.norm.bias", "fpn.laterals.0.bias")] == [2, 4]
    model.set_grad_checkpointing()
    assert model.backbone.checkpointing
