"""Our network and timm's, trained by the same loop from the same weights on the same batches: do they learn alike?

    python benchmarks/training.py PHOTOS --size 128x128 --epochs 15 --seeds 0 1 --out benchmarks/results/training.json

Held-out accuracy of the last epoch's weights; both sides differ in rounding (and in where drop path draws), so small differences are noise.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from torch import Tensor, nn

from pyramidvit.config import RunConfig
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.data.folders import read_class_data
from pyramidvit.engine import train
from pyramidvit.models import Classifier
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.weights.layouts import to_library


class TimmClassifier(nn.Module):
    """timm's network behind what the loop asks of a model."""

    num_depths = 1

    def __init__(self, ours: Classifier, name: str, drop_path_rate: float) -> None:
        super().__init__()
        self.net = timm.create_model(name, num_classes=ours.head.out_features, drop_path_rate=drop_path_rate)
        self.net.load_state_dict(to_library(ours.state_dict(), "timm").tensors)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def depth_of(self, parameter: str) -> int:  # noqa: ARG002
        return 0

    def stage_of(self, parameter: str) -> int:  # noqa: ARG002
        return 0


class TimmTask(ClassifyTask):
    def model(self) -> Any:
        return TimmClassifier(super().model(), self.config.model.name, self.config.model.drop_path_rate or 0.0)


def learn(side: type[ClassifyTask], config: RunConfig, data_folder: Path) -> dict[str, Any]:
    """One run in a folder of its own; the last weights on the held-out split."""
    data = read_class_data(data_folder)
    task = side(config, data.classes, data)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder), "classify", "run")
        started = time.perf_counter()
        train(task, config, run, console=Console())
        seconds = time.perf_counter() - started
        rows = run.read_metrics()
    return {"top1": rows[-1]["val_top1"], "loss": rows[-1]["val_loss"], "train_loss": rows[-1]["train_loss"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    keep_freed_memory()
    results: list[dict[str, Any]] = []
    for seed in args.seeds:
        for name, side in (("ours", ClassifyTask), ("timm", TimmTask)):
            settings = {
                "model": {"name": args.model, "drop_path_rate": 0.1},
                "augment": {"size": args.size, "mixup": 0.0, "cutmix": 0.0},
                "optim": {"lr": 1e-3, "reference_batch": 32},
                "loop": {"epochs": args.epochs, "seed": seed, "threads": args.threads, "device": "cpu", "eval_every": args.epochs},
            }
            results.append({"side": name, "seed": seed} | learn(side, RunConfig.model_validate(settings), args.data))
            print(results[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"torch": torch.__version__, "timm": timm.__version__, "model": args.model, "size": args.size, "epochs": args.epochs}
        args.out.write_text(json.dumps(about | {"rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
