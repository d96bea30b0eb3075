"""Folders and tables of labelled pictures → class names and items per split.

Layouts: ``root/train/<class>/**`` with ``val`` (or valid, validation, test) beside it; ``root/<class>/**``; a CSV of path and label; a
folder with train.csv and val.csv. Data without a val split gets one, stratified and drawn from seed and names alone, whatever the order
of the listing. Files are taken for pictures by their suffix here; what they hold is found out when they are read. Run folders of ours are
left out, so that training in the folder of the pictures does not turn ``runs`` into a class.
"""

import csv
import difflib
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pyramidvit.errors import UserError

_SUFFIX_TEXT = ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .avif .avifs .gif .tif .tiff .bmp .dib .ppm .pgm .pbm .pnm .jp2 .tga .npy"
SUFFIXES = frozenset([*_SUFFIX_TEXT.split(), ".heic", ".heif"])
"""Names that are taken for pictures; HEIC can't be read, but leaving it out without a word would be worse than saying so."""
VAL_NAMES = ("val", "valid", "validation", "test")
_JUNK = frozenset(
    ("__macosx", "@eadir", "thumbs.db", "desktop.ini", "__pycache__", "$recycle.bin", "system volume information", "lost+found")
)
_PATH_HEADS = ("path", "file", "filename", "file_name", "image")
_LABEL_HEADS = ("label", "class", "class_name", "category")


@dataclass(frozen=True)
class Item:
    """A picture and the index of its class."""

    path: Path
    label: int


