"""What lies in a folder, without junk, hidden files and run folders of ours; names and paths in messages and tables."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pyramidvit.errors import UserError

_JUNK = frozenset(
    ("__macosx", "@eadir", "thumbs.db", "desktop.ini", "__pycache__", "$recycle.bin", "system volume information", "lost+found")
)


def first_of(root: Path, names: Iterable[str], suffix: str = "") -> Path | None:
    """The folder, or the file of that suffix, that has the first of the names there is; Train counts as train."""
    entries = {path.name.lower(): path for path in sorted(root.iterdir(), reverse=True) if path.is_dir() != bool(suffix)}
    return next((entries[name + suffix] for name in names if name + suffix in entries), None)


def read_text(file: Path) -> str:
    """A text file in UTF-8, a byte order mark left out; UserError when it can't be read or is in another encoding."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Can't read {file} as text in UTF-8: {error}.") from error


def read_lines(file: Path) -> list[str]:
    """Lines of a text file, as `read_text` reads it."""
    return read_text(file).splitlines()


def entries_of(folder: Path, ignored: list[Path]) -> tuple[list[Path], list[Path]]:
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


def inside(path: str, where: str) -> Path:
    """A relative path that can't leave its folder."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or Path(path).is_absolute():
        raise ValueError(f"{path!r} in {where} must be a path below the table's own folder, without '..'")
    return Path(pure)


def relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def did_you_mean(name: str, names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(names), n=3)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
