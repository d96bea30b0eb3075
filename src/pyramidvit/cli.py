"""The command line: verbs by name, one clear message for a user's mistake, exit codes that mean something.

0 done · 2 the user's input is wrong · 130, 143 stopped by a signal after saving · 1 a fault of ours.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

import pyramidvit
from pyramidvit.cpu import keep_freed_memory, limit_spinning
from pyramidvit.errors import UserError

VERBS = {
    "demo": ("demo", "Draw pictures, train a small network on them, show the result: minutes on a CPU."),
    "check": ("inspect", "Look a data set over before training: counts, sizes, damaged files, duplicates, balance."),
    "train": ("train", "Train a network on a folder of pictures, or continue a run."),
    "evaluate": ("evaluate", "Measure a trained network on pictures with known classes."),
    "predict": ("predict", "Say what is on pictures."),
    "export": ("export", "Write a trained network as a file for other programs, proven equal."),
    "models": ("inspect", "List the networks."),
    "weights": ("weights", "List published weights."),
    "convert": ("convert", "Write weights in the names of another library, or in ours."),
    "info": ("inspect", "Count parameters, multiply-adds and memory of a network."),
    "bench": ("bench", "Time networks on this machine, beside others, or over sizes."),
}
"""Verb → (file of pyramidvit.verbs, help)."""

app = App(
    name="pyramidvit",
    help="Pyramid vision transformers, from your pictures to predictions.",
    version=pyramidvit.__version__,
    default_parameter=Parameter(negative_iterable=()),
)
for verb, (file, summary) in VERBS.items():
    app.command(f"pyramidvit.verbs.{file}:{verb}", name=verb, help=summary)  # imported when called, so that --help is quick


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and leave with its exit code."""
    signal.signal(signal.SIGTERM, stop)
    limit_spinning()
    keep_freed_memory()
    errors = Console(stderr=True, highlight=False)
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except UserError as error:
        code = complain(errors, str(error))
    except CycloptsError as error:
        code = complain(errors, explain(error.__cause__) if isinstance(error.__cause__, ValidationError) else str(error))
    except BrokenPipeError:  # the reader of our output has gone, as in `pyramidvit models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code or 0)


def stop(number: int, _: object) -> NoReturn:
    """Leave as Ctrl-C does, so that unfinished files are removed on the way out. Trainings stop in a way of their own, see `runtime`."""
    raise SystemExit(128 + number)


def complain(console: Console, message: str) -> int:
    """Print what is wrong and return the exit code of a user's mistake."""
    console.print(Text("error: ", style="bold red") + Text(message), soft_wrap=True)
    return 2


def explain(error: ValidationError) -> str:
    """Each wrong value of the command line in a line of its own, by its flag."""
    return "\n".join(dict.fromkeys(f"--{flag_of(e['loc'])}: {e['msg'].lower()}, got {_word(e['input'])!r}" for e in error.errors()))


def _word(given: object) -> object:
    """What stood behind a flag, alone where it was alone."""
    return given[0] if isinstance(given, list) and len(given) == 1 else given


def flag_of(location: tuple[int | str, ...]) -> str:
    """The flag of a setting, from its place in the configuration."""
    names = [str(part) for part in location if isinstance(part, str)]
    return "model" if names[-2:] == ["model", "name"] else names[-1].replace("_", "-")
