"""Weights by a published name, from the cache to predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import pyramidvit
from pyramidvit import create_model
from pyramidvit.cli import main
from pyramidvit.config import RunConfig
from pyramidvit.errors import UserError
from pyramidvit.models import Classifier
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.weights.layouts import to_library
from pyramidvit.weights.source import obtain


@pytest.fixture(scope="module")
def network() -> Classifier:
    torch.manual_seed(0)
    return create_model("pvt_v2_b0").eval()


@pytest.fixture
def cache(network, tmp_path, monkeypatch) -> Path:
    """Holds a file as the authors publish it, with other values; the network is out of reach."""
    monkeypatch.setenv("PYRAMIDVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYRAMIDVIT_OFFLINE", "1")
    (tmp_path / "cache").mkdir()
    torch.save(to_library(network.state_dict(), "official").tensors, tmp_path / "cache" / "pvt_v2_b0.in1k.pth")
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("how", [{"pretrained": True}, {"weights": "pvt_v2_b0.in1k"}], ids=["pretrained", "name"])
def test_a_network_with_published_weights(network, how):
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(create_model("pvt_v2_b0", **how).eval()(x), network(x))
        maps = create_model("pvt_v2_b0", features_only=True, **how).eval()(x)
        assert all(torch.equal(got, want) for got, want in zip(maps, network.backbone(x), strict=True))


def test_pickled_files_of_others_by_their_path(network, cache):
    model = create_model("pvt_v2_b0", weights=cache / "pvt_v2_b0.in1k.pth")
    assert torch.equal(model.head.weight, network.head.weight)


@pytest.mark.usefixtures("cache")
def test_published_weights_predict_with_class_names_and_the_official_crop(tmp_path, capsys):
    predictor = pyramidvit.load("pvt_v2_b0.in1k", device="cpu")
    preprocess = predictor.task.preprocess
    assert (preprocess.size, preprocess.crop, preprocess.interpolation) == ((224, 224), 0.875, "bicubic")
    picture = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    scores = predictor(picture).prediction
    assert scores.classes[:2] == ("tench", "goldfish")
    assert len(scores.classes) == 1000
    Image.fromarray(picture).save(tmp_path / "photo.png")
    with pytest.raises(SystemExit) as code:
        main(["predict", "pvt_v2_b0.in1k", str(tmp_path / "photo.png"), "--json", "--device", "cpu"])
    assert code.value.code == 0
    assert json.loads(capsys.readouterr().out)["top"][0]["class"] == scores.top(1)[0][0]


@pytest.mark.usefixtures("cache")
def test_training_starts_from_published_weights(network):
    """PB-16: a stem tensor holds what the file holds, and the report counts the tensors."""
    config = RunConfig.model_validate({"model": {"name": "pvt_v2_b0", "weights": "pvt_v2_b0.in1k", "offline": True}})
    task = ClassifyTask(config, ("a", "b"))
    model = task.model()
    assert torch.equal(model.state_dict()["backbone.stages.0.patches.weight"], network.state_dict()["backbone.stages.0.patches.weight"])
    assert task.load_report is not None
    assert task.load_report.reset == ("head.weight", "head.bias")


@pytest.mark.usefixtures("cache")
def test_the_wrong_network_and_absent_files_are_refused():
    with pytest.raises(UserError, match="pvt_v2_b0"):
        create_model("pvt_v2_b1", weights="pvt_v2_b0.in1k")
    with pytest.raises(UserError, match=r"not in the cache.*pvt_v2_b1\.in1k\.pth"):
        create_model("pvt_v2_b1", pretrained=True)
    with pytest.raises(UserError, match="Nobody publishes"):
        create_model("mvit_small_16x4", pretrained=True)
    with pytest.raises(ValueError, match="two answers"):
        create_model("pvt_v2_b0", pretrained=True, weights="pvt_v2_b0.in1k")


def test_safetensors_keep_their_description_or_get_that_of_the_table(tmp_path, cache):
    assert obtain("pvt_v2_b0.in1k")[1] is not None
    save_file({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    assert obtain(tmp_path / "w.safetensors")[1] is None
    assert (cache / "pvt_v2_b0.in1k.pth.json").is_file(), "the hash of the first use"


@pytest.mark.parametrize("what", [[], ["pvt_v2_b0*"], ["--json"]], ids=["all", "some", "json"])
def test_published_weights_are_listed(capsys, what):
    with pytest.raises(SystemExit) as code:
        main(["weights", *what])
    out = capsys.readouterr().out
    assert code.value.code == 0
    assert "pvt_v2_b0.in1k" in out
    assert ("pvt_tiny.in1k" in out) == ("pvt_v2_b0*" not in what)
    if what == ["--json"]:
        first = json.loads(out)[0]
        assert {"name", "url", "classes", "numbers", "licence"} <= first.keys()


def test_a_pattern_that_matches_nothing_says_so(capsys):
    with pytest.raises(SystemExit) as code:
        main(["weights", "nothing*"])
    assert code.value.code == 2
    assert "No published weights match" in capsys.readouterr().err
