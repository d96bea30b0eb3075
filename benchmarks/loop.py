"""What `train` costs beside the steps themselves: an epoch on photos, and the same steps on batches that are already in memory.

Both sides train the same network from the same weights on the same batches in one process, turn by turn; a number is the median over the
turns. Evaluation and the checkpoint are not part of an epoch here. Run on a quiet machine:

    python benchmarks/loop.py PHOTOS --steps 8 --turns 3
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
from pyramidvit.data.folders import read_class_data
from pyramidvit.data.loader import EpochPlan, training_batches
from pyramidvit.engine import train
from pyramidvit.optim import param_groups
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.types import Batch


def steps_in_memory(task: ClassifyTask, batches: list[Batch]) -> float:
    """Seconds for a bare loop: mix, forward, loss, backward, optimiser step."""
    torch.manual_seed(0)
    model = task.model().train()
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.05), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    started = time.perf_counter()
    for batch in batches:
        batch = task.mix(batch, generator)
        torch.stack([*task.loss(model(batch.images), batch).values()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - started


def epoch_of_train(task: ClassifyTask, config: RunConfig, samples: int) -> float:
    """Seconds for the same number of samples through `train`, reading and augmenting the photos."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder), "classify", "loop")
        result = train(task, config, run, console=Console(file=io.StringIO()))
    return samples / result.samples_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    data = read_class_data(options.photos)
    samples = min(options.steps * options.batch_size, len(data.splits["train"]))
    order = torch.randperm(len(data.splits["train"]), generator=torch.Generator().manual_seed(0)).tolist()
    data = type(data)(data.root, data.classes, {"train": tuple(data.splits["train"][i] for i in order[:samples]), "val": ()}, (), False)
    config = RunConfig.model_validate(
        {"model": {"name": options.model}, "loop": {"batch_size": options.batch_size, "epochs": 1, "device": "cpu"}}
    )
    task = ClassifyTask(config, data.classes, data)
    plan = EpochPlan(samples, options.batch_size, seed=0)
    batches = list(training_batches(task.dataset("train"), plan, start=0, stop=plan.batches_per_epoch))
    steps_in_memory(task, batches[:1])
    turns = [(epoch_of_train(task, config, samples), steps_in_memory(task, batches)) for _ in range(options.turns)]
    through, bare = (statistics.median(column) for column in zip(*turns, strict=True))
    result = {
        "model": options.model,
        "samples": samples,
        "batch_size": options.batch_size,
        "threads": torch.get_num_threads(),
        "seconds_through_train": round(through, 2),
        "seconds_in_memory": round(bare, 2),
        "ratio": round(statistics.median(a / b for a, b in turns), 3),
        "turns": [[round(a, 2), round(b, 2)] for a, b in turns],
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
