"""What each verb of the command line does: resolve settings, call the parts, print. The signatures are the flags."""

import sys
from json import dumps
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

AT_LEAST_1 = Parameter(validator=Number(gte=1))

Json = Annotated[bool, Parameter(name="--json", negative="")]
Count = Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))]
BatchSize = Annotated[int, Parameter(name=["--batch-size", "-b"]), AT_LEAST_1]
TopK = Annotated[int, Parameter(name=["--top", "-k"]), AT_LEAST_1]
Workers = Annotated[int | None, Parameter(validator=Number(gte=0))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))]


def print_json(content: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
