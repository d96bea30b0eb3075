"""`pyramidvit convert`, there and back, through files."""

import pytest
import torch
from safetensors.torch import load_file

import pyramidvit
from pyramidvit import create_model
from pyramidvit.cli import main
from pyramidvit.config import ModelConfig, RunConfig
from pyramidvit.optim import Ema
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.weights import load, read, save
from pyramidvit.weights.layouts import to_library


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


@pytest.fixture
def official(tmp_path):
    """A checkpoint as the official training program writes it: values without a pattern, wrapped."""
    torch.manual_seed(0)
    tensors = to_library(create_model("pvt_v2_b0", num_classes=7, in_chans=4).state_dict(), "official").tensors
    torch.save({"model": tensors, "epoch": 3, "args": {"lr": 0.1}}, tmp_path / "b0.pth")
    return tmp_path / "b0.pth", tensors


@pytest.mark.slow
def test_there_and_back_bit_for_bit(official, tmp_path, capsys):
    """Name, classes and channels are found out from the file."""
    source, tensors = official
    assert run("convert", source, tmp_path / "ours.safetensors") == 0
    assert "b0.pth: pvt_v2_b0, 178 of 178 tensors loaded as they are (official PVT v2 layout" in capsys.readouterr().out
    report = load(create_model("pvt_v2_b0", num_classes=7, in_chans=4), read(tmp_path / "ours.safetensors")[0])
    assert (report.layout, report.loaded, report.patch_eps) == ("own", 178, 1e-5)
    assert run("convert", tmp_path / "ours.safetensors", tmp_path / "timm.safetensors", "--layout", "timm") == 0
    assert "patch_embed.proj.weight" in load_file(tmp_path / "timm.safetensors")
    assert run("convert", tmp_path / "timm.safetensors", tmp_path / "back.pth", "--layout", "official") == 0
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[key], tensors[key]) for key in tensors)


@pytest.mark.slow
def test_files_of_libraries_that_wrap_their_tensors(official, tmp_path, capsys):
    source, _ = official
    assert run("convert", source, tmp_path / "mm.pth", "--layout", "mmdet", "--other-eps") == 0
    assert "2 left out, having no place in the mmdet layout: head.weight, head.bias" in capsys.readouterr().out
    assert list(torch.load(tmp_path / "mm.pth", weights_only=True)) == ["state_dict"]
    assert run("convert", tmp_path / "mm.pth", tmp_path / "bare.safetensors") == 0
    assert load(create_model("pvt_v2_b0", features_only=True, in_chans=4), read(tmp_path / "bare.safetensors")[0]).patch_eps == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("head", ["retinanet", "semantic_fpn"])
def test_detectors_and_segmenters_keep_their_heads(tmp_path, head):
    torch.manual_seed(0)
    model = create_model("pvt_v2_b0", head=head, num_classes=3)
    model.backbone.set_extra_state(torch.tensor(1e-6, dtype=torch.float64))
    torch.save({"state_dict": to_library(model.state_dict(), "mmdet").tensors, "meta": {}}, tmp_path / "mm.pth")
    assert run("convert", tmp_path / "mm.pth", tmp_path / "ours.safetensors") == 0
    again = create_model("pvt_v2_b0", head=head, num_classes=3)
    load(again, read(tmp_path / "ours.safetensors")[0])
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
def test_mistakes(official, tmp_path, capsys):
    source, _ = official
    for arguments, message in [
        ((tmp_path / "o.pth",), "our weights are .safetensors files"),
        ((source, "--layout", "timm"), "nothing is overwritten"),
        ((tmp_path / "o.pth", "--layout", "transformers"), "--other-eps"),
        ((tmp_path / "o.pth", "--layout", "tim"), "did you mean timm"),
        ((tmp_path / "o.safetensors", "--model", "pvt_v2_b1"), "looks like pvt_v2_b0"),
    ]:
        assert run("convert", source, *arguments) == 2
        assert message in capsys.readouterr().err
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "else.pth")
    assert run("convert", tmp_path / "else.pth", tmp_path / "o.safetensors") == 2
    assert "its names are those of no network that is known here" in capsys.readouterr().err


def test_a_predictor_and_a_checkpoint_keep_the_epsilon(tmp_path):
    """Weights that MMDetection or Transformers trained go on with their 1e-6 after training here, in files and in copies."""
    task = ClassifyTask(RunConfig(model=ModelConfig(name="pvt_v2_b0")), ("cat", "dog"))
    model = task.model()
    load(model, to_library(task.model().state_dict(), "transformers", other_eps=True).tensors)
    file = tmp_path / "best.safetensors"
    save(file, Ema(model, 0.5).model.state_dict(), task.weights_meta({}))
    predictor = pyramidvit.load(file, device="cpu")
    norms = {module.eps for name, module in predictor.model.named_modules() if name.endswith(("patch_norm", "attn.norm"))}
    assert norms == {1e-6}
