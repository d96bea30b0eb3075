"""Folders and tables of labelled pictures → class names and items per split.

Layouts: ``root/train/<class>/**`` with ``val`` (or valid, validation, test) beside it; ``root/<class>/**``; a CSV of path and label; a
folder with train.csv and val.csv. Data without a val split gets one, stratified and drawn from seed and names alone, whatever the order
of the listing. Files are taken for pictures by their suffix here; what they hold is found out when they are read. Run folders of ours are
left out, so that training in the folder of the pictures does not turn ``runs`` into a class.
"""

import csv
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyramidvit.data.listing import did_you_mean, entries_of, first_of, inside, relative
from pyramidvit.errors import UserError
from pyramidvit.types import ClassTarget

_SUFFIX_TEXT = ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .avif .avifs .gif .tif .tiff .bmp .dib .ppm .pgm .pbm .pnm .jp2 .tga .npy"
SUFFIXES = frozenset([*_SUFFIX_TEXT.split(), ".heic", ".heif"])
"""Names that are taken for pictures; HEIC can't be read, but leaving it out without a word would be worse than saying so."""
VAL_NAMES = ("val", "valid", "validation", "test")
LISTS = (".csv", ".txt", ".tsv", ".list", ".lst", ".json")
"""Names that are taken for lists of paths and labels; pictures have them as CSV only."""
_PATH_HEADS = ("path", "file", "filename", "file_name", "image")
_LABEL_HEADS = ("label", "class", "class_name", "category")


@dataclass(frozen=True)
class Item:
    """A picture and the index of its class."""

    path: Path
    label: int

    def target(self, size: tuple[int, int]) -> ClassTarget:  # noqa: ARG002  other targets have a place in the picture
        return ClassTarget(self.label)


