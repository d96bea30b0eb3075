"""What lies in files of others: several networks, other types, no weights at all; and what is said of it."""

import logging
import warnings

import pytest
import torch
from safetensors.torch import save_file

import pyramidvit
from pyramidvit import UserError, create_model
from pyramidvit.cli import main
from pyramidvit.config import RunConfig
from pyramidvit.models import Classifier
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.tasks.table import task_from_weights
from pyramidvit.types import Preprocess
from pyramidvit.weights import WeightsMeta, load, read, save, source
from pyramidvit.weights.layouts import to_library
from pyramidvit.weights.source import described, obtain
from pyramidvit.weights.zoo import ZOO


@pytest.fixture(scope="module")
def network() -> Classifier:
    torch.manual_seed(0)
    return create_model("pvt_v2_b0", num_classes=5).eval()


@pytest.fixture(scope="module")
def official(network):
    return {key: tensor.contiguous() for key, tensor in to_library(network.state_dict(), "official").tensors.items()}


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


KEY = "patch_embed1.proj.bias"


def shifted(tensors, by):
    """Another network of the same kind."""
    return {key: tensor + by for key, tensor in tensors.items()}


@pytest.mark.parametrize(
    "names", [("model", "model_ema"), ("state_dict", "state_dict_ema"), ("state_dict", "ema_state_dict"), ("student", "teacher")]
)
def test_several_networks_in_a_file_are_chosen_by_name_only(tmp_path, official, names):
    """None is taken for being the first; the message says how to choose, and what is chosen is that one."""
    first, second = names
    file = tmp_path / "last.pth"
    torch.save({first: official, second: shifted(official, 1.0), "epoch": 3, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, file)
    with pytest.raises(UserError, match=rf"several networks, under {first} and {second}: .*last\.pth#{second}"):
        obtain(file)
    assert torch.equal(obtain(f"{file}#{first}")[0][KEY], official[KEY])
    assert torch.equal(obtain(f"{file}#{second}")[0][KEY], official[KEY] + 1)
    with pytest.warns(UserWarning, match=r"last\.pth#"):
        model = create_model("pvt_v2_b0", num_classes=2, weights=f"{file}#{second}")
    assert torch.equal(model.backbone.get_parameter("stages.0.patches.bias"), official[KEY] + 1)


@pytest.mark.parametrize("pickled", [True, False], ids=["pth", "safetensors"])
def test_networks_side_by_side_are_chosen_by_what_their_names_begin_with(tmp_path, official, network, pickled):
    both = {f"module.{who}.{key}": tensor + by for who, by in (("student", 0), ("teacher", 1)) for key, tensor in official.items()}
    file = tmp_path / ("w.pth" if pickled else "w.safetensors")
    torch.save({"model": both}, file) if pickled else save_file(both, file)
    with pytest.raises(UserError, match=r"under student\. and teacher\.: name one of them behind the file, as in weights\.pth#teacher"):
        load(network, obtain(file)[0])
    assert torch.equal(obtain(f"{file}#teacher")[0][KEY], official[KEY] + 1)
    with pytest.raises(UserError, match=r"holds nothing under 'master'; its names begin with student, teacher"):
        obtain(f"{file}#master")


def test_a_file_may_have_such_a_mark_in_its_name(tmp_path, official):
    folder = tmp_path / "a#b"
    folder.mkdir()
    save_file(official, folder / "w#1.safetensors")
    assert obtain(folder / "w#1.safetensors")[0].keys() == official.keys()


def test_settings_beside_the_weights_are_no_network(tmp_path, official):
    torch.save({"model": {"name": "pvt_v2_b0"}, "state_dict": official, "model_ema": {}, "ema": None}, tmp_path / "w.pth")
    assert obtain(tmp_path / "w.pth")[0].keys() == official.keys()


def test_unknown_wrappers_are_named(tmp_path, official, capsys):
    """One network under an unknown name is it; where it lies deeper, the keys that are there are said, and one of them can be named."""
    torch.save({"net": official, "epoch": 3}, tmp_path / "one.pth")
    assert obtain(tmp_path / "one.pth")[0].keys() == official.keys()
    torch.save({"trainer": {"net": official}, "epoch": 3}, tmp_path / "deep.pth")
    assert run("convert", tmp_path / "deep.pth", tmp_path / "o.safetensors") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds no state dict, but trainer (1 entries), epoch (int)" in said
    assert "deep.pth#name" in said
    assert run("convert", f"{tmp_path / 'deep.pth'}#trainer", tmp_path / "o.safetensors") == 0
    assert read(tmp_path / "o.safetensors")[0].keys() == create_model("pvt_v2_b0", num_classes=5).state_dict().keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"it is empty \(0 bytes\)"),
        (b"\n<!DOCTYPE html><html>Sign in</html>", "it is a web page, most likely one of an error or a login"),
        (b"<html>\xe2\x80\xa6 404</html>", "it is a web page"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><Error/>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "a pointer of Git LFS .*`git lfs pull`"),
        (b"Not found", "it is text that begins with 'Not found'"),
        (b"\x00\x01\x02", "damaged or no safetensors file"),
    ],
    ids=["empty", "html", "html utf-8", "xml", "lfs", "text", "binary"],
)
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_what_is_no_weights_file_is_told_what_it_is(tmp_path, content, message, name):
    file = tmp_path / name
    file.write_bytes(content)
    for use in (obtain, pyramidvit.load, lambda path: create_model("pvt_v2_b0", weights=path)):
        with pytest.raises(UserError, match=message):
            use(file)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_values_of_another_type_are_reported(official, dtype):
    name = str(dtype).removeprefix("torch.")
    report = load(create_model("pvt_v2_b0", num_classes=5), {key: tensor.to(dtype) for key, tensor in official.items()})
    assert report.loaded == 0
    assert len(report.altered) == len(official)
    assert f" {len(official)} converted from {name} to float32: " in str(report)
    report = load(create_model("pvt_v2_b0", num_classes=5), official)
    assert (report.loaded, report.cast) == (len(official), {})
    assert "converted" not in str(report)


