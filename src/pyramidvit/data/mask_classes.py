"""What the values of mask files mean: class names and colours as they are given or stand in a file, matched with those of a network."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyramidvit.data.annotations import read_json
from pyramidvit.data.findings import Finding
from pyramidvit.data.listing import did_you_mean, entries_of, read_lines
from pyramidvit.data.mask_items import IGNORE, Colour, MaskCode
from pyramidvit.errors import UserError


def settle_code(
    root: Path,
    values: set[int],
    classes: Sequence[str] | None,
    colours: Mapping[str, Colour] | None,
    code: MaskCode,
    trained: Sequence[str] | None,
    findings: list[Finding],
) -> MaskCode:
    """The meaning of ``values``: names and colours as given, as in a file of ``root``, or as many names as there are values.

    With the ``trained`` classes of a network, labels are its numbers, by name, and a file with names counts for more than ``classes``,
    which are those of the training data. UserError when a name is no class of the network.
    """
    names, file = tuple(classes or ()), _class_file(root)
    if colours is None and file:
        file_names, colours = _read_class_file(file)
        names = file_names if trained else names or file_names
    names = names or tuple(name for name in colours or {} if name != "ignore")
    if not colours and values and values <= {0, IGNORE} and IGNORE in values and IGNORE not in code.value_map:
        text = "Masks hold 0 and 255 only, and 255 means ignored, so nothing would be learned: pass --mask-map 255:1."
        findings.append(Finding("error", "binary-masks", text))
    names = names or (_unnamed(trained, findings) if trained else _named_by_values(values, code, findings))
    numbers = {name: number for number, name in enumerate(names)} | {"ignore": IGNORE}
    if unknown := [name for name in colours or {} if name not in numbers]:
        raise UserError(
            f"Colours are given for {', '.join(unknown[:5])}, which {'is' if len(unknown) == 1 else 'are'} no class of {names}."
        )
    by_colour = {colour: numbers[name] for name, colour in (colours or {}).items()}
    order = () if trained is None or names == tuple(trained) else _order(names, tuple(trained), root, file)
    return MaskCode(tuple(trained or names), code.value_map, by_colour, code.reduce_zero, order)


def _named_by_values(values: set[int], code: MaskCode, findings: list[Finding]) -> tuple[str, ...]:
    mapped = {code.value_map.get(value, value) for value in values} - {IGNORE}
    if code.reduce_zero:
        mapped = {value - 1 for value in mapped if value > 0}
    names = _numbers(max(mapped, default=0) + 1)
    findings.append(Finding("note", "unnamed-classes", f"No class names are given; {len(names)} are named {', '.join(names[:4])}."))
    return names


def _unnamed(trained: Sequence[str], findings: list[Finding]) -> tuple[str, ...]:
    """Those of the network, for masks of which nothing is known but their values."""
    if tuple(trained) != _numbers(len(trained)):
        some = ", ".join(f"{number} {name}" for number, name in list(enumerate(trained))[:4]) + (" …" if len(trained) > 4 else "")
        text = f"No class names are given with the masks, so their values are taken for the numbers of the network's classes: {some}."
        findings.append(Finding("warning", "unnamed-classes", f"{text} If they mean others, name them in classes.txt, one per line."))
    return tuple(trained)


def _order(names: tuple[str, ...], trained: tuple[str, ...], root: Path, file: Path | None) -> tuple[int, ...]:
    """The network's number of each name."""
    if unknown := [name for name in names if name not in trained]:
        known = ", ".join(trained[:10]) + (" …" if len(trained) > 10 else "")
        raise UserError(
            f"The masks of {root} have {len(unknown)} classes that the network does not have: {', '.join(unknown[:5])}"
            f"{' …' if len(unknown) > 5 else ''}.{did_you_mean(unknown[0], trained)} It knows {len(trained)} classes: {known}. "
            f"Give data with classes of these names, in any order{f', or correct {file}' if file else ''}."
        )
    return tuple(trained.index(name) for name in names)


def _numbers(K: int) -> tuple[str, ...]:
    return ("background", "foreground") if K == 2 else tuple(map(str, range(K)))


def _class_file(root: Path) -> Path | None:
    files = [file for file in entries_of(root, [])[1] if file.suffix.lower() in (".json", ".txt", ".csv")]
    return next((file for file in files if "class" in file.stem.lower() or file.stem.lower() in ("labels", "names", "codes")), None)


def _read_class_file(file: Path) -> tuple[tuple[str, ...], dict[str, Colour] | None]:
    """Names in order, and their colours when the file has them."""
    try:
        if file.suffix.lower() == ".json":
            return _names_of(read_json(file)), None
        lines = [line for line in read_lines(file) if line.strip()]
        if file.suffix.lower() == ".txt":
            return tuple(line.strip() for line in lines), None
        rows = [{key.strip().lower(): value.strip() for key, value in row.items()} for row in csv.DictReader(lines)]
        colours = {row["name"]: (int(row["r"]), int(row["g"]), int(row["b"])) for row in rows}
        return tuple(name for name in colours if name != "ignore"), colours
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{file} does not give class names: expected a list, or a csv of name,r,g,b ({error}).") from error


def _names_of(content: Any) -> tuple[str, ...]:
    if isinstance(content, dict) and isinstance(nested := content.get("classes", content.get("names")), list | dict):
        content = nested
    if isinstance(content, dict):
        pairs: Iterable[tuple[Any, Any]] = content.items()
        numbered = sorted((int(key), str(value)) if str(key).isdecimal() else (int(value), str(key)) for key, value in pairs)
        if [number for number, _ in numbered] != list(range(len(numbered))):
            raise ValueError("names must be numbered from 0 without gaps")
        return tuple(name for _, name in numbered)
    return tuple(str(entry["name"] if isinstance(entry, dict) else entry) for entry in content)
