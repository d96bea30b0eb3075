"""What each verb of the command line does: resolve settings, call the parts, print. The signatures are the flags."""

import sys
from json import dumps
from typing import Annotated, Any

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="")]
BatchSize = Annotated[int, Parameter(name=["--batch-size", "-b"])]


def print_json(content: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
