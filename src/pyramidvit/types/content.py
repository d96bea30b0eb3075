"""What reports are made of: tables, pictures, sections."""

from dataclasses import dataclass, field

Cell = str | int | float | None
"""What a table holds; None is shown as a dash."""


@dataclass(frozen=True)
class Table:
    """Rows under named columns, for reports; units belong in the column's name."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"A table with {len(self.columns)} columns needs as many cells in each row, got {wrong[0]!r}.")


@dataclass(frozen=True)
class Picture:
    """An encoded picture for reports: the bytes of a PNG or JPEG file."""

    data: bytes = field(repr=False)
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a report: text, then tables, then pictures. ``small`` pictures share rows; ``folded`` parts open on a click."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    small: bool = False
    folded: bool = False
