"""The folder of a run: ``runs/<task>/<name>/`` with everything that is needed to understand, continue and use it."""

import csv
import io
import json
import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pyramidvit import config as configs
from pyramidvit.config import RunConfig, Sources
from pyramidvit.errors import UserError
from pyramidvit.files import valid_text, write_text

FOLDERS = ("checkpoints", "weights", "plots", "predictions")
PACKAGES = ("pyramidvit", "torch", "torchvision", "accelerate", "numpy", "pillow", "safetensors")


def is_main_process() -> bool:
    """Whether this process writes: the only one, or the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run are; make one with `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, root: Path, task: str, name: str | None = None, *, model: str = "run") -> "RunFolder":
        """A new folder ``root/task/name``; without a name, ``<model>-<n>`` with the next free n.

        UserError when the name can't be a folder's, or the folder already holds something. Under torchrun, only the first process makes it.
        """
        if name is not None and not re.fullmatch(r"[\w][\w.+-]*", name):
            raise UserError(f"A run can't be called {name!r}: use letters, digits, '_', '-', '.' and '+', and no folder separators.")
        if name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("With several processes a run needs a name that all of them know: give --name.")
        parent = root / task
        run = cls(parent / (name or _next_name(parent, model.replace("/", "_"))))
        if not is_main_process():
            return run
        try:
            if run.path.is_dir() and any(run.path.iterdir()):
                raise UserError(f"{run.path} already holds a run or other files: give another --name, or continue it with --resume.")
        except OSError as error:
            raise UserError(f"Can't make the run folder {run.path}: {error.strerror}. Choose another folder for runs.") from None
        run.make_folders()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run, which may be read-only: nothing is written. UserError when the folder is missing or no run."""
        if not path.is_dir():
            raise UserError(f"There is no run folder {path}: expected one like runs/classify/pvt_v2_b0-1.")
        run = cls(path)
        if not run.config_file.is_file():
            inside = sorted(file.parent for file in path.glob("*/config.yaml")) + sorted(
                file.parent for file in path.glob("*/*/config.yaml")
            )
            hint = f" Did you mean {' or '.join(str(folder) for folder in inside[-3:])}?" if inside else ""
            raise UserError(f"{path} is no run folder: it has no config.yaml.{hint}")
        return run

    def make_folders(self) -> None:
        """The folders of a run, as far as they are missing. UserError when one can't be made, or a file is in its place."""
        for folder in FOLDERS:
            try:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"Can't make the run folder {self.path / folder}: {error.strerror}. "
                    "Remove what is in its place, or choose another folder for runs."
                ) from None

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def data_file(self) -> Path:
        return self.path / "data.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best_weights(self) -> Path:
        return self.path / "weights" / "best.safetensors"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def write_config(self, config: RunConfig, sources: Sources) -> None:
        """config.yaml: every setting, and where each value came from."""
        write_text(self.config_file, configs.to_yaml(config, sources))

    def read_config(self) -> RunConfig:
        """The settings of the run. UserError when config.yaml was changed into something wrong."""
        return configs.validate(configs.read_yaml(self.config_file), str(self.config_file))

    def read_sources(self) -> Sources:
        """Where each setting that is not a default came from, as config.yaml says."""
        return configs.read_sources(self.config_file)

    def write_env(self) -> None:
        """env.json: versions and hardware, no names of people, machines or folders."""
        _write_json(self.path / "env.json", environment())

    def write_data(self, content: Mapping[str, Any]) -> None:
        """data.json: fingerprint, class list and splits, as plain data with relative paths."""
        _write_json(self.data_file, content)

    def read_data(self) -> dict[str, Any]:
        """What `write_data` wrote. UserError when the file is missing or no JSON object."""
        try:
            content = json.loads(self.data_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"Can't read {self.data_file}: {error}. The run can't be continued without its data's record.") from None
        if not isinstance(content, dict):
            raise UserError(f"{self.data_file} must hold an object, got {type(content).__name__}.")
        return content

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """metrics.csv and metrics.jsonl: nothing but the rows, so that a resumed run writes the same bytes as an undisturbed one."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())
        write_text(self.metrics_file, "".join(json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in rows))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; none when the run has not finished an epoch. UserError when a line can't be read."""
        rows: list[dict[str, Any]] = []
        try:
            if self.metrics_file.exists():
                for line in self.metrics_file.read_bytes().splitlines():
                    rows.append(_object(line))
        except OSError as error:
            raise UserError(f"Can't read {self.metrics_file}: {error.strerror}.") from None
        except ValueError as error:
            raise UserError(
                f"{self.metrics_file}, line {len(rows) + 1}: expected a JSON object, as training writes one per epoch; {error}. "
                "Put the line right or remove it."
            ) from None
        return rows

    def log(self, message: str) -> None:
        """Add a line with the time to log.txt. UserError when it can't be written."""
        file = self.path / "log.txt"
        try:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {valid_text(message)}\n")
        except OSError as error:
            raise UserError(f"Can't write {file}: {error.strerror}. Free some space or make the folder writable.") from None

    def write_card(self, config: RunConfig, classes: Sequence[str], counts: Mapping[str, int], result: Mapping[str, Any]) -> None:
        """README.md, the model card. ``counts`` are samples per split, ``result`` is the plain data of the best evaluation."""
        numbers = [f"| {name} | {_number(value)} |" for name, value in result.items() if isinstance(value, int | float)]
        for name, value in result.items():
            if name.endswith("_interval"):
                interval = f"{_number(value['low'])} to {_number(value['high'])}"
                numbers.append(f"| {name.removesuffix('_interval')}, {value['level']:.0%} bootstrap interval | {interval} |")
        shown = ", ".join(f"`{name}`" for name in classes[:50]) + (f" and {len(classes) - 50} more" if len(classes) > 50 else "")
        start = f"weights `{Path(config.model.weights).name}`" if config.model.weights else "random weights"
        lines = [
            f"# {config.model.name} for {config.task}",
            "",
            f"Trained with pyramidvit {version('pyramidvit')} from {start}, {config.loop.epochs} epochs at most, seed {config.loop.seed}.",
            f"Input: {config.augment.size[0]}x{config.augment.size[1]} pixels, {config.data.in_chans} channels.",
            "",
            "## Data",
            "",
            *(f"- {split}: {count} samples" for split, count in counts.items()),
            f"- {len(classes)} classes: {shown}",
            "",
            "## Measured on the validation split",
            "",
            "The best epoch was chosen on the same samples, so new pictures may do a little worse.",
            "",
            "| number | value |",
            "|---|---|",
            *numbers,
            "",
            "## Use",
            "",
            "```",
            f"pyramidvit predict {shlex.quote(str(self.path))} photo.jpg",
            "```",
            "",
            "`config.yaml` holds every setting, `data.json` the splits, `metrics.csv` the course of training, `report.html` the pictures.",
        ]
        write_text(self.path / "README.md", "\n".join(lines) + "\n")


def environment() -> dict[str, Any]:
    """Versions of what computes, and on what hardware."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.processor()


def _next_name(parent: Path, model: str) -> str:
    taken = [int(match[1]) for path in parent.glob("*") if (match := re.fullmatch(re.escape(model) + r"-(\d+)", path.name))]
    return f"{model}-{max(taken, default=0) + 1}"


def _object(line: bytes) -> dict[str, Any]:
    content = json.loads(line)
    if not isinstance(content, dict):
        raise ValueError(f"got {type(content).__name__}")
    return content


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
