"""What does not fit is refused with what the file seems to hold and what to do; what is fitted on request is reported."""

import warnings
from dataclasses import replace

import pytest
import torch

from pyramidvit import UserError, create_model
from pyramidvit.models import Classifier
from pyramidvit.models.mvit import CLIPS, CLIPS_V2, PICTURES, PICTURES_V2, MViT
from pyramidvit.types import Preprocess
from pyramidvit.weights import WeightsMeta, load, save
from pyramidvit.weights.layouts import to_library


@pytest.fixture(scope="module")
def b0():
    torch.manual_seed(0)
    return create_model("pvt_v2_b0", num_classes=5)


def made_of_nothing(name):
    """Names and shapes, without values."""
    with torch.device("meta"):
        return create_model(name, num_classes=5).state_dict()


@pytest.mark.parametrize("library", ["own", "official", "timm", "transformers", "mmdet"])
def test_another_variant_is_named(library):
    """The file's network and the model's, and which to choose."""
    theirs = to_library(made_of_nothing("pvt_v2_b1"), library, other_eps=True).tensors
    model = create_model("pvt_v2_b0", num_classes=5)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"The file looks like pvt_v2_b1 .*; the model is pvt_v2_b0") as error:
        load(model, theirs, new_classes=True)
    assert "Choose the model pvt_v2_b1" in str(error.value)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), "a refused file changes nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("pvt_v2_b1", "pvt_tiny"), ("pvt_v2_b0", "pvt_tiny"), ("mvitv2_tiny", "pvt_tiny"), ("pvt_tiny", "mvit_base16")],
)
def test_another_family_is_refused_with_the_reason(theirs, ours):
    """PB-17: a file of PVT v2 in a PVT."""
    state = to_library(made_of_nothing(theirs), "mvit" if "mvit" in theirs else "official").tensors
    with torch.device("meta"):
        model = create_model(ours, num_classes=5)
    with pytest.raises(UserError, match=f"looks like {theirs} .*; the model is {ours}"):
        load(model, state)


@pytest.mark.slow
def test_deeper_variants_and_those_with_other_tables_are_told_apart(b0):
    for name in ("pvt_v2_b2_li", "pvt_small", "mvit_base_32x3", "mvit_base24_32x3", "mvitv2_small", "mvitv2_small_16x4"):
        with pytest.raises(UserError, match=f"looks like {name} "):
            load(b0, made_of_nothing(name))


def test_a_classifier_is_not_made_of_a_backbone_alone(b0):
    """PB-19: unless the head may start at random, which is then said."""
    backbone = to_library(b0.backbone.state_dict(), "official").tensors
    model = create_model("pvt_v2_b0", num_classes=5)
    with pytest.raises(UserError, match="holds only the backbone: the head would be random"):
        load(model, backbone)
    assert set(load(model, backbone, new_classes=True).reset) == {"head.weight", "head.bias"}


def test_unrelated_files_show_their_names_and_the_layouts_that_are_known():
    """PB-20."""
    resnet = {"conv1.weight": torch.zeros(64, 3, 7, 7), "layer1.0.conv1.weight": torch.zeros(64, 64, 3, 3), "fc.bias": torch.zeros(1000)}
    with pytest.raises(UserError, match=r"does not fit this model") as error:
        load(create_model("pvt_v2_b0"), resnet)
    assert "layer1.0.conv1.weight (64, 64, 3, 3)" in str(error.value)
    assert "official PVT v2" in str(error.value)


def test_mistyped_names_get_hints(b0):
    """PB-20: nearest names."""
    tensors = {key.replace("mlp.fc1", "mlp.fcl"): tensor for key, tensor in b0.state_dict().items()}
    with pytest.raises(UserError, match=r"fcl\.bias may be meant for .*fc1\.bias"):
        load(create_model("pvt_v2_b0", num_classes=5), tensors)


@pytest.mark.parametrize(
    ("library", "key", "shape", "message"),
    [
        ("mmdet", "backbone.layers.0.1.0.attn.attn.in_proj_weight", (), r"in_proj_weight \(\), where"),
        ("own", "backbone._extra_state", (5,), r"epsilon is one number; got _extra_state with the shape \(5,\)"),
        ("timm", "patch_embed.proj.weight", (), r"patch_embed\.proj\.weight \(\), where layers have rows"),
        ("timm", "patch_embed.proj.weight", (32, 0, 7, 7), r"patch_embed\.proj\.weight \(32, 0, 7, 7\), where"),
        ("timm", "stages.0.blocks.0.attn.proj.weight", (), r"attn\.proj\.weight \(\), where"),
        (
            "transformers",
            "pvt_v2.encoder.layers.0.blocks.0.attention.key.weight",
            (32, 5),
            r"shapes \(32, 5\), \(32, 32\), which don't fit",
        ),
        ("transformers", "pvt_v2.encoder.layers.0.blocks.0.attention.key.bias", (32, 1), r"shapes \(32, 1\), \(32,\), which don't fit"),
    ],
)
def test_shapes_that_nothing_has_are_named(b0, library, key, shape, message):
    """Damaged files, which crashed where tensors are put together, cut or counted."""
    tensors = to_library(b0.state_dict(), library, other_eps=True).tensors
    assert key in tensors
    with pytest.raises(UserError, match=message):
        load(b0, tensors | {key: torch.zeros(shape)})


def test_a_tensor_that_is_there_twice_is_refused(b0):
    """Names that say the same place must not overwrite each other in silence."""
    tensors = to_library(b0.state_dict(), "timm").tensors
    again = {"stages.00.blocks.0.norm1.weight": torch.zeros(32)}
    with pytest.raises(UserError, match=r"stages\.00\.blocks\.0\.norm1\.weight"):
        load(b0, tensors | again)


