"""What the words of a pickled file stand for: tensors, arrays, dictionaries, and nothing that runs.

Sizes are claims, checked before memory is taken. What comes from the file is never printed or hashed unless its type is known, since
nested values can be made that take for ever.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_AXES = 16

SKIPPED = (
    *("argparse.Namespace", "collections.deque", "datetime.", "pathlib.", "torch.device", "builtins.", "copyreg.", "numpy.ndarray"),
    *("yacs.config.CfgNode", "fvcore.common.config.CfgNode", "detectron2.config.", "omegaconf.", "addict.", "easydict.EasyDict"),
    *("mmcv.utils.config.", "mmengine.config.", "mmengine.logging."),
)
"""Names, or beginnings of names, of what old files hold beside tensors: allowed, and not read."""

BUILTINS = (
    "list",
    "dict",
    "tuple",
    "set",
    "frozenset",
    "int",
    "float",
    "str",
    "bool",
    "object",
    "bytes",
    "bytearray",
    "complex",
    "getattr",
)

STORAGES = {
    **{"Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16, "Bool": torch.bool},
    **{"Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64, "Byte": torch.uint8},
}
NUMPY = ("f2", "f4", "f8", "b1", "u1", "i1", "i2", "i4", "i8")
"""NumPy types that tensors have too."""


class RefusedError(Exception):
    """The file asks for more than tensors and plain values; says what it asks for."""


@dataclass(frozen=True)
class Name:
    """What the file calls by name, such as ``collections.OrderedDict``; a word, never the thing itself."""

    text: str


@dataclass(frozen=True)
class Skipped:
    """In the place of an object that is no weights, such as a configuration."""

    name: str


@dataclass(frozen=True)
class Storage:
    """``numel`` values that tensors are views of; the file holds them outside of the pickle."""

    key: str
    dtype: torch.dtype
    numel: int


@dataclass(frozen=True)
class View:
    """A tensor as the file claims it, checked against its storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class DType:
    """A NumPy type, such as f4; ``order`` is ``>`` for big-endian."""

    code: str
    order: str = "="


@dataclass
class Array:
    """A NumPy array, empty until its state comes."""

    values: Tensor | Skipped = Skipped("numpy.ndarray")


def name(module: str, word: str) -> Name:
    """A word of the file, if it is known. RefusedError for any other."""
    module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module).replace("numpy._core", "numpy.core")
    text = f"{module}.{word}"
    plain = re.fullmatch(r"torch\.((cuda\.)?\w+Storage|u?int\d+|b?float\d+|bool)", text)
    if not (plain or text in MAKERS or text.startswith(SKIPPED)) or (module == "builtins" and word not in BUILTINS):
        raise RefusedError(f"it holds {text[:100]!r}, which is more than tensors and plain values")
    return Name(text)


def storage(claim: Any) -> Storage:
    """The values that a persistent id of torch announces."""
    kind, of, key, _, numel, *view = claim
    dtype = STORAGES.get(re.sub(r"^torch\.(cuda\.)?|Storage$", "", of.text)) if isinstance(of, Name) else None
    if kind != "storage" or dtype is None or type(key) not in (str, int) or not sizes((numel,)) or view not in ([], [None]):
        raise RefusedError(f"it claims values of an unknown kind{f', {of.text[:100]}' if isinstance(of, Name) else ''}")
    return Storage(str(key), dtype, numel)


def make(maker: Any, arguments: Any) -> Any:
    """What a call in the file stands for."""
    if not isinstance(maker, Name) or not isinstance(arguments, tuple):
        raise RefusedError("it calls something that has no name")
    if maker.text == "builtins.getattr" and not (isinstance(arguments[0], Name) and arguments[0].text.startswith("mmengine.")):
        raise RefusedError("it asks for attributes of objects")
    return MAKERS[maker.text](*arguments) if maker.text in MAKERS else Skipped(maker.text)


def build(target: Any, state: Any) -> None:
    """What setting the state of an object stands for."""
    if isinstance(target, Array):
        _, shape, dtype, fortran, data = state
        target.values = array(data, dtype, shape, "F" if fortran else "C")
    elif isinstance(target, DType):
        target.order = state[1] if state[1] in ("<", ">") else "="
    elif not isinstance(target, Skipped | dict):  # attributes of a dictionary, such as its _metadata, are not needed
        raise RefusedError(f"it sets the state of a {type(target).__name__}")


def key(value: Any) -> Any:
    """Plain keys only: the hash of deeply nested tuples would overflow the C stack."""
    if value is not None and not isinstance(value, str | int | float | bytes):
        raise RefusedError(f"it uses a {type(value).__name__} as a key")
    return value


def sizes(values: Any) -> bool:
    """Whether these are sides of an array: few whole numbers from 0, none absurd."""
    return isinstance(values, tuple | list) and len(values) <= MAX_AXES and all(type(n) is int and 0 <= n < 2**48 for n in values)


def view(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> View:
    """A tensor, if it lies within its storage and repeats none of it."""
    if not (isinstance(storage, Storage) and sizes(size) and sizes(stride) and sizes((offset,)) and len(size) == len(stride)):
        raise RefusedError("it describes a tensor with impossible sizes")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else -1
    if last >= storage.numel or math.prod(size) > storage.numel:
        raise RefusedError(f"it claims a tensor of shape {tuple(size)} in a storage of {storage.numel} values")
    return View(storage, offset, tuple(size), tuple(stride))


def array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Tensor | Skipped:
    """A NumPy array from its bytes; Skipped when it holds no numbers."""
    if not isinstance(dtype, DType) or dtype.code not in NUMPY or not isinstance(data, str | bytes | bytearray):
        return Skipped("numpy.ndarray")
    raw = data.encode("latin-1") if isinstance(data, str) else data  # written by Python 2, bytes are text
    if not sizes(shape) or len(raw) != math.prod(shape) * int(dtype.code[1]):
        raise RefusedError(f"it claims an array whose shape does not fit its {len(raw)} bytes")
    values = np.frombuffer(raw, dtype.order + dtype.code).reshape(shape, order="F" if order == "F" else "C")
    return torch.from_numpy(values.astype(dtype.code))


def _scalar(dtype: Any, data: Any = b"") -> Any:
    value = array(data, dtype, ())
    return value.item() if isinstance(value, Tensor) else value


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":  # the one way that Python itself writes bytes as text
        raise RefusedError("it holds bytes in an unexpected encoding")
    return text.encode("latin-1")


def _mapping(pairs: Any = ()) -> dict[Any, Any]:
    return {key(k): value for k, value in (pairs.items() if isinstance(pairs, dict) else pairs)}


def _first(tensor: Any, *_: Any) -> Any:
    return tensor


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _mapping,
    "collections.Counter": _mapping,
    "collections.defaultdict": lambda *_: {},
    "builtins.bytes": lambda: b"",  # what is not empty comes through _codecs.encode
    "builtins.set": lambda items=(): {key(item) for item in items},
    "_codecs.encode": _encode,
    "torch.Size": lambda sides=(): tuple(sides),
    "torch._utils._rebuild_tensor": view,
    "torch._utils._rebuild_tensor_v2": view,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": lambda _maker, _type, arguments, _state: view(*arguments),
    "torch.nn.parameter.Parameter": _first,
    "numpy.core.multiarray._reconstruct": lambda *_: Array(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": lambda *arguments: Array(array(*arguments)),
    "numpy.dtype": lambda code, *_: DType(code if isinstance(code, str) else ""),
}
"""What the calls of a file stand for: the whole of what a file can have done."""
