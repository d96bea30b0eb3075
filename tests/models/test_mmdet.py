"""Backbones from configurations of MMDetection and of the official code, as data."""

import pytest
import torch

from pyramidvit import UserError, create_model, from_mmdet
from pyramidvit.models.variants import BACKBONES

V1, V2 = "PyramidVisionTransformer", "PyramidVisionTransformerV2"


def same(net, name, **wanted):
    """The same parameters as the published network, and the wanted settings."""
    network, config = BACKBONES[name]
    with torch.device("meta"):
        reference = network(config)
    assert {key: value.shape for key, value in net.named_parameters()} == {key: value.shape for key, value in reference.named_parameters()}
    assert {key: getattr(net.config, key) for key in wanted} == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "name", "eps"),
    [
        ({"type": V1, "num_layers": [2, 2, 2, 2]}, "pvt_tiny", 1e-6),
        ({"type": V1}, "pvt_small", 1e-6),
        ({"type": V1, "embed_dims": [64, 128, 320, 512], "depths": [3, 4, 6, 3]}, "pvt_small", 1e-5),
        ({"type": V1, "embed_dims": 64, "num_layers": (3, 4, 18, 3), "pretrain_img_size": (224,)}, "pvt_medium", 1e-6),
        ({"type": V2, "embed_dims": 32, "num_layers": [2, 2, 2, 2]}, "pvt_v2_b0", 1e-6),
        ({"type": V2, "embed_dims": 64, "num_layers": [3, 6, 40, 3], "mlp_ratios": (4, 4, 4, 4)}, "pvt_v2_b5", 1e-6),
        ({"type": V2, "embed_dims": [64, 128, 320, 512], "depths": [3, 4, 6, 3], "linear": True}, "pvt_v2_b2_li", 1e-5),
        ({"type": "pvt_v2_b1", "style": "pytorch"}, "pvt_v2_b1", 1e-5),
    ],
)
def test_both_ways_to_write_them(settings, name, eps):
    with torch.device("meta"):
        same(from_mmdet(settings), name, patch_eps=eps)


def test_a_whole_detectors_configuration():
    config = {
        "type": "RetinaNet",
        "backbone": {"type": V2, "embed_dims": 32, "num_layers": [2, 2, 2, 2], "out_indices": (1, 2, 3)},
        "neck": {},
    }
    net = from_mmdet(config)
    assert [info.channels for info in net.feature_info] == [64, 160, 256]


def test_a_whole_runs_configuration():
    """With the settings that inheritance and other libraries' registries add."""
    backbone = {"_delete_": True, "type": f"mmdet.{V1}", "num_layers": [2, 2, 2, 2]}
    with torch.device("meta"):
        same(from_mmdet({"model": {"type": "RetinaNet", "backbone": backbone}, "optimizer": {}}), "pvt_tiny", patch_eps=1e-6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "settings of a backbone as a dict.*got None"),
        ("retinanet_pvt-t.py", "got 'retinanet_pvt-t.py'"),
        ({}, "type has to be the name of a backbone.*got None in a dict with nothing"),
        ({"type": torch.nn.Module}, "got <class"),
        ({"model": {"type": "RetinaNet"}}, "no backbone of type 'RetinaNet'"),
        ({"model": {"backbone": "resnet50"}}, "got 'resnet50'"),
        ({"model": [1]}, r"got \[1\]"),
        ({"optimizer": {}, "data": {}}, "in a dict with optimizer, data"),
    ],
)
def test_what_describes_no_backbone(config, message):
    with pytest.raises(UserError, match=message):
        from_mmdet(config)


def test_it_takes_the_weights_of_its_library():
    net = from_mmdet({"type": V2, "embed_dims": 32, "num_layers": [2, 2, 2, 2]})
    create_model("pvt_v2_b0", features_only=True).load_state_dict(net.state_dict())


def test_weights_in_it_are_not_loaded_and_said():
    config = {
        "type": V2,
        "embed_dims": 32,
        "num_layers": [2, 2, 2, 2],
        "init_cfg": {"type": "Pretrained", "checkpoint": "https://x/b0.pth"},
    }
    with pytest.warns(UserWarning, match=r"not loaded: .*https://x/b0\.pth"):
        from_mmdet(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "ResNet"}, "no backbone of type 'ResNet'"),
        ({"type": "PyramidVisionTransformerV3"}, "did you mean PyramidVisionTransformer"),
        ({"num_layer": [2, 2, 2, 2]}, "no setting 'num_layer'; did you mean num_layers"),
        ({"num_layers": [2, 2, 2]}, "four whole numbers above 0"),
        ({"num_layers": "__import__('os').mkdir('x')"}, "four whole numbers above 0"),
        ({"qkv_bias": False}, "qkv_bias is True in every published"),
        ({"use_conv_ffn": True}, "use_conv_ffn is False"),
        ({"norm_cfg": {"type": "LN", "eps": 1e-5}}, "norm_cfg has to be"),
        ({"linear": True}, "no linear attention"),
        ({"pretrain_img_size": "224"}, "at least 32"),
        ({"pretrain_img_size": 224.0}, "at least 32"),
        ({"out_indices": "012"}, "out_indices has to be several whole numbers; got '012'"),
        ({"out_indices": (0.0, 1.0)}, "out_indices has to be"),
        ({"out_indices": (0, 4)}, "maps that don't exist"),
        ({"in_channels": "3"}, "in_channels has to be a whole number of at least 1; got '3'"),
        ({"in_channels": 0}, "in_channels has to be"),
        ({"drop_path_rate": "0.1"}, "drop_path_rate has to be a number from 0"),
        ({"drop_path_rate": 1}, "drop_path_rate has to be"),
        ({"linear": "yes"}, "linear has to be True or False"),
        ({"embed_dims": "64"}, "embed_dims needs four whole numbers"),
        ({"embed_dims": True}, "embed_dims needs"),
        ({"embed_dims": [64, 101, 320, 512]}, "not a multiple of its 2 heads"),
        (
            {"depths": [2, 2, 2, 2], "num_layers": [3, 4, 6, 3]},
            "depths is a setting of the official code and num_layers one of MMDetection",
        ),
        ({"in_chans": 3, "in_channels": 4}, "in_chans is a setting of the official code and in_channels"),
        ({"depths": [2, 2, 2, 2], "embed_dims": 64}, "depths is a setting of the official code and embed_dims=64"),
        ({"num_layers": [2, 2, 2, 2], "embed_dims": [64, 128, 320, 512]}, r"embed_dims=\[…\] is a setting of the official code"),
        ({"Num_Heads": [1, 2, 5, 8]}, "did you mean num_heads"),
        ({3: 4}, "no setting 3"),
        ({"type": "PVT_V2_B2"}, "did you mean pvt_v2_b2"),
    ],
)
def test_what_no_published_network_has_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        from_mmdet({"type": V1} | change)
