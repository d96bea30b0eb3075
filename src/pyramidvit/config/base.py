"""What settings are made of: groups that refuse what they don't know, and values that say their range."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from cyclopts import Parameter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Side = Annotated[int, Field(ge=32, le=65536)]


def parse_size(value: Any) -> Any:
    """'512x640' → (512, 640) and '224' → (224, 224), from the command line or a file; pairs stay as they are."""
    given = cast(Sequence[Any], value) if isinstance(value, list | tuple) else (value,)
    if len(given) == 2:
        return given
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(*given))
    if not match:
        raise PydanticCustomError("size", "expected height x width, such as 224x224 or 512x640")
    return int(match[1]), int(match[2] or match[1])


def show_size(size: tuple[int, int]) -> str:
    """(512, 640) → '512x640'."""
    return f"{size[0]}x{size[1]}"


Size = Annotated[
    tuple[Side, Side],
    BeforeValidator(parse_size),
    Parameter(metavar="HxW", n_tokens=1, show_default=show_size),
]


def parse_value_map(value: Any) -> Any:
    """'255:1' → '255:1', with both values from 0 to 255."""
    match = re.fullmatch(r"(\d+):(\d+)", str(value))
    if not match or max(int(match[1]), int(match[2])) > 255:
        raise PydanticCustomError("value_map", "expected value:class with numbers from 0 to 255, such as 255:1")
    return value


ValueMap = Annotated[str, BeforeValidator(parse_value_map), Parameter(metavar="VALUE:CLASS")]


def in_order(pair: tuple[float, float]) -> tuple[float, float]:
    """The pair, if the first value is not above the second."""
    if pair[0] > pair[1]:
        raise PydanticCustomError("order", "the first value must not be above the second")
    return pair


def rising(pair: tuple[float, float]) -> tuple[float, float]:
    """The pair, if the first value is below the second."""
    if pair[0] >= pair[1]:
        raise PydanticCustomError("rising", "the first value, which becomes 0, must be below the second, which becomes 1")
    return pair


Several = Parameter(consume_multiple=1)
"""One flag takes as many values as follow it, at least one."""


class Section(BaseModel):
    """A group of settings; unknown keys, infinite numbers and NaN are errors, nothing at all is no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _holds_settings(cls, value: Any) -> Any:
        if value is None:  # 'optim:' with nothing below it
            return {}
        if not isinstance(value, Mapping | cls):
            raise PydanticCustomError("section", "expected settings below it, one 'name: value' per line")
        return cast(Any, value)
