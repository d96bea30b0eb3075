"""Networks of timm behind our contract: the same maps, the same weights, everything that works for ours."""

import json

import pytest
import torch
from safetensors.torch import save_file

from pyramidvit import UserError, create_model, list_models
from pyramidvit.cli import main
from pyramidvit.data.scenes import write_scenes
from pyramidvit.models.baselines import survey
from pyramidvit.models.feature_pyramid import FeaturePyramid
from pyramidvit.models.trained_size import FAR
from pyramidvit.optim import freeze, param_groups
from pyramidvit.weights import load

timm = pytest.importorskip("timm", reason="baselines come from the timm extra")

FOUR_SCALES = ("resnet18", "convnext_atto", "swin_tiny_patch4_window7_224", "efficientnet_b0", "pvt_v2_b0")
ONE_SCALE = ("vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224")
BOTH = FOUR_SCALES + ONE_SCALE
SIZES = [(32, 32), (33, 47), (97, 130), (192, 256)]


def build(name, **settings):
    torch.manual_seed(0)
    return create_model(f"timm/{name}", **settings).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_maps_at_our_strides_for_any_size(name):
    """PB-109: maps are pictures, channels first, with the picture's height and width, whatever the network keeps inside."""
    net = build(name, features_only=True)
    assert [info.stride for info in net.feature_info] == [4, 8, 16, 32]
    for H, W in SIZES:
        with torch.inference_mode():
            maps = net(torch.randn(1, 3, H, W))
        for x, info in zip(maps, net.feature_info, strict=True):
            assert x.shape[:2] == (1, info.channels)
            rounded = [(side // info.stride, -(-side // info.stride)) for side in (H, W)]
            assert all(side in pair for side, pair in zip(x.shape[2:], rounded, strict=True))
            assert x.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("head", ["maps", "coarsest map", "classes"])
def test_every_parameter_learns(name, head):
    """PB-69: nothing is built that a loss on the maps, on the last one alone, or on the logits, doesn't reach."""
    settings = (
        {"num_classes": 7} if head == "classes" else {"features_only": True, "out_indices": (-1,) if head == "coarsest map" else None}
    )
    model = build(name, **settings).train()
    out = model(torch.randn(2, 3, 64, 96))
    (out if head == "classes" else torch.cat([x.flatten() for x in out])).square().sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", BOTH)
def test_depths_and_stages(name):
    """Layer-wise learning rates fall and stages freeze from the stem on."""
    with torch.device("meta"):
        model = create_model(f"timm/{name}", num_classes=5)
    depths = {key: model.depth_of(key) for key, _ in model.named_parameters()}
    assert set(depths.values()) == set(range(model.num_depths))
    assert depths["head.weight"] == model.num_depths - 1
    assert {model.stage_of(key) for key, _ in model.named_parameters()} == {0, 1, 2, 3, 4}
    scales = [group["lr_scale"] for group in param_groups(model, weight_decay=0.05, layer_decay=0.5)]
    assert (min(scales), max(scales)) == (0.5 ** (model.num_depths - 1), 1)
    freeze(model, 4)
    assert [key for key, parameter in model.named_parameters() if parameter.requires_grad] == ["head.weight", "head.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224", "convnext_atto", "vit_tiny_patch16_224"])
def test_weights_of_timm_give_the_logits_of_timm(name, tmp_path):
    """The whole file into a classifier and all but what maps don't need into a backbone; nothing of ours changes the result."""
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=7).eval()
    file = tmp_path / "theirs.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in theirs.state_dict().items()}, file)
    ours = create_model(f"timm/{name}", num_classes=7, weights=file).eval()
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x))
        if name not in ONE_SCALE:
            backbone = create_model(f"timm/{name}", features_only=True, weights=file).eval()
            for got, want in zip(backbone(x), theirs.forward_intermediates(x, intermediates_only=True)[-4:], strict=True):
                torch.testing.assert_close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "pvt_v2_b0", "vit_small_patch16_dinov3"])
def test_our_own_files_fill_a_network_without_memory(name):
    """Constants that no file holds, such as Swin's indices of positions, are computed again."""
    model = create_model(f"timm/{name}", num_classes=3).eval()
    with torch.device("meta"):
        other = create_model(f"timm/{name}", num_classes=3)
    other = other.to_empty(device="cpu").eval()
    load(other, model.state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(other(x), model(x))


def test_padding_reaches_no_map():
    """A size that Swin doesn't take is padded on the right and below, so what is left of it is where it was."""
    net = build("swin_tiny_patch4_window7_224", features_only=True)
    assert survey("swin_tiny_patch4_window7_224").step == 4
    x = torch.randn(1, 3, 61, 90)
    padded = torch.nn.functional.pad(x, (0, 2, 0, 3))
    with torch.inference_mode():
        for cut, whole in zip(net(x), net(padded), strict=True):
            assert torch.equal(cut, whole)


def test_a_simple_pyramid():
    """Strides 4 and 8 out of 16 by transposed convolutions that halve the channels, 32 by pooling, none where it is 16 already."""
    pyramid = FeaturePyramid(96, 16, (4, 8, 16, 32))
    x = torch.randn(2, 96, 7, 9)
    maps = pyramid(x)
    assert [tuple(m.shape[1:]) for m in maps] == [(24, 28, 36), (48, 14, 18), (96, 7, 9), (96, 4, 5)]
    assert torch.equal(maps[2], x)
    assert [sum(isinstance(m, torch.nn.ConvTranspose2d) for m in level.modules()) for level in pyramid.levels] == [2, 1, 0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm/resnt50", "did you mean timm/resnet50"),
        ("timm/hf-hub:timm/resnet18.a1_in1k", "has no network"),
        ("timm/local-dir:/tmp", "has no network"),
        ("timm/levit_128", r"maps at strides \[16, 32, 64\]"),
        ("resnet50", "those of timm are named timm/<name>"),
    ],
)
def test_names_that_do_not_work_say_why(name, message):
    """Addresses of files and hubs are no names: nothing is ever downloaded."""
    with pytest.raises(UserError, match=message):
        create_model(name, features_only=True)


