"""A pickle read as data: nothing in it is ever imported, looked up or called.

A pickle is a program for a small stack machine. The machine here knows the instructions that build plain values. A name in the file stays a
word; what a call by that word stands for is in the table of `claims.py`, and any other word refuses the file.
"""

import io
import pickletools
from collections.abc import Callable
from typing import Any

from pyramidvit.weights import claims
from pyramidvit.weights.claims import RefusedError, Skipped, Storage

MAX_OPCODES = 4_000_000
"""Far above any real checkpoint; a file beyond it is refused."""

PUSHES = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
"""Instructions that put their argument on the stack."""

CONSTANTS: dict[str, Callable[[], Any]] = {
    **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
    **{"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set},
}
TAKES: dict[str, int | None] = {
    **{"GLOBAL": 0, "STACK_GLOBAL": 2, "BINPERSID": 1, "REDUCE": 2, "NEWOBJ": 2, "BUILD": 1, "POP": 1, "DUP": 1},
    **{"APPEND": 1, "APPENDS": None, "ADDITEMS": None, "SETITEM": 2, "SETITEMS": None, "DICT": None, "LIST": None, "FROZENSET": None},
    **{"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "POP_MARK": None},
}
"""How many values an instruction takes from the stack; None for all since the last mark."""


class Machine:
    """Runs the pickles of one file, one after the other. ``storages`` collects those that they mention, by key."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.opcodes = 0

    def run(self, stream: io.BytesIO) -> Any:
        """The value of the pickle at the stream's place, which is left behind its end.

        RefusedError when it asks for more than it may; ValueError, LookupError, TypeError or AttributeError when it is damaged.
        """
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[Any, Any] = {}
        for opcode, argument, _ in pickletools.genops(stream):
            self.opcodes += 1
            if self.opcodes > MAX_OPCODES:
                raise RefusedError(f"it has more than {MAX_OPCODES:,} instructions")
            name = opcode.name
            if name in PUSHES:
                stack.append(argument)
            elif name in CONSTANTS:
                stack.append(CONSTANTS[name]())
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if argument is None else argument] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in TAKES:
                self._step(name, argument, _take(stack, marks, TAKES[name]), stack)
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise RefusedError(f"it uses the pickle instruction {name}")
        raise ValueError("the pickle has no end")

    def _step(self, name: str, argument: Any, items: list[Any], stack: list[Any]) -> None:
        """An instruction that took ``items`` from the stack."""
        if name == "GLOBAL":
            stack.append(claims.name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(claims.name(*(item if isinstance(item, str) else "" for item in items)))
        elif name == "BINPERSID":
            storage = claims.storage(items[0])
            if self.storages.setdefault(storage.key, storage) != storage:
                raise RefusedError(f"it describes storage {storage.key[:40]!r} in two ways")
            stack.append(storage)
        elif name in ("REDUCE", "NEWOBJ"):
            stack.append(claims.make(*items))
        elif name == "BUILD":
            claims.build(stack[-1], items[0])
        elif name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"):
            _fill(stack[-1], items, {"A": set if name == "ADDITEMS" else list, "S": dict}[name[0]])
        elif name in ("DICT", "LIST", "FROZENSET"):
            stack.append({"DICT": dict, "LIST": list, "FROZENSET": set}[name]())
            _fill(stack[-1], items, type(stack[-1]))
        elif name == "DUP":
            stack += [*items, *items]
        elif name.startswith("TUPLE"):
            stack.append(tuple(items))  # and POP and POP_MARK let go of the items


def _take(stack: list[Any], marks: list[int], count: int | None) -> list[Any]:
    start = marks.pop() if count is None else len(stack) - count
    if start < (marks[-1] if marks else 0):
        raise ValueError("an instruction takes more than there is")
    items = stack[start:]
    del stack[start:]
    return items


def _fill(target: Any, items: list[Any], kind: type) -> None:
    if isinstance(target, Skipped):
        return
    if type(target) is not kind:
        raise RefusedError(f"it fills a {type(target).__name__} as if it were a {kind.__name__}")
    if isinstance(target, list):
        target += items
    elif isinstance(target, set):
        target |= {claims.key(item) for item in items}
    else:
        target.update(zip(map(claims.key, items[::2]), items[1::2], strict=True))
