"""Settings that were given and that the task has no use for: refused before anything is done, with those that it has."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pyramidvit.config import HeadConfig, RunConfig, Section
from pyramidvit.errors import UserError
from pyramidvit.tasks.heads import HEADS

_PICTURES = frozenset(("classify", "segment", "detect", "instances"))
_DENSE = _PICTURES - {"classify"}
_WHOLE = frozenset(("classify", "video"))
_USED_BY = {
    "augment": _WHOLE,
    "dense": _DENSE,
    "clip": frozenset(("video",)),
    "augment.repeats": _PICTURES | {"video"},
    "data.on_bad_box": frozenset(("detect", "instances")),
    "data.class_names": frozenset(("segment",)),
    "data.mask_map": frozenset(("segment",)),
    "data.reduce_zero_label": frozenset(("segment",)),
    "optim.class_weights": _WHOLE,
}
"""Section, or setting → the tasks that read it; what is not here, all read."""


def refuse_unused(config: RunConfig) -> None:
    """UserError for settings, other than by default, that the task does not read."""
    task = config.task
    wrong = [name for name in _changed(config) if not _used(name, task)]
    if not wrong:
        return
    has = ""
    if wrong[0].startswith("head."):
        known = [_flag(name) for key in HeadConfig.model_fields if _used(name := f"head.{key}", task)]
        has = f" Its head has {', '.join(known)}." if known else " It has no such head."
    raise UserError(
        f"The task {task} makes no use of {', '.join(f'{_flag(name)} ({name})' for name in wrong[:8])}"
        f"{' …' if len(wrong) > 8 else ''}: leave {'it' if len(wrong) == 1 else 'them'} out, or choose another --task.{has}"
    )


def _changed(config: RunConfig) -> Iterator[str]:
    for section, group in config:
        if isinstance(group, Section):
            default: Any = type(group)()
            yield from (f"{section}.{name}" for name, value in group if value != getattr(default, name))


def _used(name: str, task: str) -> bool:
    section, _, key = name.partition(".")
    if section == "head":
        configs = HEADS.get(task, ())
        return bool(configs) if key == "preset" else any(key == field.name for config in configs for field in fields(config))
    return task in _USED_BY.get(name, _USED_BY.get(section, {task}))


def _flag(name: str) -> str:
    """What it is called on the command line."""
    key = name.partition(".")[2]
    return "--head-preset" if name == "head.preset" else f"--{key.replace('_', '-')}"
