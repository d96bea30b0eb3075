"""report.html of a run: one file to read and to send, with its pictures inside and nothing that is fetched or executed."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pyramidvit.config import RunConfig, Sources
from pyramidvit.files import write_bytes
from pyramidvit.tasks import Headline
from pyramidvit.types import BadSample, Cell, Picture, Section, Table

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


@dataclass(frozen=True)
class ReportContent:
    """What a report says, whatever the task. ``facts`` are a few short (name, value) pairs shown under the headline, ``notes`` are
    sentences; ``skipped`` are files that were left out; sections follow in their order.
    """

    title: str
    task: str
    model: str
    headline: Headline | None = None
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[BadSample, ...] = ()
    sections: tuple[Section, ...] = ()


def write_report(run_folder: Path, content: ReportContent) -> Path:
    """Write report.html into the folder and return its path."""
    path = run_folder / "report.html"
    write_bytes(path, render_report(content).encode("utf-8", "replace"))  # file names may hold bytes that are no text
    return path


def render_report(content: ReportContent) -> str:
    """The page as text; every string of the content is escaped."""
    environment = Environment(
        loader=PackageLoader("pyramidvit"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(source=_source, percent=_percent, formatted=_formatted)
    sections = list(content.sections)
    if content.skipped:
        rows = tuple((bad.path, bad.reason) for bad in content.skipped)
        text = (
            f"{len(rows)} {'file was' if len(rows) == 1 else 'files were'} left out because reading failed; no other file took their place."
        )
        sections.insert(0, Section("Skipped files", text, (Table(("File", "Reason"), rows),)))
    return environment.get_template("report.html").render(report=content, sections=sections, version=version("pyramidvit"))


def settings_table(config: RunConfig, sources: Sources) -> Table:
    """Every setting of a run, its value and where the value came from."""
    rows = list[tuple[Cell, ...]]()
    for section, values in config.model_dump(mode="json").items():
        for key, value in values.items() if isinstance(values, dict) else (("", values),):
            name = f"{section}.{key}".rstrip(".")
            rows.append((name, _text(value), sources.get(name, "default")))
    return Table(("Setting", "Value", "From"), tuple(rows))


def mapping_table(mapping: Mapping[str, Any], title: str = "") -> Table:
    """Plain data, such as the environment, as two columns; nested names are joined with dots."""
    return Table(("Name", "Value"), tuple(_flat(mapping, "")), title)


def _flat(value: Any, name: str) -> list[tuple[Cell, ...]]:
    if isinstance(value, Mapping) and value:
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}".lstrip("."))]
    return [(name, _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "not set" if value is None else str(value)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _source(picture: Picture) -> str:
    for signature, kind in SIGNATURES.items():
        if picture.data.startswith(signature):
            return f"data:{kind};base64,{b64encode(picture.data).decode()}"
    raise ValueError(f"A picture of a report is a PNG or JPEG file, but {picture.caption!r} begins with {picture.data[:8]!r}.")


def _formatted(table: Table) -> list[list[tuple[str, bool]]]:
    """Cells as (text, is a number); floats of a column have equally many decimals, at most what four digits ask for."""
    decimals = [0] * len(table.columns)
    for row in table.rows:
        for column, cell in enumerate(row):
            if isinstance(cell, float) and "e" not in (digits := f"{cell:.4g}"):
                decimals[column] = max(decimals[column], len(digits.partition(".")[2]))
    return [[_cell(cell, decimals[column]) for column, cell in enumerate(row)] for row in table.rows]


def _cell(cell: Cell, decimals: int) -> tuple[str, bool]:
    if cell is None:
        return "–", True
    if isinstance(cell, float):
        digits = f"{cell:.4g}"
        return (digits if "e" in digits else f"{cell:.{decimals}f}"), True
    return str(cell), isinstance(cell, int)
