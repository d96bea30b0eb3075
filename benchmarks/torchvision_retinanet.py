"""The alternative that a user would pick: torchvision's RetinaNet (ResNet-18, feature pyramid), from scratch, for a given time.

Pictures, views and numbers come from our readers, transforms and metric; network, losses and selection are torchvision's with its defaults.
AdamW with the learning rate, warm-up and fall of the small preset for detection, the schedule by the share of the time that is used up.
The network of the last step is measured on the validation split. Evaluation is not counted as training time. Run on a quiet machine:

    GOMP_SPINCOUNT=2000 python benchmarks/torchvision_retinanet.py CELLS --minutes 20 --out benchmarks/results/torchvision_retinanet.json
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from pyramidvit.config import RunConfig, resolve
from pyramidvit.config.presets import SMALL
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.data.loader import EpochPlan, evaluation_batches, training_batches
from pyramidvit.metrics import DetectionResult
from pyramidvit.optim import learning_rate, make_optimizer, scaled_lr, set_learning_rate
from pyramidvit.tasks.detect import DetectTask, objects_of
from pyramidvit.types import Batch, Detections

PARTS = 10_000
"""The schedule counts in these parts of the time."""


def settings(options: argparse.Namespace) -> RunConfig:
    """The small preset, with the sizes asked for. Pictures stay from 0 to 1, since torchvision's network normalises them."""
    own = {
        "task": "detect",
        "data": {"mean": (0.0,) * 3, "std": (1.0,) * 3, "on_bad_box": "fix"},
        "dense": {"short": options.short, "long": options.long, "flip_x": 0.5, "flip_y": 0.5, "distort": False},
        "loop": {"batch_size": options.batch_size, "seed": options.seed, "device": "cpu"},
    }
    return resolve(RunConfig.model_validate(own), preset=SMALL["detect"])[0]


def network(classes: int, options: argparse.Namespace) -> RetinaNet:
    """As `retinanet_resnet50_fpn` builds it, but on a smaller ResNet; every layer is trained, with batch normalisation."""
    torch.manual_seed(options.seed)
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    return RetinaNet(backbone, classes, min_size=options.short, max_size=options.long)


def pictures(batch: Batch) -> list[torch.Tensor]:
    """The pictures of a batch without its padding."""
    return [image[:, :height, :width] for image, (height, width) in zip(batch.images, batch.valid, strict=True)]


def train(model: RetinaNet, task: DetectTask, seconds: float) -> dict[str, Any]:
    """Steps until the time is used up."""
    optim, loop, dataset = task.config.optim, task.config.loop, task.dataset("train")
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) == many], "weight_decay": optim.weight_decay if many else 0.0}
        for many in (True, False)
    ]
    optimizer = make_optimizer(groups, optim)
    peak, warmup = scaled_lr(optim.lr, loop.batch_size, optim.reference_batch), round(PARTS * optim.warmup_epochs / loop.epochs)
    plan = EpochPlan(len(dataset), loop.batch_size, seed=loop.seed)
    model.train()
    started, steps, losses = time.perf_counter(), 0, [0.0]
    for batch in training_batches(dataset, plan, start=0, stop=1_000_000):
        used = (time.perf_counter() - started) / seconds
        if used >= 1:
            break
        at = {"total_steps": PARTS, "warmup_steps": warmup, "peak": peak, "warmup_lr": optim.warmup_lr, "min_lr": optim.min_lr}
        set_learning_rate(optimizer, learning_rate(int(PARTS * used), **at))
        targets = [{"boxes": target.boxes, "labels": target.labels} for target in objects_of(batch)]
        loss = torch.stack([*model(pictures(batch), targets).values()]).sum()
        loss.backward()
        if optim.clip_grad is not None:
            nn.utils.clip_grad_norm_(parameters, optim.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        losses.append(loss.item())
        if steps % 100 == 0:
            print(f"{time.perf_counter() - started:.0f} s, step {steps}, loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    taken = time.perf_counter() - started
    return {
        "steps": steps,
        "epochs": round(steps / plan.batches_per_epoch, 2),
        "seconds": round(taken, 1),
        "pictures_per_second": round(steps * loop.batch_size / taken, 2),
        "loss": round(sum(losses[-100:]) / len(losses[-100:]), 4),
    }


@torch.inference_mode()
def evaluate(model: RetinaNet, task: DetectTask) -> DetectionResult:
    """Our metric over the validation split."""
    model.eval()
    metric = task.metric()
    for batch in evaluation_batches(task.dataset("val"), 8):
        found: list[Detections] = []
        for one, path, inside, size in zip(model(pictures(batch)), batch.paths, batch.valid, batch.sizes, strict=True):
            y, x = size[0] / inside[0], size[1] / inside[1]
            boxes = one["boxes"] * torch.tensor((x, y, x, y))
            found.append(Detections(path, task.classes, size, boxes, one["labels"], one["scores"]))
        metric.update(found, objects_of(batch))
    return metric.compute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--short", type=int, default=256)
    parser.add_argument("--long", type=int, default=384)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    config = settings(options)
    data = DetectTask.read_data(options.data, config)
    task = DetectTask(config, data.classes, data)
    model = network(len(data.classes), options)
    result: dict[str, Any] = {
        "network": "torchvision RetinaNet, ResNet-18 with feature pyramid",
        "parameters": sum(p.numel() for p in model.parameters()),
        "size": [options.short, options.long],
        "batch_size": options.batch_size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
    result |= train(model, task, 60 * options.minutes)
    measured = evaluate(model, task)
    result |= {"n": measured.n, "box": measured.box.numbers, "ap50_per_class": {row.name: row.ap50 for row in measured.box.per_class}}
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
