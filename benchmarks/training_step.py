"""Where the time of a training step goes, ours beside the other implementation's, and what torch.compile makes of it.

Forward and backward with the same weights, without optimiser: `pvt_v2_b1` beside timm, `pvt_small` beside Transformers, MViT v2 beside
torchvision, and the published RetinaNet on `pvt_v2_b0` beside torchvision's feature pyramid and RetinaNet over the same maps. The sides
take turns in one process after warm-up; a number is the median. A profile of three further steps tells the kinds of work. Run on a quiet
machine:

    GOMP_SPINCOUNT=20000 python benchmarks/training_step.py --out benchmarks/results/training_step.json
"""

import argparse
import json
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from backbones import Peer, ours
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.retinanet import RetinaNet as TheirRetinaNet
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from pyramidvit import create_model
from pyramidvit.bench.measure import Contestant, Named, Step, busy_machine, busy_share, take_turns
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.models import retinanet
from pyramidvit.types import BoxTarget

KINDS = {
    "matrix products": ("linear", "mm", "addmm", "bmm", "baddbmm"),
    "convolutions": ("convolution",),
    "attention": ("attention", "flash", "softmax"),
    "normalisation": ("norm",),
    "activations": ("gelu", "relu", "sigmoid"),
    "copies": ("copy_", "cat", "clone", "fill_", "zero_"),
    "sums and products of elements": ("add", "sub", "mul", "div", "sum", "mean", "pow"),
}
"""What is called → parts of the names of torch's operators; the first kind that fits counts."""
OBJECTS = 20


def kind_of(operator: str) -> str:
    name = operator.removeprefix("aten::").removeprefix("mkldnn::").lstrip("_")
    words = name.replace("_backward", "").split("_")
    for kind, parts in KINDS.items():
        if any(part == name or part in words or (len(part) > 4 and part in name) for part in parts):
            return kind
    return "other"


def shares(step: Step) -> dict[str, float]:
    """Share of each kind of work in the time that operators take themselves."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(3):
            step()
    total: dict[str, float] = {}
    for event in seen.key_averages():
        if event.key.startswith(("aten::", "mkldnn::")):
            kind = kind_of(event.key)
            total[kind] = total.get(kind, 0.0) + event.self_cpu_time_total
    everything = sum(total.values())
    return {kind: round(part / everything, 3) for kind, part in sorted(total.items(), key=lambda item: -item[1])}


def networks(name: str, size: int, batch: int) -> dict[str, Callable[[], Step]]:
    """Ways to train a network: the other library's, ours, ours compiled."""
    peer, shape = Peer(name, size), Named(name).shape((size, size), batch)
    mine = partial(ours, peer)
    return {
        peer.library: Contestant("theirs", peer, shape, train=True).step,
        "ours": Contestant("ours", mine, shape, train=True).step,
        "ours, compiled": Contestant("ours", mine, shape, "compile", train=True).step,
    }


def detectors(size: int, batch: int) -> dict[str, Callable[[], Step]]:
    """The same for RetinaNet with 256 channels and four convolutions, 80 classes and 20 objects a picture."""
    torch.manual_seed(0)
    images = torch.rand(batch, 3, size, size)
    corners = torch.rand(batch, OBJECTS, 2) * size * 0.7
    boxes = torch.cat([corners, corners + size * (0.05 + 0.2 * torch.rand(batch, OBJECTS, 2))], -1)
    labels = torch.randint(80, (batch, OBJECTS))

    def own(*, compile: bool) -> Step:
        model = create_model("pvt_v2_b0", head="retinanet", num_classes=80)
        network = torch.compile(model, dynamic=False) if compile else model
        targets = [BoxTarget(some, classes) for some, classes in zip(boxes, labels, strict=True)]
        return partial(learn, model, lambda: retinanet.losses(network(images), targets, [(size, size)] * batch))

    def other() -> Step:
        model = TheirRetinaNet(
            Pyramid(),
            80,
            min_size=size,
            max_size=size,
            anchor_generator=AnchorGenerator(
                tuple((x, int(x * 2 ** (1 / 3)), int(x * 2 ** (2 / 3))) for x in (32, 64, 128, 256, 512)), ((0.5, 1.0, 2.0),) * 5
            ),
        )
        targets = [{"boxes": some, "labels": classes} for some, classes in zip(boxes, labels, strict=True)]
        return partial(learn, model, lambda: model([*images], targets))

    return {"torchvision": other, "ours": partial(own, compile=False), "ours, compiled": partial(own, compile=True)}


class Pyramid(nn.Module):
    """torchvision's feature pyramid over the three coarser maps of our network."""

    out_channels = 256

    def __init__(self) -> None:
        super().__init__()
        self.backbone = create_model("pvt_v2_b0", features_only=True, out_indices=(1, 2, 3))
        widths = [info.channels for info in self.backbone.feature_info]
        self.fpn = FeaturePyramidNetwork(widths, self.out_channels, LastLevelP6P7(self.out_channels, self.out_channels))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        return self.fpn(OrderedDict((str(number), x) for number, x in enumerate(self.backbone(images))))


def learn(model: nn.Module, losses: Callable[[], dict[str, Tensor]]) -> None:
    model.train()
    torch.stack(list(losses().values())).sum().backward()
    model.zero_grad(set_to_none=True)


def measure(name: str, ways: dict[str, Callable[[], Step]], turns: int) -> dict[str, Any]:
    steps = {way: build() for way, build in ways.items()}
    seconds = dict(zip(steps, map(median, take_turns(list(steps.values()), turns, warm_up=2)), strict=True))
    theirs = seconds[next(iter(ways))]
    return {
        "name": name,
        "seconds": seconds,
        "ratio": {way: theirs / value for way, value in seconds.items()},
        "shares": {way: shares(step) for way, step in steps.items() if "compiled" not in way},
    }


CASES: dict[str, Callable[[], dict[str, Callable[[], Step]]]] = {
    "pvt_v2_b1": partial(networks, "pvt_v2_b1", 224, 8),
    "pvt_small": partial(networks, "pvt_small", 224, 8),
    "mvitv2_small_16x4": partial(networks, "mvitv2_small_16x4", 224, 1),
    "retinanet": partial(detectors, 320, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for name in options.names:
        print(*busy_machine(busy_share()), sep="\n")
        rows.append(measure(name, CASES[name](), options.turns))
        print(json.dumps(rows[-1], indent=1), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(
                json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
