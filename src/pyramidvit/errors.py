"""The one error that is the user's to mend, and what its messages are made of."""

import difflib
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Something the user gave is wrong: the command line prints the message and ends with exit code 2.

    The message says what was wrong, what we got, what was expected and what to do.
    """


class BadFileError(UserError):
    """A file that can't be used: ``path`` and ``reason``."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"Can't read {path}: {reason}")
        self.path = str(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadFileError"], tuple[Any, ...]]:
        return type(self), (self.path, self.reason)  # survives the way from a worker process


def expect(fits: bool, name: str, value: object, wanted: str) -> None:
    """UserError unless the argument ``name`` fits: what was wanted, and what came."""
    if not fits:
        raise UserError(f"{name} has to be {wanted}; got {value!r}.")


def is_whole(value: object, least: int | None = None) -> bool:
    """Whether it is a whole number, NumPy's included and truth values not, of at least ``least``."""
    return not isinstance(value, bool) and isinstance(value, Integral) and (least is None or int(value) >= least)


def is_share(value: object) -> bool:
    """Whether it is a number from 0 and below 1."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) < 1


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Up to ``count`` known names that are like a wrong one, in whatever case it was written, the nearest first."""
    folded = {other.casefold(): other for other in known}
    return [folded[other] for other in difflib.get_close_matches(name.casefold(), folded, count, 0.5)]
