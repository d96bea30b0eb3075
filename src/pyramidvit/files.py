"""Files that are whole or absent: a crash, a kill or a full disk leaves what was there before.

Every write goes to a temporary file in the same folder (a rename is atomic only within one file system), is flushed to the disk, read back
and compared, and only then takes the place of the old file.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from pyramidvit.errors import UserError

TEMP_PREFIX = ".tmp-"
"""Starts the names of unfinished files; what a kill left behind may be removed with `remove_temps`."""

CHECKSUM = "sha256"
"""Metadata key of the checksum over header and tensors."""

CHUNK = 1 << 24


class DamagedFile(UserError):
    """The file is there, but its content is not what was written."""


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text durably, see `valid_text`. UserError when the folder can't be written or the disk is full."""
    write_bytes(path, valid_text(text).encode())


def valid_text(text: str) -> str:
    r"""The text as UTF-8 can hold it: a byte of a file name that is no UTF-8 becomes ``\udcff``, which JSON reads back as it was."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes durably. UserError when the folder can't be written or the disk is full."""
    _write(path, [memoryview(data)])


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file durably; the same content gives the same bytes. Tensors may be strided, shared or on any device.

    A SHA-256 over names, shapes, types, metadata and values goes into the metadata as ``sha256``; the metadata goes through `valid_text`.
    UserError as for `write_bytes`.
    """
    if CHECKSUM in metadata:
        raise ValueError(f"The metadata key {CHECKSUM!r} is reserved.")
    strings = {key: valid_text(value) for key, value in metadata.items()}
    data = memoryview(safetensors.torch.save(_plain(tensors), metadata=strings | {CHECKSUM: ""}))
    header, body = _split(data)
    header["__metadata__"][CHECKSUM] = _checksum(header, body)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to 8 bytes
    _write(path, [memoryview(struct.pack("<Q", len(text)) + text), body])


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (on the CPU) and metadata of a safetensors file, verified by the checksum when it holds one.

    UserError when the file can't be read, DamagedFile when it is damaged or no safetensors file; pickled files (.pth, .ckpt) are
    refused without being opened.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
            if start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{"):  # our header's length may begin like a pickle
                raise UserError(
                    f"{path} is a pickled PyTorch file, which could run code when opened; expected a .safetensors file. "
                    "If it holds nothing but tensors, make one from it in Python:\n"
                    "  import torch, safetensors.torch\n"
                    f"  state = torch.load({str(path)!r}, weights_only=True)\n"
                    f"  safetensors.torch.save_file(state, {str(path.with_suffix('.safetensors'))!r})"
                )
            data = start + file.read()
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror}.") from None
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise DamagedFile(f"{path} is damaged or no safetensors file: {error}.") from None
    header, body = _split(memoryview(data))
    metadata: dict[str, str] = header.get("__metadata__") or {}
    expected = metadata.pop(CHECKSUM, None)
    if expected is not None and expected != _checksum(header, body):
        raise DamagedFile(f"{path} is damaged: its content does not match its checksum. Use another copy of the file.")
    return tensors, metadata


def give_name(temp: Path, path: Path) -> None:
    """Durably put a finished file, which lies in the same folder or one below, in the place of ``path``. OSError when that fails."""
    with temp.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temp, path)
    _sync_folder(path.parent)


def remove_temps(folder: Path) -> list[Path]:
    """Remove unfinished files that a kill left in a folder; returns what was removed. UserError when it can't be."""
    temps = sorted(folder.glob(f"{TEMP_PREFIX}*"))
    for temp in temps:
        try:
            temp.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"Can't remove the unfinished file {temp}: {error.strerror}. Make its folder writable.") from error
    return temps


def _write(path: Path, parts: Sequence[memoryview]) -> None:
    temp = path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{path.name}")
    try:
        with temp.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        _compare(temp, parts)
        os.replace(temp, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"Can't write {path}: {error.strerror or error}. {_remedy(path)}") from error
    finally:
        with contextlib.suppress(OSError):  # gone already unless something failed, and that failure is the one to report
            temp.unlink()


def _compare(temp: Path, parts: Sequence[memoryview]) -> None:
    with temp.open("rb") as file:
        for part in parts:
            for start in range(0, len(part), CHUNK):
                expected = part[start : start + CHUNK]
                if file.read(len(expected)) != expected:
                    raise OSError("what was read back differs from what was written")
        if file.read(1):
            raise OSError("the file on the disk is longer than what was written")


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder can't be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remedy(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist."
    return "A file of that name from before is unchanged. Free some space or choose another folder."


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, on the CPU, none sharing memory with another, as the format asks for; copied only where needed."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        shared = storage.nbytes() != tensor.nbytes or storage.data_ptr() in seen
        seen.add(storage.data_ptr())
        plain[name] = tensor.clone() if shared else tensor
    return plain


def _split(data: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Header and body of safetensors bytes: 8 bytes of length, JSON, values."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(bytes(data[8 : 8 + length])), data[8 + length :]


def _checksum(header: dict[str, Any], body: memoryview) -> str:
    """Over the header without the checksum itself, then the values."""
    metadata = {key: value for key, value in header.get("__metadata__", {}).items() if key != CHECKSUM}
    digest = hashlib.sha256(json.dumps(header | {"__metadata__": metadata}, sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()