@dataclass(frozen=True)
class ClassData:
    """Labelled pictures. ``splits`` has "train" and "val", each maybe empty; ``ignored`` names what was left out, each folder once."""

    root: Path
    classes: tuple[str, ...]
    splits: Mapping[str, tuple[Item, ...]]
    ignored: tuple[Path, ...] = ()
    made_split: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the sorted relative paths, sizes in bytes (-1: unreadable; folders: all that is in them) and class names."""
        lines: list[str] = []
        for item in (item for items in self.splits.values() for item in items):
            try:
                size = sum(one.stat().st_size for one in (item.path.iterdir() if item.path.is_dir() else (item.path,)))
            except OSError:  # a link that leads nowhere, say; whoever reads the picture treats it as any bad file
                size = -1
            lines.append(f"{relative(item.path, self.root)}\t{size}\t{self.classes[item.label]}\n")
        return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was left out."""
        names = ", ".join(relative(path, self.root) for path in self.ignored[:10])
        return (f"Left out, hidden or of another kind: {names}{' …' if len(self.ignored) > 10 else ''}",) if names else ()

    def to_json(self) -> dict[str, Any]:
        """Plain data with paths relative to ``root``, which is the one absolute path."""
        splits = {name: [[relative(item.path, self.root), item.label] for item in items] for name, items in self.splits.items()}
        ignored = [relative(path, self.root) for path in self.ignored]
        root = str(self.root.absolute())
        return {"root": root, "classes": [*self.classes], "splits": splits, "ignored": ignored, "made_split": self.made_split}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> "ClassData":
        """What ``to_json`` gave; ``root`` is where the data is now, if it has moved."""
        try:
            base = Path(content["root"]) if root is None else root
            classes = tuple(str(name) for name in content["classes"])
            splits = {
                name: tuple(Item(base / inside(path, "the saved split"), int(label)) for path, label in content["splits"][name])
                for name in ("train", "val")
            }
            ignored = tuple(base / path for path in content["ignored"])
            made_split = bool(content["made_split"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"The saved split is not one that we wrote ({type(error).__name__}: {error}); start a new run.") from error
        if any(not 0 <= item.label < len(classes) for items in splits.values() for item in items):
            raise UserError(f"The saved split has labels outside its {len(classes)} classes; start a new run.")
        return cls(base, classes, splits, ignored, made_split)


@dataclass(frozen=True)
class Named:
    """A picture, or a clip, and the name of its class."""

    path: Path
    name: str


def read_class_data(root: str | Path, *, val_share: float = 0.2, seed: int = 0, classes: Sequence[str] | None = None) -> ClassData:
    """Find the layout, the classes and the splits of ``root``.

    The class list is ``classes``, or else that of the training split in alphabetical order, and holds in every split: a class without
    pictures keeps its index, an unknown one is a UserError.
    """
    root = Path(root)
    if not os.path.exists(root):  # False, where Path.exists raises, for names that are too long or a folder that may not be entered
        raise UserError(f"There is no folder or CSV file {root}.{did_you_mean(root.name, (path.name for path in root.parent.glob('*')))}")
    ignored: list[Path] = []
    if root.is_file():
        if root.suffix.lower() != ".csv":
            raise UserError(f"{root} is a file; give the folder that holds the class folders, or a CSV file of path,label.")
        named, folder_classes = {"train": _read_csv(root)}, ()
    else:
        named, folder_classes = _read_folder(root, ignored)
    return assemble(root, named, folder_classes, ignored, classes=classes, val_share=val_share, seed=seed)


def assemble(
    root: Path,
    named: Mapping[str, list[Named]],
    folder_classes: Iterable[str],
    ignored: list[Path],
    *,
    classes: Sequence[str] | None,
    val_share: float,
    seed: int,
    noun: str = "pictures",
    suffixes: str = _SUFFIX_TEXT,
) -> ClassData:
    """The data of named files per split: class list, checks of the labels, and a val split if there is none."""
    base = root.parent if root.is_file() else root
    first = named["train" if "train" in named else "val"]
    if not any(named.values()) or (classes is None and not first):
        where = f"the train split of {root}" if any(named.values()) else f"{root}"
        raise UserError(f"No {noun} in {where}. Expected class folders with {noun} in them ({suffixes}).{_left_out(ignored, base)}")
    if classes is None:
        classes = sorted({*folder_classes, *(one.name for one in first)})
    index = {name: number for number, name in enumerate(classes)}
    for split, files in named.items():
        _refuse_unknown(split, files, index, base, noun)
    splits = {split: tuple(Item(p.path, index[p.name]) for p in files) for split, files in named.items()}
    made_split = "val" not in splits
    if made_split:
        splits["train"], splits["val"] = _split(splits["train"], base, val_share, seed)
    splits.setdefault("train", ())
    return ClassData(base, tuple(classes), splits, tuple(sorted(ignored)), made_split)


def _read_folder(root: Path, ignored: list[Path]) -> tuple[dict[str, list[Named]], list[str]]:
    """Pictures per split, and the class folders, empty ones too."""
    tables = {split: table for split, names in (("train", ("train",)), ("val", VAL_NAMES)) if (table := first_of(root, names, ".csv"))}
    if tables:
        return {split: _read_csv(table) for split, table in tables.items()}, []
    return class_folders(root, ignored, _pictures, lambda file: file.suffix.lower() in SUFFIXES)


def class_folders(
    root: Path, ignored: list[Path], find: Callable[[Path, list[Path]], list[Path]], fits: Callable[[Path], bool], noun: str = "pictures"
) -> tuple[dict[str, list[Named]], list[str]]:
    """What ``find`` finds in the class folders of each split, and the class folders; ``fits`` tells such files outside of any."""
    folders, files = entries_of(root, ignored)
    train, val = first_of(root, ("train",)), first_of(root, VAL_NAMES)
    others = [folder for folder in folders if folder not in (train, val)]
    if train is not None and (val is not None or not others or entries_of(train, [])[0]):
        split_folders = {"train": train} | ({"val": val} if val is not None else {})
    elif val is not None and not others:
        split_folders = {"val": val}
    else:
        split_folders = {"train": root}  # its folders are the classes; one of them may be called train
    if root not in split_folders.values():
        ignored += others + files
    named: dict[str, list[Named]] = {}
    classes: list[str] = []
    for split, folder in split_folders.items():
        below, loose = entries_of(folder, ignored if folder != root else [])
        if not below and any(map(fits, loose)):
            lists = [file for file in loose if file.suffix.lower() in LISTS]
            hint = f" If {lists[0]} says what they show, give it instead of the folder." if lists else ""
            raise UserError(
                f"{folder} holds {noun} but no class folders; move the {noun} of each class into a folder named after it.{hint}"
            )
        ignored += loose
        named[split] = [Named(path, one.name) for one in below for path in find(one, ignored)]
        if split == "train":
            classes = [one.name for one in below]
    return named, classes


def _pictures(folder: Path, ignored: list[Path], above: frozenset[Path] = frozenset()) -> list[Path]:
    """Pictures in a folder and below it; links to folders are followed, circles are not."""
    if (real := folder.resolve()) in above:
        return []
    folders, files = entries_of(folder, ignored)
    ignored += [file for file in files if file.suffix.lower() not in SUFFIXES]
    below = [path for one in folders for path in _pictures(one, ignored, above | {real})]
    return [file for file in files if file.suffix.lower() in SUFFIXES] + below


def _read_csv(table: Path) -> list[Named]:
    """Rows of path and label; paths are relative to the table's folder and stay inside it; labels are names."""
    rows: list[tuple[int, list[str]]] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    rows.append((reader.line_num, [cell.strip() for cell in cells]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        after = f" after line {rows[-1][0]}" if rows else ""
        raise UserError(f"Can't read {table} as a CSV file in UTF-8{after}: {error}.") from error
    return _rows_to_pictures(table, rows)


def _rows_to_pictures(table: Path, rows: list[tuple[int, list[str]]]) -> list[Named]:
    path_column, label_column = 0, 1
    head = [cell.lower() for cell in rows[0][1]] if rows else []
    paths, labels = ([i for i, cell in enumerate(head) if cell in names] for names in (_PATH_HEADS, _LABEL_HEADS))
    if paths and labels:
        path_column, label_column, rows = paths[0], labels[0], rows[1:]
    if not rows:
        raise UserError(f"{table} has no rows; expected lines of path,label such as photos/a.jpg,cat.")
    problems: list[str] = []
    pictures: list[Named] = []
    lines: dict[Path, int] = {}
    for line, row in rows:
        try:
            if len(row) <= max(path_column, label_column) or (not paths and len(row) != 2):
                raise ValueError(f"expected path,label separated by a comma, got {len(row)} cells: {row}")
            picture = Named(table.parent / inside(row[path_column], "a row"), row[label_column])
            if not picture.name:
                raise ValueError(f"{row[path_column]} has no label")
            if not os.path.isfile(picture.path):  # False for a name that is too long, too
                raise ValueError(f"there is no file {str(picture.path)[:500]}")
            if picture.path in lines:
                raise ValueError(f"{row[path_column]} is already in line {lines[picture.path]}")
        except ValueError as error:
            problems.append(f"  line {line}: {error}")
            continue
        lines[picture.path] = line
        pictures.append(picture)
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(f"{table} has {len(problems)} wrong lines:\n" + "\n".join(problems[:10]) + more)
    return sorted(pictures, key=lambda picture: picture.path)


def _refuse_unknown(split: str, pictures: list[Named], index: Mapping[str, int], root: Path, noun: str) -> None:
    unknown = Counter(picture.name for picture in pictures if picture.name not in index)
    if unknown:
        what = ", ".join(f"{name!r} ({n} {noun})" for name, n in unknown.most_common(5))
        hint = did_you_mean(next(iter(unknown)), index)
        known = ", ".join(sorted(index)[:10]) + (" …" if len(index) > 10 else "")
        raise UserError(
            f"The {split} split of {root} has {len(unknown)} classes that the class list does not have: {what}.{hint} "
            f"Known are {len(index)} classes: {known}. Rename or remove the others, or add training {noun} of them."
        )


def _split(items: Sequence[Item], root: Path, val_share: float, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Hold out ``val_share`` of each class, at least one picture and never the last one of it."""
    by_class: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_class[item.label].append(item)
    held: set[Path] = set()
    for members in by_class.values():
        members.sort(key=lambda item: hashlib.sha256(f"{seed}/{relative(item.path, root)}".encode("utf-8", "surrogateescape")).digest())
        count = min(max(round(val_share * len(members)), 1), len(members) - 1)
        held.update(item.path for item in members[:count])
    return tuple(item for item in items if item.path not in held), tuple(item for item in items if item.path in held)


def _left_out(ignored: list[Path], root: Path) -> str:
    names = ", ".join(relative(path, root) for path in ignored[:5])
    return f" Left out: {names}{' …' if len(ignored) > 5 else ''}." if ignored else ""
