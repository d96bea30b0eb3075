"""Every task by name, and the one that a weights file was trained for."""

from pathlib import Path
from typing import Any

from pyramidvit.config import RunConfig, validate
from pyramidvit.errors import UserError
from pyramidvit.tasks import Task
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.tasks.detect import DetectTask, InstancesTask
from pyramidvit.tasks.segment import SegmentTask
from pyramidvit.weights import WeightsMeta

TASKS: dict[str, type[Any]] = {task.name: task for task in (ClassifyTask, SegmentTask, DetectTask, InstancesTask)}
"""Name → class."""


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
    return TASKS[meta.head](config.model_copy(update={"model": config.model.model_copy(update={"weights": None})}), meta.classes)
