"""What `train` costs beside the steps themselves: an epoch on photos, and the same steps on batches that are already in memory.

One process, one training of several epochs; in front of each epoch but the first the bare loop runs the same batches, so that the two take
turns. An epoch through `train` counts everything up to the next one, its checkpoint too; there is no validation split. A number is the
median over the turns. Run on a quiet machine:

    GOMP_SPINCOUNT=2000 python benchmarks/loop.py PHOTOS --turns 3
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from pyramidvit.config import RunConfig
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.data.folders import ClassData, read_class_data
from pyramidvit.data.loader import EpochPlan, training_batches
from pyramidvit.engine import train
from pyramidvit.optim import param_groups
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.types import Batch


class BareLoop:
    """Mix, forward, loss, backward, optimiser step on batches that are there already."""

    def __init__(self, task: ClassifyTask, batches: list[Batch]) -> None:
        self.task, self.batches = task, batches
        self.model = task.model().train()
        self.optimizer = torch.optim.AdamW(param_groups(self.model, weight_decay=0.05), lr=1e-4, fused=True)

    def seconds(self) -> float:
        generator = torch.Generator().manual_seed(0)
        started = time.perf_counter()
        for batch in self.batches:
            batch = self.task.mix(batch, generator)
            torch.stack([*self.task.loss(self.model(batch.images), batch).values()]).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - started


class WatchedTask(ClassifyTask):
    """Notes when each epoch starts, and lets the bare loop run before it."""

    def watch(self, bare: BareLoop, steps: int) -> None:
        self.bare, self.steps, self.mixed, self.alone = bare, steps, 0, list[float]()
        self.starts, self.ends = list[float](), list[float]()

    def mix(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self.mixed % self.steps == 0:
            self.ends.append(time.perf_counter())
            if self.mixed:
                self.alone.append(self.bare.seconds())
            self.starts.append(time.perf_counter())
        self.mixed += 1
        return super().mix(batch, generator)


def shortened(data: ClassData, samples: int) -> ClassData:
    """A random part of the training photos and no others."""
    train = data.splits["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
    return ClassData(data.root, data.classes, {"train": tuple(train[i] for i in order[:samples]), "val": ()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    data = shortened(read_class_data(options.photos), options.samples)
    loop = {"batch_size": options.batch_size, "epochs": options.turns + 1, "device": "cpu"}
    config = RunConfig.model_validate({"model": {"name": options.model}, "loop": loop})
    samples = len(data.splits["train"])
    plan = EpochPlan(samples, options.batch_size, seed=0)
    task = WatchedTask(config, data.classes, data)
    batches = list(training_batches(task.dataset("train"), plan, start=0, stop=plan.batches_per_epoch))
    task.watch(BareLoop(ClassifyTask(config, data.classes, data), batches), plan.batches_per_epoch)
    with tempfile.TemporaryDirectory() as folder:
        train(task, config, RunFolder.create(Path(folder), "classify", "loop"), console=Console(file=io.StringIO()))
    task.ends.append(time.perf_counter())
    through = [end - start for start, end in zip(task.starts[1:], task.ends[2:], strict=True)]
    result = {
        "model": options.model,
        "samples": samples,
        "batch_size": options.batch_size,
        "threads": torch.get_num_threads(),
        "seconds_through_train": round(statistics.median(through), 2),
        "seconds_in_memory": round(statistics.median(task.alone), 2),
        "ratio": round(statistics.median(a / b for a, b in zip(through, task.alone, strict=True)), 3),
        "turns": [[round(a, 2), round(b, 2)] for a, b in zip(through, task.alone, strict=True)],
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
