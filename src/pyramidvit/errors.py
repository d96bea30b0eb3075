"""The one error that is the user's to mend."""

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
