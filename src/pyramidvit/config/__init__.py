"""Everything a run can be told, in one place, and where each setting came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pyramidvit.config.base import Section, Several, Size, parse_size, show_size
from pyramidvit.config.sections import (
    AugmentConfig,
    ClipConfig,
    DataConfig,
    DenseConfig,
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
)
from pyramidvit.errors import UserError, nearest

__all__ = [
    "AugmentConfig",
    "ClipConfig",
    "DataConfig",
    "DenseConfig",
    "HeadConfig",
    "LoopConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "Section",
    "Several",
    "Size",
    "Sources",
    "parse_size",
    "read_sources",
    "read_yaml",
    "resolve",
    "show_size",
    "to_yaml",
    "validate",
]

Sources = dict[str, str]
"""Where each setting that is not a default came from, by dotted name: ``optim.lr`` → ``command line``."""


def resolve(given: RunConfig | None = None, file: Path | None = None, preset: Mapping[str, Any] | None = None) -> tuple[RunConfig, Sources]:
    """Merge defaults, a preset, a YAML file and what was given explicitly, in rising order of precedence."""
    layers: list[tuple[str, RunConfig]] = []
    if preset:
        layers.append(("preset", validate(preset, "the preset")))
    if file is not None:
        layers.append((file.name, validate(read_yaml(file), str(file))))
    if given is not None:
        layers.append(("command line", given))
    merged: dict[str, Any] = {}
    sources: Sources = {}
    for source, settings in layers:
        for section, values in settings.model_dump(exclude_unset=True).items():
            if isinstance(values, dict):
                group = cast(dict[str, Any], values)
                merged.setdefault(section, {}).update(group)
                sources.update({f"{section}.{key}": source for key in group})
            else:
                merged[section] = values
                sources[section] = source
    return validate(merged, str(file or "the command line")), sources


def validate(settings: Mapping[str, Any], where: str) -> RunConfig:
    """Settings as plain data → RunConfig, or a UserError that lists every wrong key and value."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}, got {e['input']!r}{_meant(e)}" for e in error.errors()]
        raise UserError(f"Settings from {where} are wrong:\n" + "\n".join(lines)) from None


def _meant(error: ErrorDetails) -> str:
    """The settings that an unknown one may stand for: of the same name in another section, else of a similar one."""
    if error["type"] != "extra_forbidden":
        return ""
    *section, key = map(str, error["loc"])
    groups = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    known = {f"{name}.{inner}": inner for name, group in groups.items() for inner in getattr(group, "model_fields", ())}
    same = [full for full, inner in known.items() if inner == key]
    near = nearest(key, [inner for full, inner in known.items() if full.split(".")[:-1] == section] if section else groups)
    close = same or [".".join((*section, name)) for name in near]
    return f"; did you mean {' or '.join(close)}?" if close else ""


class _OnceOnly(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file, read without executing anything. UserError for a key that stands there twice, and for an empty file."""
    try:
        content: Any = _OnceOnly(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"Can't read settings from {path}: {error}") from None
    if content is None:
        raise UserError(f"{path} holds no settings: leave it out, or write sections such as 'optim:' with settings below them.")
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold sections such as 'optim:' with settings below them, got {type(content).__name__}.")
    return content  # pyright: ignore[reportUnknownVariableType]


def read_sources(path: Path) -> Sources:
    """Where the settings in a file that ``to_yaml`` wrote came from."""
    sources: Sources = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.strip().partition(":")
        if not line.startswith(" "):
            section = name
        elif (source := rest.rpartition("  # ")[2]) != "default":
            sources[f"{section}.{name}"] = source
    return sources


def to_yaml(config: RunConfig, sources: Sources) -> str:
    """The resolved settings as YAML, each with its help above it and its source behind it."""
    lines = [f"task: {config.task}"]
    for section_name in ("data", "model", "head", "augment", "dense", "clip", "optim", "loop"):
        section: Section = getattr(config, section_name)
        lines.append(f"{section_name}:")
        for key, value in section.model_dump(mode="json").items():
            text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
            lines.append(f"  {key}: {text}  # {sources.get(f'{section_name}.{key}', 'default')}")
    return "\n".join(lines) + "\n"