def test_two_networks_in_a_file_are_not_chosen_between(b0):
    tensors = to_library(b0.state_dict(), "official").tensors
    both = {f"{who}.{key}": tensor for key, tensor in tensors.items() for who in ("student", "teacher")}
    with pytest.raises(UserError, match=r"several networks in the official PVT v2 layout, under student\. and teacher\."):
        load(create_model("pvt_v2_b0", num_classes=5), both)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["own", "official", "timm", "transformers"])
def test_other_classes_reset_the_head_with_one_warning_that_names_it(tmp_path, library):
    """PB-25."""
    source = create_model("pvt_v2_b0", num_classes=7)
    file = tmp_path / "w.safetensors"
    tensors = to_library(source.state_dict(), library, other_eps=True).tensors
    save(file, tensors, WeightsMeta("pvt_v2_b0", "classify", ("a",) * 7, Preprocess()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = create_model("pvt_v2_b0", num_classes=3, weights=file)
    assert len(caught) == 1
    assert "head.bias, head.weight" in str(caught[0].message)
    assert torch.equal(model.backbone.get_parameter("stages.0.patches.weight"), source.backbone.get_parameter("stages.0.patches.weight"))
    with pytest.raises(UserError, match="the file has other classes"):
        load(model, tensors)


@pytest.mark.parametrize("in_chans", [1, 2, 4, 6, 13])
@pytest.mark.parametrize("library", ["official", "timm", "transformers", "mmdet"])
def test_another_number_of_channels_from_any_layout(b0, library, in_chans):
    """PB-26: the first convolution answers grey pictures as before."""
    model = create_model("pvt_v2_b0", features_only=True, in_chans=in_chans)
    report = load(model, to_library(b0.state_dict(), library, other_eps=True).tensors)
    assert report.adapted == ("stages.0.patches.weight",)
    new, old = model.get_parameter("stages.0.patches.weight"), b0.backbone.get_parameter("stages.0.patches.weight")
    torch.testing.assert_close(new.sum(1), old.sum(1))


SHALLOW = {"depths": (1, 1, 1, 1), "width": 16}


def test_queries_keys_and_values_in_one_or_apart():
    """PB-21: both ways to the same network, and a file without the class token's tables is none of them."""
    source = Classifier(MViT(replace(CLIPS, **SHALLOW), classify=True), 5)
    apart, fused = (to_library(source.state_dict(), name).tensors for name in ("pytorchvideo", "pytorchvideo-fused"))
    assert len(apart) == len(fused) + 4 * 4
    for tensors in (apart, fused, to_library(source.state_dict(), "slowfast").tensors):
        model = Classifier(MViT(replace(CLIPS, **SHALLOW), classify=True), 5)
        load(model, tensors)
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in model.state_dict().items())
    with pytest.raises(UserError, match=r"not in the file: backbone\.class_token"):
        load(source, {key: value for key, value in fused.items() if not key.endswith("cls_token")})


def test_a_clip_network_out_of_a_picture_network():
    """Frames are seen one by one at first: a clip that stands still gives in every frame what its picture gave."""
    torch.manual_seed(0)
    pictures = MViT(replace(PICTURES_V2, **SHALLOW, size=(64, 64))).eval()
    clips = MViT(replace(CLIPS_V2, **SHALLOW, size=(4, 64, 64), kv_stride=(1, 4, 4), class_token=False)).eval()
    with pytest.raises(UserError):
        load(clips, pictures.state_dict())
    report = load(clips, to_library(pictures.state_dict(), "mvit").tensors, inflate=True)
    assert "patches.weight" in report.inflated
    assert "stages.0.blocks.0.attn.rel_pos_t" in report.inflated
    assert report.reset == ()
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        for still, picture in zip(clips(x[:, :, None].expand(-1, -1, 4, -1, -1)), pictures(x), strict=True):
            torch.testing.assert_close(still, picture[:, :, None].expand_as(still), rtol=1e-4, atol=1e-5)


def test_tables_in_time_start_at_0_and_class_tokens_that_pictures_have_none_of_at_random():
    pictures, clips = MViT(replace(PICTURES, **SHALLOW)), MViT(replace(CLIPS, **SHALLOW))
    assert "frame_positions" in load(clips, pictures.state_dict(), inflate=True).inflated
    assert not clips.get_parameter("frame_positions").any()
    assert load(MViT(replace(CLIPS_V2, **SHALLOW)), MViT(replace(PICTURES_V2, **SHALLOW)).state_dict(), inflate=True).reset == (
        "class_token",
    )


def test_the_report_is_a_short_table(b0):
    report = load(create_model("pvt_v2_b0", num_classes=3, in_chans=4), to_library(b0.state_dict(), "official").tensors, new_classes=True)
    assert str(report).splitlines() == [
        "175 of 178 tensors loaded as they are (official PVT v2 layout, epsilon 1e-05 after patches)",
        "     1 fitted to this number of input channels: backbone.stages.0.patches.weight",
        "     2 left at their random start, since the file has none for these classes or this task: head.bias, head.weight",
    ]


def test_a_layout_with_another_epsilon_is_written_on_request_only(b0):
    b0.backbone.set_extra_state(torch.tensor(1e-5, dtype=torch.float64))
    with pytest.raises(UserError, match=r"trained with epsilon 1e-05 .* Transformers PVT v2 computes with 1e-06"):
        to_library(b0.state_dict(), "transformers")
    assert to_library(b0.state_dict(), "transformers", other_eps=True).layout.library == "transformers"
    with pytest.raises(UserError, match="did you mean torchvision"):
        to_library(b0.state_dict(), "torchvison")
    with pytest.raises(UserError, match="can't be written in the layout 'torchvision'"):
        to_library(b0.state_dict(), "torchvision")
