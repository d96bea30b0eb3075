"""`pyramidvit demo`: draw a data set, train on it, measure on held-out pictures or clips, leave a run folder to look at."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from pyramidvit.config import AugmentConfig, ClipConfig, DenseConfig, HeadConfig, LoopConfig, ModelConfig, OptimConfig, RunConfig
from pyramidvit.config.sections import TaskName
from pyramidvit.data.dense_scenes import write_label_scenes, write_object_scenes
from pyramidvit.data.motion import OPPOSITE, write_motion
from pyramidvit.data.scenes import PILE_CLASSES, SCENE_CLASSES, write_scenes
from pyramidvit.engine import evaluate, train
from pyramidvit.metrics import ClassificationResult
from pyramidvit.predict import load
from pyramidvit.runs import RunFolder
from pyramidvit.tasks.table import TASKS, build_task
from pyramidvit.tasks.video import VideoTask
from pyramidvit.types import Section, Table
from pyramidvit.verbs import AT_LEAST_1, Seed
from pyramidvit.verbs.train import finish_run, start_run


@dataclass(frozen=True)
class Demo:
    """What is drawn, and what is trained on it: small pictures, mild augmentation, few epochs, as a CPU can do in minutes."""

    write: Callable[..., None]
    classes: int
    size: tuple[int, int]
    pictures: int
    settings: RunConfig


_SMALL = ModelConfig(drop_path_rate=0.0)
DEMOS: dict[TaskName, Demo] = {
    "classify": Demo(
        write_scenes,
        len(SCENE_CLASSES),
        (64, 64),
        6000,
        RunConfig(
            model=_SMALL,
            augment=AugmentConfig(
                size=(64, 64), crop=1.0, crop_scale=(0.8, 1.0), rand_ops=0, erasing=0.0, mixup=0.0, cutmix=0.0, smoothing=0.0
            ),
            optim=OptimConfig(lr=1e-3, reference_batch=32, warmup_epochs=1),
            loop=LoopConfig(epochs=5, batch_size=32),
        ),
    ),
    "segment": Demo(
        write_label_scenes,
        len(PILE_CLASSES),
        (96, 96),
        3000,
        RunConfig(
            task="segment",
            model=_SMALL,
            head=HeadConfig(preset="small"),
            dense=DenseConfig(resize="fixed", input_size=(96, 96)),
            optim=OptimConfig(lr=8e-4, reference_batch=8, warmup_epochs=0.5, clip_grad=1.0),
            loop=LoopConfig(epochs=5, batch_size=8, eval_every=5, ema_decay=0.99),
        ),
    ),
    "detect": Demo(
        write_object_scenes,
        len(PILE_CLASSES),
        (96, 96),
        2000,
        RunConfig(
            task="detect",
            model=_SMALL,
            head=HeadConfig(preset="small", strides=(8, 16, 32), anchor_scale=2.4),
            dense=DenseConfig(resize="fixed", input_size=(96, 96)),
            optim=OptimConfig(lr=1e-3, reference_batch=8, warmup_epochs=0.5, clip_grad=10.0),
            loop=LoopConfig(epochs=6, batch_size=8, eval_every=3, ema_decay=0.99),
        ),
    ),
    "instances": Demo(
        write_object_scenes,
        len(PILE_CLASSES),
        (96, 96),
        1200,
        RunConfig(
            task="instances",
            model=_SMALL,
            head=HeadConfig(preset="small", strides=(4, 8, 16, 32), anchor_scale=4.0, samples=32),
            dense=DenseConfig(resize="fixed", input_size=(96, 96)),
            optim=OptimConfig(lr=1e-3, reference_batch=8, warmup_epochs=0.5, clip_grad=10.0),
            loop=LoopConfig(epochs=5, batch_size=8, eval_every=5, ema_decay=0.99),
        ),
    ),
    "video": Demo(
        write_motion,
        len(OPPOSITE),
        (64, 64),
        6000,
        RunConfig(
            task="video",
            model=ModelConfig(name="mvit_mini_8x2", drop_path_rate=0.0),
            clip=ClipConfig(frames=8, stride=2, fps=10),  # all of a clip: 16 frames at 10 per second
            augment=AugmentConfig(
                size=(64, 64),
                crop=1.0,
                crop_scale=(1.0, 1.0),
                crop_ratio=(1.0, 1.0),
                hflip=0.0,  # it would turn left into right
                rand_ops=0,
                erasing=0.0,
                mixup=0.0,
                cutmix=0.0,
                smoothing=0.0,
            ),
            optim=OptimConfig(lr=6e-4, reference_batch=16, warmup_epochs=0.5, clip_grad=1.0),
            loop=LoopConfig(epochs=5, batch_size=16, eval_every=5, ema_decay=0.99),
        ),
    ),
}


def demo(
    *,
    task: TaskName = "classify",
    runs: Path = Path("runs"),
    train_pictures: Annotated[int | None, Parameter(validator=Number(gte=8 * len(SCENE_CLASSES)), show_default=False)] = None,
    epochs: Annotated[int | None, AT_LEAST_1] = None,
    seed: Seed = 0,
) -> int:
    """Draw pictures or clips, train a small network on them, show the result: minutes on a CPU, no internet.

    Args:
        task: What is learned.
        runs: Folder for run folders.
        train_pictures: Pictures or clips to draw for training; an eighth as many more are held out.
        epochs: Passes over them.
        seed: Seed of the drawing and the training.
    """
    console = Console(highlight=False)
    chosen = DEMOS[task]
    count = train_pictures or chosen.pictures
    loop = chosen.settings.loop.model_copy(update={"seed": seed, "epochs": epochs or chosen.settings.loop.epochs})
    config = chosen.settings.model_copy(update={"loop": loop})
    run = RunFolder.create(runs, config.task, model="demo")
    console.print(f"Drawing {count} {TASKS[task].things} of {chosen.classes} classes to train on, and {count // 8} held out")
    chosen.write(run.path / "data", train=count, val=count // 8, size=chosen.size, seed=seed)
    learned = build_task(config, run.path / "data")
    start_run(run, learned, {}, console)
    result = train(learned, config, run, console=console)
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    sections = (without_time(run, learned, console),) if isinstance(learned, VideoTask) else ()
    finish_run(run, learned, result, {}, console, sections)
    console.print(f"Look at {run.report} and {run.predictions}")
    return 0


def without_time(run: RunFolder, task: VideoTask, console: Console) -> Section:
    """The best weights on held-out clips as they are, and with the frames of each in random order: is time used?"""
    model = load(run.path, device=task.config.loop.device).model
    rows: list[tuple[str, float, float]] = []
    for what, shown in (("as they are", task), ("in random order", task.changed(shuffle_frames=True))):
        result = evaluate(shown, model, shown.dataset("val"), config=shown.config).result
        assert isinstance(result, ClassificationResult)
        rows.append((what, 100 * result.top1, 100 * _right_axis(result)))
        console.print(f"Frames {what}: top-1 {rows[-1][1]:.1f}%, the axis of motion right in {rows[-1][2]:.1f}%")
    text = (
        "The class of these clips is only in their motion, and a clip played backwards is of the opposite class. In random order, frames "
        "still show along which axis something moves, but not which way: half of these answers can be right by chance."
    )
    return Section("Is time used?", text, (Table(("Frames", "Top-1 %", "Axis of motion right %"), tuple(rows)),))


def _right_axis(result: ClassificationResult) -> float:
    """Share of clips that are taken for their class or its opposite."""
    place = {name: number for number, name in enumerate(result.classes)}
    pairs = ((place[name], place[other]) for name in result.classes for other in (name, OPPOSITE[name]))
    return sum(int(result.confusion[true, predicted]) for true, predicted in pairs) / result.n