def test_one_warning_tells_all_that_is_not_as_in_the_file(tmp_path, network):
    """Other channels in Python, as at the command line."""
    save(tmp_path / "w.safetensors", network.state_dict(), WeightsMeta("pvt_v2_b0", "classify", ("a",) * 5, Preprocess()))
    with pytest.warns(UserWarning, match="1 fitted to this number of input channels: backbone.stages.0.patches.weight") as caught:
        create_model("pvt_v2_b0", num_classes=5, in_chans=1, weights=tmp_path / "w.safetensors")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_model("pvt_v2_b0", num_classes=5, weights=tmp_path / "w.safetensors")


CLASSES = tuple("abcde")


@pytest.mark.parametrize("library", ["own", "official", "timm", "transformers"])
def test_a_head_made_for_other_classes_starts_anew_whatever_it_is_called(tmp_path, network, library):
    """As many classes, but others: by the file's own name of its head, none of it is kept."""
    tensors, meta = (
        to_library(network.state_dict(), library, other_eps=True).tensors,
        WeightsMeta("pvt_v2_b0", "classify", CLASSES, Preprocess()),
    )
    save(tmp_path / "w.safetensors", tensors, meta)
    for classes, kept in ((tuple("fghij"), False), (CLASSES, True)):
        config = RunConfig.model_validate({"model": {"name": "pvt_v2_b0", "weights": str(tmp_path / "w.safetensors")}})
        task = ClassifyTask(config, classes)
        model = task.model()
        assert torch.equal(model.head.weight, network.head.weight) == kept
        assert torch.equal(model.backbone.get_parameter("stages.0.patches.bias"), network.backbone.get_parameter("stages.0.patches.bias"))
        assert task.load_report is not None
        assert task.load_report.reset == (() if kept else ("head.weight", "head.bias"))


def test_so_does_a_detectors_in_the_names_of_mmdetection():
    torch.manual_seed(0)
    theirs = create_model("pvt_v2_b0", head="retinanet", num_classes=2)
    ours = create_model("pvt_v2_b0", head="retinanet", num_classes=2)
    report = load(ours, to_library(theirs.state_dict(), "mmdet", other_eps=True).tensors, new_classes=True, anew=("classes.",))
    assert set(report.reset) == {"classes.weight", "classes.bias"}
    assert torch.equal(ours.state_dict()["boxes.weight"], theirs.state_dict()["boxes.weight"])
    assert not torch.equal(ours.state_dict()["classes.weight"], theirs.state_dict()["classes.weight"])


def test_half_a_head_and_no_head_are_told_apart(official):
    model = create_model("pvt_v2_b0", num_classes=5)
    for without, message in (("head.bias", "only a part of the head"), ("head", "only the backbone")):
        with pytest.raises(UserError, match=message) as error:
            load(model, {key: tensor for key, tensor in official.items() if not key.startswith(without)})
        assert "A training starts such layers anew by itself; in Python" in str(error.value)


def test_what_no_network_is_made_like_is_described(official):
    wider = {key: torch.cat([tensor, tensor]) if key.startswith("block4") and tensor.ndim else tensor for key, tensor in official.items()}
    wider["block1.7.norm1.weight"] = torch.zeros(32)
    with pytest.raises(UserError, match=r"no published network \(blocks 2, 2, 2, 2, channels 32, 64, 160, 512\)") as error:
        load(create_model("pvt_v2_b0", num_classes=5), wider)
    assert "No network here is made like that" in str(error.value)


def test_networks_of_timm_are_not_converted(tmp_path, capsys):
    assert run("convert", "x.pth", tmp_path / "o.safetensors", "--model", "timm/resnet18") == 2
    assert "nothing to convert" in capsys.readouterr().err


def test_an_unknown_layout_lists_them_once(tmp_path, official, capsys):
    save_file(official, tmp_path / "w.safetensors")
    assert run("convert", tmp_path / "w.safetensors", tmp_path / "o.pth", "--layout", "zzz") == 2
    assert capsys.readouterr().err.count("mmaction2") == 1
    assert run("convert", tmp_path / "w.safetensors", tmp_path / "o.pth", "--layout", "TIMM") == 2
    assert "did you mean timm" in capsys.readouterr().err


def test_published_names_are_suggested_whatever_their_case():
    with pytest.raises(UserError, match=r"did you mean pvt_v2_b2\.in1k"):
        source.locate("PVT_V2_B2.IN1K")


@pytest.mark.parametrize("name", ["pvt_v2_b0.mmdet_coco_retinanet", "pvt_small.coco_mask_rcnn", "pvt_small.ade20k_semantic_fpn"])
def test_published_detectors_and_segmenters_say_how_to_use_them(name, tmp_path):
    """Their task is built with the input size and the classes that they were published for."""
    record = ZOO[name]
    task = task_from_weights(tmp_path, described(record))
    assert task.preprocess == record.preprocess
    assert len(task.classes) == {"COCO": 80, "ADE20K": 150}[record.classes]
    assert task.name == {"retinanet": "detect", "mask_rcnn": "instances", "semantic_fpn": "segment"}[record.head]


def test_the_hubs_remarks_about_its_own_retries_are_not_printed(caplog):
    logger = logging.getLogger("huggingface_hub.utils")
    with source._quiet("huggingface_hub"):
        logger.warning("Retrying in 1s [Retry 1/5].")
    logger.warning("heard again")
    assert "Retrying" not in caplog.text
    assert "heard again" in caplog.text
