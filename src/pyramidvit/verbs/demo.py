"""`pyramidvit demo`: draw a data set, train on it, measure on held-out pictures, leave a run folder to look at."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from pyramidvit.config import AugmentConfig, LoopConfig, ModelConfig, OptimConfig, RunConfig
from pyramidvit.data.folders import read_class_data
from pyramidvit.data.scenes import SCENE_CLASSES, write_scenes
from pyramidvit.engine import train
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.verbs import AT_LEAST_1, Seed
from pyramidvit.verbs.train import finish_run, start_run

SIZE = (64, 64)

SETTINGS = RunConfig(
    model=ModelConfig(drop_path_rate=0.0),
    augment=AugmentConfig(size=SIZE, crop=1.0, crop_scale=(0.8, 1.0), rand_ops=0, erasing=0.0, mixup=0.0, cutmix=0.0, smoothing=0.0),
    optim=OptimConfig(lr=1e-3, reference_batch=32, warmup_epochs=1),
    loop=LoopConfig(epochs=6, batch_size=32),
)
"""Small pictures, mild augmentation, few epochs: what a CPU can do in minutes."""


def demo(
    *,
    runs: Path = Path("runs"),
    train_pictures: Annotated[int, Parameter(validator=Number(gte=8 * len(SCENE_CLASSES)))] = 6000,
    epochs: Annotated[int | None, AT_LEAST_1] = None,
    seed: Seed = 0,
) -> int:
    """Draw pictures, train a small PVT v2 on them, show the result: minutes on a CPU, no network.

    Args:
        runs: Folder for run folders.
        train_pictures: Pictures to draw for training; an eighth as many more are held out, at least one of each class.
        epochs: Passes over the pictures.
        seed: Seed of pictures and training.
    """
    console = Console(highlight=False)
    loop = SETTINGS.loop.model_copy(update={"seed": seed, "epochs": epochs or SETTINGS.loop.epochs})
    config = SETTINGS.model_copy(update={"loop": loop})
    run = RunFolder.create(runs, config.task, model="demo")
    folder = run.path / "data"
    console.print(f"Drawing {train_pictures} pictures of {len(SCENE_CLASSES)} classes to train on, and {train_pictures // 8} held out")
    write_scenes(folder, train=train_pictures, val=train_pictures // 8, size=SIZE, seed=seed)
    data = read_class_data(folder)
    task = ClassifyTask(config, data.classes, data)
    start_run(run, task, {}, console)
    result = train(task, config, run, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    finish_run(run, task, result, {}, console)
    console.print(f"Look at {run.report} and {run.predictions}")
    return 0
