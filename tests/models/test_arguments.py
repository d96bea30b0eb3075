"""What can't be is told with what came and what was wanted: arguments of `create_model`, and inputs of networks."""

import pytest
import torch

from pyramidvit import UserError, create_model, list_models
from pyramidvit.models.retinanet import RetinaNetConfig
from pyramidvit.models.semantic_fpn import SemanticFPNConfig


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": None}, "name has to be the name of a network.*got None"),
        ({"num_classes": 2.5}, "num_classes has to be a whole number of at least 1; got 2.5"),
        ({"num_classes": "3"}, "got '3'"),
        ({"num_classes": True}, "got True"),
        ({"num_classes": 0}, "at least 1; got 0"),
        ({"in_chans": "3"}, "in_chans has to be a whole number"),
        ({"features_only": True, "out_indices": 2}, r"several whole numbers, such as \(1, 2, 3\).*got 2"),
        ({"features_only": True, "out_indices": "12"}, "out_indices has to be"),
        ({"features_only": "yes"}, "features_only has to be True or False; got 'yes'"),
        ({"pretrained": 1}, "pretrained has to be True or False"),
        ({"weights": 3}, "weights has to be a file"),
        ({"drop_path_rate": "0.1"}, "drop_path_rate has to be"),
        ({"head": 3}, "head has to be one of classify"),
        ({"head": "RetinaNets", "num_classes": 3}, "no head 'RetinaNets'; did you mean retinanet"),
        ({"head": "retinanet"}, "head='retinanet' needs num_classes"),
        ({"head": "retinanet", "num_classes": 3, "head_config": {}}, "head_config has to be the settings of a head"),
        ({"head": "retinanet", "num_classes": 3, "head_config": SemanticFPNConfig()}, "takes a RetinaNetConfig"),
        ({"head_config": RetinaNetConfig()}, "name that head"),
        (
            {"features_only": True, "head": "retinanet", "num_classes": 3},
            "bare backbone, which has no head: leave head and num_classes out",
        ),
        ({"features_only": True, "num_classes": 3}, "leave num_classes out"),
        ({"out_indices": (1,)}, "add features_only=True"),
        ({"name": "PVT_V2_B7"}, "did you mean pvt_v2_b"),
    ],
)
def test_arguments_that_can_not_be(given, message):
    with pytest.raises(UserError, match=message):
        create_model(**({"name": "pvt_v2_b0"} | given))


def test_numbers_of_numpy_and_no_head_are_as_good():
    numpy = pytest.importorskip("numpy")
    with torch.device("meta"):
        assert create_model("pvt_v2_b0", head=None, num_classes=numpy.int64(3)).head.out_features == 3


def test_names_are_suggested_whatever_their_case():
    with pytest.raises(UserError, match="did you mean pvt_v2_b0"):
        create_model("PVT_V2_B0")
    pytest.importorskip("timm", reason="from the timm extra")
    with pytest.raises(UserError, match="did you mean timm/resnet18"):
        create_model("timm/RESNET18")


def test_a_pattern_is_text():
    with pytest.raises(UserError, match="pattern has to be"):
        list_models(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "classes"),
    [("pvt_tiny", 1000), ("mvitv2_tiny", 1000), ("mvitv2_small_16x4", 400), ("mvit_small_16x4", 400), ("pvt_v2_b2_li", 1000)],
)
def test_as_many_classes_as_the_published_weights_have(name, classes):
    with torch.device("meta"):
        assert create_model(name).head.out_features == classes


@pytest.fixture(scope="module")
def pictures():
    return create_model("pvt_v2_b0", num_classes=2).eval()


@pytest.fixture(scope="module")
def clips():
    return create_model("mvit_mini_8x2", num_classes=2).eval()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:0], "batch is empty, got .0, 3"),
        (lambda x: x.to(torch.uint8), r"computes with torch.float32, got values of torch.uint8.*/ 255"),
        (lambda x: x.double(), r"got values of torch.float64: x.to\(torch.float32\)"),
        (lambda x: x.half(), "got values of torch.float16"),
        (lambda x: x.to("meta").half(), "got values of torch.float16"),
    ],
    ids=["empty", "uint8", "float64", "float16", "meta"],
)
def test_batches_that_a_network_does_not_take(pictures, clips, change, message):
    for model, x in (
        (pictures, torch.zeros(1, 3, 32, 32)),
        (pictures.backbone, torch.zeros(1, 3, 32, 32)),
        (clips, torch.zeros(1, 3, 2, 32, 32)),
    ):
        with pytest.raises(ValueError, match=message):
            model(change(x))


def test_baselines_say_so_too():
    pytest.importorskip("timm", reason="from the timm extra")
    with torch.device("meta"):
        model = create_model("timm/resnet18", num_classes=2)
        with pytest.raises(ValueError, match=r"got values of torch\.uint8"):
            model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
        with pytest.raises(ValueError, match="batch is empty"):
            model(torch.zeros(0, 3, 32, 32))


def test_under_autocast_half_precision_is_taken(pictures):
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        assert pictures(torch.zeros(1, 3, 32, 32, dtype=torch.bfloat16)).isfinite().all()
        with pytest.raises(ValueError, match="float64"):
            pictures(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