@pytest.mark.slow
def test_what_a_network_cannot_do_is_said():
    with torch.device("meta"):
        with pytest.raises(UserError, match="patches of 14 pixels"):
            create_model("timm/eva02_tiny_patch14_224", features_only=True)
        with pytest.raises(UserError, match="takes pictures of 224x224 only, got 64x64"):
            create_model("timm/mvitv2_tiny")(torch.empty(1, 3, 64, 64))
        with pytest.raises(UserError, match="no drop path"):
            create_model("timm/vgg11", drop_path_rate=0.1)
        with pytest.raises(ValueError, match="features_only=True"):
            create_model("timm/vit_tiny_patch16_224").backbone(torch.empty(1, 3, 64, 64))
        with pytest.raises(ValueError, match="looks like clips"):
            create_model("timm/resnet18")(torch.empty(1, 3, 4, 64, 64))


def test_channels_drop_path_and_checkpointing():
    net = build("convnext_atto", features_only=True, in_chans=5, drop_path_rate=0.5, out_indices=(1, -1)).train()
    assert [info.stride for info in net.feature_info] == [8, 32]
    x, results = torch.randn(2, 5, 64, 64), []
    for on in (False, True):
        net.set_grad_checkpointing(on)
        net.zero_grad()
        torch.manual_seed(1)
        net(x)[-1].square().mean().backward()
        results.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
    assert len(results[0]) == len(list(net.net.named_parameters()))
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(kept, recomputed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"])
def test_exported_maps_are_the_same(name):
    """PB-14: torch.export takes baselines as it takes ours, and the result gives the same maps."""
    net = build(name, features_only=True)
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for got, want in zip(torch.export.export(net, (x,)).module()(x), net(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_names():
    assert "timm/resnet50" in list_models("timm/resnet*")
    assert not any(name.startswith("timm/") for name in list_models())


@pytest.mark.slow
def test_far_from_the_trained_size_is_said_once(tmp_path, recwarn):
    """PB-09: only where positions were learned, only in prediction, only beyond twice the side."""
    assert FAR == 2
    for name, size, warned in (("pvt_tiny", 448, 0), ("pvt_tiny", 480, 1), ("pvt_v2_b0", 480, 0), ("timm/vit_tiny_patch16_224", 96, 1)):
        file = tmp_path / "weights.safetensors"
        model = create_model(name, num_classes=3)
        save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, file)
        model = create_model(name, num_classes=3, weights=file)
        with torch.no_grad():
            model(torch.zeros(1, 3, size, size))  # in training it is no mistake
            assert len(recwarn) == 0
            for _ in range(2):
                model.eval()(torch.zeros(1, 3, size, size))
        assert len(recwarn) == warned, name
        if warned:
            assert f"trained on inputs of 224x224, and this one has {size}x{size}" in str(recwarn.pop().message)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm/resnet18", "timm/vit_tiny_patch16_224"])
def test_the_command_line_trains_measures_and_predicts(name, tmp_path, capsys):
    write_scenes(tmp_path / "data", train=16, val=8, size=(40, 48), seed=1)
    flags = ["--size", "64x64", "-b", "8", "--epochs", "1", "--workers", "0", "--threads", "1", "--device", "cpu"]
    flags += ["--layer-decay", "0.9", "--freeze", "1", "--runs", str(tmp_path / "runs")]
    assert code("train", tmp_path / "data", "--model", name, *flags) == 0
    run = tmp_path / "runs" / "classify" / f"{name.replace('/', '_')}-1"
    assert code("evaluate", run, "--workers", "0") == 0
    capsys.readouterr()
    assert code("predict", run, next((tmp_path / "data" / "val").rglob("*.png")), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["top"]) == 5
    assert code("train", tmp_path / "data", "--model", "timm/mvitv2_tiny", *flags, "--name", "fixed") == 2
    assert "takes pictures of 224x224 only, got 64x64" in " ".join(capsys.readouterr().err.split())
    assert not run.with_name("fixed").exists()
    assert code("info", name, "--size", "64x64", "--json") == 0
    assert json.loads(capsys.readouterr().out)["macs"] > 0


def code(*arguments) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code
