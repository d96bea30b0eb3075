"""Every task by name, and the one that a weights file was trained for."""

from itertools import islice
from pathlib import Path
from typing import Any

from pyramidvit.config import RunConfig, validate
from pyramidvit.data.boxes import find_annotations
from pyramidvit.data.clips import is_clip_data
from pyramidvit.data.folders import SUFFIXES
from pyramidvit.data.masks import has_masks
from pyramidvit.errors import UserError
from pyramidvit.tasks import Task
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.tasks.detect import DetectTask, InstancesTask
from pyramidvit.tasks.segment import SegmentTask
from pyramidvit.tasks.video import VideoTask
from pyramidvit.weights import WeightsMeta

TASKS: dict[str, type[Any]] = {task.name: task for task in (ClassifyTask, SegmentTask, DetectTask, InstancesTask, VideoTask)}
"""Name → class."""


def infer_task(data: Path) -> str:
    """What can be learned from a folder or file; UserError when that is more than one thing."""
    clips = data.exists() and is_clip_data(data)
    if data.is_file() and clips:
        return "video"
    if data.is_file():
        return "classify" if data.suffix.lower() == ".csv" else "detect"
    if not data.is_dir():
        return "classify"  # which says what is missing
    possible = ["segment"] if has_masks(data) else []
    annotations = find_annotations(data)
    if annotations is not None:
        objects = [one for split in annotations.splits.values() for picture in split.pictures for one in picture.objects]
        possible += ["detect", *(["instances"] if objects and all(one.shape is not None for one in objects) else [])]
    if clips:
        possible += ["video", *(["classify"] if not possible and _has_pictures(data) else [])]
    if len(possible) > 1:
        what = " or ".join(f"--task {name} ({TASKS[name].title.lower()})" for name in possible)
        raise UserError(f"{data} can teach several things; choose {what}.")
    return possible[0] if possible else "classify"


def _has_pictures(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES for path in islice(folder.rglob("*"), 10_000))


def build_task(config: RunConfig, root: Path) -> Task:
    """The task of the settings, with the data in a folder or file."""
    task = TASKS[config.task]
    data = task.read_data(root, config)
    return task(config, data.classes, data)


def task_from_weights(path: Path, meta: WeightsMeta) -> Task:
    """The task that a weights file was trained for, ready to build the model and predict."""
    if meta.head not in TASKS:
        raise UserError(f"{path} was trained to {meta.head}, which this version does not know.")
    config = validate(meta.config, str(path))
    # The weights come from the file itself, so those that training started from are not needed.
    task = TASKS[meta.head](config.model_copy(update={"model": config.model.model_copy(update={"weights": None})}), meta.classes)
    task.measured = meta.metrics
    return task
