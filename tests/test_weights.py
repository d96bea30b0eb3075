"""Weights load whole and exactly, or not at all."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

import pyramidvit
from pyramidvit import create_model
from pyramidvit.errors import UserError
from pyramidvit.types import Preprocess
from pyramidvit.weights import WeightsMeta, adapt_stem, load, read, save


@pytest.fixture(scope="module")
def source():
    torch.manual_seed(0)
    return create_model("pvt_v2_b0", num_classes=5).eval()


def test_a_file_carries_its_description(source, tmp_path):
    meta = WeightsMeta(
        "pvt_v2_b0", "classify", ("a", "b"), Preprocess(size=(64, 96), value_range=(0.0, 4095.0)), {"x": {"y": 1}}, {"top1": 0.5}, "1"
    )
    save(tmp_path / "w.safetensors", source.state_dict(), meta)
    tensors, stored = read(tmp_path / "w.safetensors")
    assert stored == meta
    other = create_model("pvt_v2_b0", num_classes=5).eval()
    report = load(other, tensors)
    assert report.loaded == len(list(source.parameters()))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(other(x), source(x))


def test_loading_keeps_weights_as_the_kernels_read_them(source):
    """Channels-last weights stay channels-last, or every convolution would rearrange them."""
    other = create_model("pvt_v2_b0", num_classes=5)
    load(other, {key: tensor.contiguous() for key, tensor in source.state_dict().items()})
    weight = other.state_dict()["backbone.stages.0.patches.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("in_chans", [1, 2, 3, 4, 6, 13])
def test_another_number_of_channels_keeps_the_response_to_grey(source, in_chans):
    """PB-26."""
    model = create_model("pvt_v2_b0", num_classes=5, in_chans=in_chans).eval()
    report = load(model, source.state_dict())
    assert report.adapted == (() if in_chans == 3 else ("backbone.stages.0.patches.weight",))
    grey = torch.randn(1, 1, 64, 64)
    with torch.no_grad():
        got, want = model(grey.expand(-1, in_chans, -1, -1)), source(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_stem_for_one_channel_is_the_sum():
    weight = torch.randn(8, 3, 7, 7)
    torch.testing.assert_close(adapt_stem(weight, 1)[:, 0], weight.sum(1))


def test_other_classes_keep_a_random_head_on_request_only(source):
    model = create_model("pvt_v2_b0", num_classes=3)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"head.weight has shape \(5, 256\) in the file and \(3, 256\)"):
        load(model, source.state_dict())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), "a refused file changes nothing"
    report = load(model, source.state_dict(), new_classes=True)
    assert report.reset == ("head.weight", "head.bias")
    assert "left at their random start" in str(report)


def test_create_model_says_when_a_head_was_left_out(source, tmp_path):
    save(tmp_path / "w.safetensors", source.state_dict(), WeightsMeta("pvt_v2_b0", "classify", ("a",) * 5, Preprocess()))
    with pytest.warns(UserWarning, match="head.weight"):
        create_model("pvt_v2_b0", num_classes=2, weights=tmp_path / "w.safetensors")
    create_model("pvt_v2_b0", features_only=True, weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {key: value for key, value in t.items() if "blocks.1" not in key},
        lambda t: t | {"extra.weight": torch.zeros(1)},
        lambda t: {f"layer{i}.weight": value for i, value in enumerate(t.values()) if value.ndim},
    ],
    ids=["missing", "unexpected", "unrelated"],
)
def test_files_that_do_not_fit_are_refused_with_samples_of_the_keys(source, change):
    with pytest.raises(UserError, match="does not fit this model") as error:
        load(create_model("pvt_v2_b0", num_classes=5), change(source.state_dict()))
    assert ".weight" in str(error.value)


def test_damaged_values_are_refused(source):
    tensors = source.state_dict() | {"head.bias": torch.full((5,), float("nan"))}
    with pytest.raises(UserError, match=r"not finite, in head.bias"):
        load(create_model("pvt_v2_b0", num_classes=5), tensors)


class Hostile:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_pickles_are_refused_and_run_nothing(tmp_path, name):
    """Whatever the name says."""
    marker, file = tmp_path / "ran", tmp_path / name
    for write in (lambda: file.write_bytes(pickle.dumps(Hostile(str(marker)))), lambda: torch.save({"x": Hostile(str(marker))}, file)):
        write()
        for use in (read, lambda path: create_model("pvt_v2_b0", weights=path), pyramidvit.load):
            with pytest.raises(UserError, match=r"pickled|is refused"):
                use(file)
    assert not marker.exists()


def test_files_of_others_do_not_make_a_predictor(source, tmp_path):
    save_file({key: tensor.contiguous() for key, tensor in source.state_dict().items()}, tmp_path / "w.safetensors")
    assert read(tmp_path / "w.safetensors")[1] is None
    with pytest.raises(UserError, match="without classes"):
        pyramidvit.load(tmp_path / "w.safetensors")


def test_values_too_large_for_the_network_are_refused() -> None:
    """Finite in the file's double precision, infinite in the network's single one."""
    model = create_model("pvt_v2_b0", num_classes=3)
    tensors = {key: tensor.double() for key, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    tensors["head.weight"] = tensors["head.weight"] + 1e300
    with pytest.raises(UserError, match=r"not finite, in head\.weight"):
        load(model, tensors)


def test_quantised_weights_are_refused() -> None:
    model = create_model("pvt_v2_b0", num_classes=3)
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tensors["head.weight"] = tensors["head.weight"].to(torch.int32)
    with pytest.raises(UserError, match=r"whole numbers in head\.weight"):
        load(model, tensors)


def test_half_a_last_layer_is_refused_even_for_new_classes() -> None:
    model = create_model("pvt_v2_b0", num_classes=3)
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items() if key != "head.bias"}
    with pytest.raises(UserError, match=r"head\.bias"):
        load(model, tensors, new_classes=True)
