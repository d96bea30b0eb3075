"""Other people's pickled files (.pth, .pt, .pyth, .ckpt, .pkl), read without running anything; see `machine.py`.

Three kinds: zip files of current torch, the files of torch before 1.6 (a run of pickles, then the values), and plain pickles of arrays.
"""

import io
import warnings
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.files import DamagedFile
from pyramidvit.weights.claims import Array, RefusedError, Storage, View
from pyramidvit.weights.machine import Machine

MAX_BYTES, MAX_TENSORS, MAX_DEPTH = 16 << 30, 50_000, 64
"""Largest file, most tensors and deepest nesting that are read."""

TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""Starts the files of torch before 1.6."""


def read_pickle(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """What a pickled file holds: dicts, lists, tuples, plain values, and Tensors on the CPU (those made of NumPy arrays included).

    Objects that are no weights, such as configurations, are `Skipped`. UserError for anything that would have to be run, and for files
    or tensors that are too large; DamagedFile when the file is cut or changed.
    """
    machine = Machine()
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UserError(f"{path} has {size / 2**30:.1f} GiB; at most {max_bytes / 2**30:.1f} GiB are read.")
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
        with warnings.catch_warnings(action="ignore"):  # of pickletools, about escapes in damaged text
            tree, storages = _read_zip(path, machine) if zipped else _read_stream(path, machine)
        return _Plain(storages, 2 * size).of(tree)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror or error}.") from None
    except RefusedError as error:
        raise UserError(
            f"{path} is refused: {error}. Nothing in it was run. Expected a file of tensors (a state dict); "
            "if you trust this file, save its state dict alone with the program that made it."
        ) from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedFile(
            f"{path} is damaged, cut short or no file of tensors: {str(error)[:200] or type(error).__name__}. Use another copy."
        ) from None


def _read_zip(path: Path, machine: Machine) -> tuple[Any, dict[str, Tensor]]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(info.filename.split("/")[1:2] == ["code"] for info in members):
            raise RefusedError("it is a TorchScript program")
        _check_members(members, path.stat().st_size)
        root = next((info.filename.removesuffix("data.pkl") for info in members if PurePosixPath(info.filename).name == "data.pkl"), None)
        if root is None:
            raise RefusedError("it is a zip file without the data.pkl of torch")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise RefusedError("its values are big-endian")
        tree = machine.run(io.BytesIO(archive.read(f"{root}data.pkl")))
        return tree, {key: _values(storage, archive.read(f"{root}data/{key}")) for key, storage in machine.storages.items()}


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """Members may not be packed, claim more than the file's ``size``, share a name, or be named as if they lay elsewhere."""
    if len({info.filename for info in members}) != len(members):
        raise RefusedError("two of its members have the same name")
    for info in members:
        name = info.filename[:100]
        if info.filename.startswith("/") or "\\" in info.filename or ".." in PurePosixPath(info.filename).parts:
            raise RefusedError(f"a member is named {name!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise RefusedError(f"member {name!r} is compressed or encrypted, which torch never does")
    if sum(info.file_size for info in members) > size:
        raise RefusedError("its members claim more bytes than the file has")


def _read_stream(path: Path, machine: Machine) -> tuple[Any, dict[str, Tensor]]:
    """A plain pickle, or the files of torch before 1.6."""
    stream = io.BytesIO(path.read_bytes())
    tree = machine.run(stream)
    if type(tree) is not int or tree != TORCH_MAGIC:
        if machine.storages:
            raise RefusedError("it names values that it does not hold")
        return tree, {}
    _, system, tree, keys = (machine.run(stream) for _ in range(4))
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise RefusedError("its values are not little-endian")
    storages: dict[str, Tensor] = {}
    for key in keys:
        storage = machine.storages[key if isinstance(key, str) else ""]
        if int.from_bytes(stream.read(8), "little") != storage.numel:
            raise ValueError(f"the values of storage {storage.key[:40]!r} are not as many as announced")
        storages[storage.key] = _values(storage, stream.read(storage.numel * storage.dtype.itemsize))
    return tree, storages


def _values(storage: Storage, raw: bytes) -> Tensor:
    """The values of a storage, (numel,)."""
    if len(raw) != storage.numel * storage.dtype.itemsize:
        raise ValueError(f"a tensor of {storage.numel} values ({storage.dtype}) has {len(raw)} bytes")
    return torch.frombuffer(bytearray(raw), dtype=storage.dtype) if raw else torch.empty(0, dtype=storage.dtype)


class _Plain:
    """Puts tensors in the place of claims, every object once however often it is named."""

    def __init__(self, storages: dict[str, Tensor], max_bytes: int) -> None:
        self.storages, self.bytes_left, self.tensors_left = storages, max_bytes, MAX_TENSORS
        self.done: dict[int, Any] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise RefusedError(f"its values are nested more than {MAX_DEPTH} deep, or hold themselves")
        if id(value) not in self.done:
            self.done[id(value)] = self._convert(value, depth + 1)
        return self.done[id(value)]

    def _convert(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return {key: self.of(item, depth) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.of(item, depth) for item in value)
        if isinstance(value, View):
            return self._count(self.storages[value.storage.key].as_strided(value.size, value.stride, value.offset))
        if isinstance(value, Array):
            return self._count(value.values) if isinstance(value.values, Tensor) else value.values
        return value

    def _count(self, tensor: Tensor) -> Tensor:
        self.bytes_left -= tensor.nbytes
        self.tensors_left -= 1
        if self.bytes_left < 0:
            raise RefusedError("its tensors together claim far more bytes than the file has")
        if self.tensors_left < 0:
            raise RefusedError(f"it holds more than {MAX_TENSORS:,} tensors")
        return tensor