@dataclass(frozen=True)
class ClassData:
    """Labelled pictures. ``splits`` has "train" and "val", each maybe empty; ``ignored`` names what was left out, each folder once."""

    root: Path
    classes: tuple[str, ...]
    splits: Mapping[str, tuple[Item, ...]]
    ignored: tuple[Path, ...] = ()
    made_split: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data with paths relative to ``root``, which is the one absolute path."""
        splits = {name: [[_relative(item.path, self.root), item.label] for item in items] for name, items in self.splits.items()}
        ignored = [_relative(path, self.root) for path in self.ignored]
        root = str(self.root.absolute())
        return {"root": root, "classes": [*self.classes], "splits": splits, "ignored": ignored, "made_split": self.made_split}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> "ClassData":
        """What ``to_json`` gave; ``root`` is where the data is now, if it has moved."""
        try:
            base = Path(content["root"]) if root is None else root
            classes = tuple(str(name) for name in content["classes"])
            splits = {
                name: tuple(Item(base / _inside(path, "the saved split"), int(label)) for path, label in content["splits"][name])
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
class _Named:
    """A picture and the name of its class."""

    path: Path
    name: str


def read_class_data(root: str | Path, *, val_share: float = 0.2, seed: int = 0, classes: Sequence[str] | None = None) -> ClassData:
    """Find the layout, the classes and the splits of ``root``.

    The class list is ``classes``, or else that of the training split in alphabetical order, and holds in every split: a class without
    pictures keeps its index, an unknown one is a UserError.
    """
    root = Path(root)
    if not os.path.exists(root):  # False, where Path.exists raises, for names that are too long or a folder that may not be entered
        raise UserError(f"There is no folder or CSV file {root}.{_similar(root.name, (path.name for path in root.parent.glob('*')))}")
    ignored: list[Path] = []
    if root.is_file():
        if root.suffix.lower() != ".csv":
            raise UserError(f"{root} is a file; give the folder that holds the class folders, or a CSV file of path,label.")
        named, folder_classes = {"train": _read_csv(root)}, ()
    else:
        named, folder_classes = _read_folder(root, ignored)
    base = root.parent if root.is_file() else root
    first = named["train" if "train" in named else "val"]
    if not any(named.values()) or (classes is None and not first):
        where = f"the train split of {root}" if any(named.values()) else f"{root}"
        raise UserError(f"No pictures in {where}. Expected class folders with pictures in them ({_SUFFIX_TEXT}).{_left_out(ignored, base)}")
    if classes is None:
        classes = sorted({*folder_classes, *(picture.name for picture in first)})
    index = {name: number for number, name in enumerate(classes)}
    for split, pictures in named.items():
        _refuse_unknown(split, pictures, index, base)
    splits = {split: tuple(Item(p.path, index[p.name]) for p in pictures) for split, pictures in named.items()}
    made_split = "val" not in splits
    if made_split:
        splits["train"], splits["val"] = _split(splits["train"], base, val_share, seed)
    splits.setdefault("train", ())
    return ClassData(base, tuple(classes), splits, tuple(sorted(ignored)), made_split)


def fingerprint(data: ClassData) -> str:
    """SHA-256 over the sorted relative paths, sizes in bytes (-1 for what can't be read) and class names of all pictures."""
    lines: list[str] = []
    for item in (item for items in data.splits.values() for item in items):
        try:
            size = item.path.stat().st_size
        except OSError:  # a link that leads nowhere, say; whoever reads the picture treats it as any bad file
            size = -1
        lines.append(f"{_relative(item.path, data.root)}\t{size}\t{data.classes[item.label]}\n")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _read_folder(root: Path, ignored: list[Path]) -> tuple[dict[str, list[_Named]], list[str]]:
    """Pictures per split, and the class folders, empty ones too."""
    tables = {split: table for split, names in (("train", ("train",)), ("val", VAL_NAMES)) if (table := _first(root, names, ".csv"))}
    if tables:
        return {split: _read_csv(table) for split, table in tables.items()}, []
    folders, files = _entries(root, ignored)
    train, val = _first(root, ("train",)), _first(root, VAL_NAMES)
    others = [folder for folder in folders if folder not in (train, val)]
    if train is not None and (val is not None or not others or _entries(train, [])[0]):
        split_folders = {"train": train} | ({"val": val} if val is not None else {})
    elif val is not None and not others:
        split_folders = {"val": val}
    else:
        split_folders = {"train": root}  # its folders are the classes; one of them may be called train
    if root not in split_folders.values():
        ignored += others + files
    named: dict[str, list[_Named]] = {}
    classes: list[str] = []
    for split, folder in split_folders.items():
        class_folders, loose = _entries(folder, ignored if folder != root else [])
        if not class_folders and any(file.suffix.lower() in SUFFIXES for file in loose):
            raise UserError(f"{folder} holds pictures but no class folders; move the pictures of each class into a folder named after it.")
        ignored += loose
        named[split] = [_Named(path, one.name) for one in class_folders for path in _pictures(one, ignored)]
        if split == "train":
            classes = [one.name for one in class_folders]
    return named, classes


def _first(root: Path, names: Iterable[str], suffix: str = "") -> Path | None:
    """The folder, or the file of that suffix, that has the first of the names there is; Train counts as train."""
    entries = {path.name.lower(): path for path in sorted(root.iterdir(), reverse=True) if path.is_dir() != bool(suffix)}
    return next((entries[name + suffix] for name in names if name + suffix in entries), None)


def _entries(folder: Path, ignored: list[Path]) -> tuple[list[Path], list[Path]]:
    """Sorted subfolders and files; junk goes to ``ignored``."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"Can't list the folder {folder}: {error.strerror}.") from error
    folders = [path for path in entries if path.is_dir()]
    runs = {path for path in folders if _holds_runs(path)}
    junk = [path for path in entries if _is_junk(path.name) or path in runs]
    ignored += junk
    others = {*junk, *folders}
    return [path for path in folders if path not in junk], [path for path in entries if path not in others]


def _holds_runs(path: Path) -> bool:
    """Whether a folder is a run of ours or holds nothing but such; looks no further than the first file that says otherwise."""
    if os.path.isfile(path / "config.yaml") and os.path.isdir(path / "checkpoints"):
        return True
    try:
        with os.scandir(path) as entries:
            below = (one.is_dir(follow_symlinks=False) and _holds_runs(Path(one)) for one in entries if not _is_junk(one.name))
            return next(below, False) and all(below)
    except OSError:  # it may not be listed, which is said when it is read
        return False


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in _JUNK


def _pictures(folder: Path, ignored: list[Path], above: frozenset[Path] = frozenset()) -> list[Path]:
    """Pictures in a folder and below it; links to folders are followed, circles are not."""
    if (real := folder.resolve()) in above:
        return []
    folders, files = _entries(folder, ignored)
    ignored += [file for file in files if file.suffix.lower() not in SUFFIXES]
    below = [path for one in folders for path in _pictures(one, ignored, above | {real})]
    return [file for file in files if file.suffix.lower() in SUFFIXES] + below


def _read_csv(table: Path) -> list[_Named]:
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


def _rows_to_pictures(table: Path, rows: list[tuple[int, list[str]]]) -> list[_Named]:
    path_column, label_column = 0, 1
    head = [cell.lower() for cell in rows[0][1]] if rows else []
    paths, labels = ([i for i, cell in enumerate(head) if cell in names] for names in (_PATH_HEADS, _LABEL_HEADS))
    if paths and labels:
        path_column, label_column, rows = paths[0], labels[0], rows[1:]
    if not rows:
        raise UserError(f"{table} has no rows; expected lines of path,label such as photos/a.jpg,cat.")
    problems: list[str] = []
    pictures: list[_Named] = []
    lines: dict[Path, int] = {}
    for line, row in rows:
        try:
            if len(row) <= max(path_column, label_column) or (not paths and len(row) != 2):
                raise ValueError(f"expected path,label separated by a comma, got {len(row)} cells: {row}")
            picture = _Named(table.parent / _inside(row[path_column], "a row"), row[label_column])
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


def _inside(path: str, where: str) -> Path:
    """A relative path that can't leave its folder."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or Path(path).is_absolute():
        raise ValueError(f"{path!r} in {where} must be a path below the table's own folder, without '..'")
    return Path(pure)


def _refuse_unknown(split: str, pictures: list[_Named], index: Mapping[str, int], root: Path) -> None:
    unknown = Counter(picture.name for picture in pictures if picture.name not in index)
    if unknown:
        what = ", ".join(f"{name!r} ({n} pictures)" for name, n in unknown.most_common(5))
        hint = _similar(next(iter(unknown)), index)
        known = ", ".join(sorted(index)[:10]) + (" …" if len(index) > 10 else "")
        raise UserError(
            f"The {split} split of {root} has {len(unknown)} classes that the class list does not have: {what}.{hint} "
            f"Known are {len(index)} classes: {known}. Rename or remove the others, or add training pictures of them."
        )


def _split(items: Sequence[Item], root: Path, val_share: float, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Hold out ``val_share`` of each class, at least one picture and never the last one of it."""
    by_class: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_class[item.label].append(item)
    held: set[Path] = set()
    for members in by_class.values():
        members.sort(key=lambda item: hashlib.sha256(f"{seed}/{_relative(item.path, root)}".encode("utf-8", "surrogateescape")).digest())
        count = min(max(round(val_share * len(members)), 1), len(members) - 1)
        held.update(item.path for item in members[:count])
    return tuple(item for item in items if item.path not in held), tuple(item for item in items if item.path in held)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _similar(name: str, names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(names), n=3)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def _left_out(ignored: list[Path], root: Path) -> str:
    names = ", ".join(_relative(path, root) for path in ignored[:5])
    return f" Left out: {names}{' …' if len(ignored) > 5 else ''}." if ignored else ""
