"""`pyramidvit demo`: draw a data set, train on it, measure on held-out pictures, leave a run folder to look at."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from pyramidvit.config import AugmentConfig, DenseConfig, HeadConfig, LoopConfig, ModelConfig, OptimConfig, RunConfig
from pyramidvit.data.dense_scenes import write_label_scenes, write_object_scenes
from pyramidvit.data.scenes import SCENE_CLASSES, write_scenes
from pyramidvit.engine import train
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.table import build_task
from pyramidvit.verbs import AT_LEAST_1, Seed
from pyramidvit.verbs.train import finish_run, start_run


@dataclass(frozen=True)
class Demo:
    """What is drawn, and what is trained on it: small pictures, mild augmentation, few epochs, as a CPU can do in minutes."""

    write: Callable[..., None]
    size: tuple[int, int]
    pictures: int
    settings: RunConfig


DemoTask = Literal["classify", "segment", "detect", "instances"]
_SMALL = ModelConfig(drop_path_rate=0.0)
DEMOS: dict[DemoTask, Demo] = {
    "classify": Demo(
        write_scenes,
        (64, 64),
        6000,
        RunConfig(
            model=_SMALL,
            augment=AugmentConfig(
                size=(64, 64), crop=1.0, crop_scale=(0.8, 1.0), rand_ops=0, erasing=0.0, mixup=0.0, cutmix=0.0, smoothing=0.0
            ),
            optim=OptimConfig(lr=1e-3, reference_batch=32, warmup_epochs=1),
            loop=LoopConfig(epochs=6, batch_size=32),
        ),
    ),
    "segment": Demo(
        write_label_scenes,
        (128, 128),
        2000,
        RunConfig(
            task="segment",
            model=_SMALL,
            head=HeadConfig(preset="small"),
            dense=DenseConfig(resize="fixed", input_size=(128, 128)),
            optim=OptimConfig(lr=1e-3, reference_batch=16, warmup_epochs=0.5),
            loop=LoopConfig(epochs=6, batch_size=16, eval_every=3),
        ),
    ),
    "detect": Demo(
        write_object_scenes,
        (128, 128),
        2000,
        RunConfig(
            task="detect",
            model=_SMALL,
            head=HeadConfig(preset="small", strides=(8, 16, 32)),
            dense=DenseConfig(resize="fixed", input_size=(128, 128)),
            optim=OptimConfig(lr=1e-3, reference_batch=16, warmup_epochs=0.5, clip_grad=10.0),
            loop=LoopConfig(epochs=8, batch_size=16, eval_every=4),
        ),
    ),
    "instances": Demo(
        write_object_scenes,
        (128, 128),
        1500,
        RunConfig(
            task="instances",
            model=_SMALL,
            head=HeadConfig(preset="small", strides=(4, 8, 16, 32)),
            dense=DenseConfig(resize="fixed", input_size=(128, 128)),
            optim=OptimConfig(lr=1e-3, reference_batch=16, warmup_epochs=0.5, clip_grad=10.0),
            loop=LoopConfig(epochs=8, batch_size=16, eval_every=4),
        ),
    ),
}


def demo(
    *,
    task: DemoTask = "classify",
    runs: Path = Path("runs"),
    train_pictures: Annotated[int | None, Parameter(validator=Number(gte=8 * len(SCENE_CLASSES)), show_default=False)] = None,
    epochs: Annotated[int | None, AT_LEAST_1] = None,
    seed: Seed = 0,
) -> int:
    """Draw pictures, train a small PVT v2 on them, show the result: minutes on a CPU, no network.

    Args:
        task: What is learned.
        runs: Folder for run folders.
        train_pictures: Pictures to draw for training; an eighth as many more are held out.
        epochs: Passes over the pictures.
        seed: Seed of pictures and training.
    """
    console = Console(highlight=False)
    chosen = DEMOS[task]
    count = train_pictures or chosen.pictures
    loop = chosen.settings.loop.model_copy(update={"seed": seed, "epochs": epochs or chosen.settings.loop.epochs})
    config = chosen.settings.model_copy(update={"loop": loop})
    run = RunFolder.create(runs, config.task, model="demo")
    console.print(f"Drawing {count} pictures of {len(SCENE_CLASSES)} classes to train on, and {count // 8} held out")
    chosen.write(run.path / "data", train=count, val=count // 8, size=chosen.size, seed=seed)
    learned = build_task(config, run.path / "data")
    start_run(run, learned, {}, console)
    result = train(learned, config, run, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, learned, result, {}, console)
    console.print(f"Look at {run.report} and {run.predictions}")
    return 0
