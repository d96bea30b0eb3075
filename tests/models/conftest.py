"""The official outputs, and networks that are quick to fill."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pyramidvit import create_model
from pyramidvit.models import Classifier
from pyramidvit.weights import load


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Networks in these tests are too small to gain from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _relative(got: Tensor, want: Tensor) -> float:
    """Largest difference, in standard deviations of what is wanted."""
    return ((got - want).abs().max() / want.std(correction=0)).item()


@pytest.fixture(scope="session")
def relative() -> Callable[[Tensor, Tensor], float]:
    return _relative


class Golden:
    """Cases, keys, outputs and the weight generator of the official code."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.deterministic = importlib.import_module("deterministic")
        sys.path.remove(str(folder))
        self.folder = folder
        self.cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text())["cases"]}
        self.keys = json.loads((folder / "keys.json").read_text())

    def weights(self, keys: str) -> dict[str, Tensor]:
        return {key: self.deterministic.tensor(key, tuple(shape)) for key, shape in self.keys[keys].items()}

    def check(self, case_name: str, layout: str) -> None:
        """Load the official weights by their own names, run the case, and compare logits and embedding, or every map."""
        case = self.cases[case_name]
        if case["kind"] == "classify":
            net = create_model(case["model"], num_classes=case["outputs"]["logits"][1]).eval()
        else:
            net = create_model(case["model"], features_only=True).eval()
        assert load(net, self.weights(case["keys"])).layout == layout
        prefix = case_name + "/"
        stored = load_file(self.folder / case["file"])
        want = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
        x = self.deterministic.image(tuple(case["input"]["shape"]), case["input"]["seed"])
        with torch.inference_mode():
            if isinstance(net, Classifier):
                assert _relative(net(x), want["logits"]) < 2e-5
                assert _relative(net.backbone.embed(x), want["features"]) < 2e-5
            else:
                for i, got in enumerate(net(x), 1):
                    assert list(got.shape) == case["outputs"][f"map{i}"]
                    assert _relative(got.flatten()[want[f"map{i}.index"].long()], want[f"map{i}.values"]) < 2e-5


@pytest.fixture(scope="session")
def golden(shared) -> Golden:
    return Golden(shared / "golden")


@pytest.fixture(scope="session")
def randomise() -> Callable[[nn.Module], None]:
    """Biases and norms away from 0 and 1, tables away from 0, so that none can be forgotten unseen."""

    def fill(model: nn.Module) -> None:
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, 1.0 if "norm" in key and key.endswith("weight") else 0.0, 0.1)
            elif not key.endswith("weight"):
                nn.init.normal_(parameter, 0.0, 0.2)

    return fill


@pytest.fixture(scope="session")
def quick() -> Callable[[Callable[[], nn.Module]], nn.Module]:
    """Builds without the slow published initialisation: the same distributions, from one repeated run of random numbers."""
    noise = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0))

    def build(make: Callable[[], nn.Module]) -> nn.Module:
        with torch.device("meta"):
            model = make()
        model = model.to_empty(device="cpu")
        for i, (key, parameter) in enumerate(model.named_parameters()):
            run = noise.roll(4099 * i).repeat(-(-parameter.numel() // len(noise)))[: parameter.numel()].view(parameter.shape)
            norm = parameter.ndim == 1 and "norm" in key and key.endswith("weight")
            parameter.data.copy_(1 + 0.1 * run if norm else 0.02 * run)
        return model

    return build
