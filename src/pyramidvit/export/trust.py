"""What a file from somewhere may not do: checked before a runtime sees it.

An ONNX file may name other files for its tensors, an OpenVINO graph is XML with a second file, and torch's archives may hold pickles and
names of functions. None of our own files needs more than is let through here.
"""

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from pyramidvit.errors import BadFileError, UserError

MAX_HEADER = 100 * 2**20
"""Bytes of a graph without its tensors: as much as safetensors allows its header."""
MAX_ONNX = 2**31 - 1
"""Bytes of a protobuf message."""
OPERATORS = re.compile(
    r"torch\.ops\.(aten|torchvision|pyramidvit)\.\w+\.\w+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|and_|or_|eq|ne|lt|le|gt|ge|getitem)"
    r"|torch\.sym_(max|min|not|ite|float|int|sum)|math\.(ceil|floor|trunc)"
)
"""What a program of torch may call."""
PROGRAM = frozenset({"archive_format", "models/model.json"})
"""What every program of torch holds."""
EXPRESSION = re.compile(
    r"(?:Symbol\('[suz]f?\d+'|Integer|Rational|Float\('[-\d.e+]+'|precision=|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|IntTrueDiv"
    r"|FloatTrueDiv|CeilToInt|FloorToInt|TruncToInt|TruncToFloat|ToFloat|RoundToInt|Equality|Unequality|GreaterThan|LessThan|StrictGreaterThan"
    r"|StrictLessThan|Eq|Ne|Ge|Gt|Le|Lt|And|Or|Not|true|false|True|False|int_oo|integer=|positive=|nonnegative=|[su]\d+|\d+(?:\.\d+)?"
    r"|[-+*/(),<>=&|~ ])*"
)
"""What its expressions of sizes may be made of: they are read by an evaluator of Python."""


def open_onnx(path: Path) -> Any:
    """An ONNX model without its external tensors, whose places are checked. BadFileError, UserError when onnx is not installed."""
    try:
        import onnx  # noqa: PLC0415
        from google.protobuf.message import DecodeError  # noqa: PLC0415
    except ImportError:
        raise UserError("ONNX files need onnx and onnxruntime: pip install 'pyramidvit[onnx]'.") from None
    _regular(path, MAX_ONNX)
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise BadFileError(path, "it is damaged or no ONNX file.") from None
    for name, places in _external(onnx, model):
        _beside(path, name, places)
    header = sum(len(entry.value) + len(entry.key) for entry in model.metadata_props)
    if header > MAX_HEADER:
        raise BadFileError(path, f"its description has {header:,} bytes; {MAX_HEADER:,} are allowed.")
    return model


def check_openvino(path: Path) -> None:
    """Check an OpenVINO graph (.xml) and the file of its tensors (.bin) beside it."""
    text = _regular(path, MAX_HEADER).read_bytes()
    if re.search(rb"<!(DOCTYPE|ENTITY)|<\?xml-stylesheet", text, re.IGNORECASE):
        raise BadFileError(path, "it declares entities, which no graph of OpenVINO needs.")
    if not re.match(rb"\s*(<\?xml[^>]*\?>)?\s*<net\b", text):
        raise BadFileError(path, "it is no graph of OpenVINO.")
    size = _regular(path.with_suffix(".bin")).stat().st_size
    for entry in re.finditer(rb"<data\b[^>]*>", text):
        place = {name: int(value) for name, value in re.findall(rb'\b(offset|size)="(\d+)"', entry[0])}
        if sum(place.values()) > size:
            raise BadFileError(path, f"it reads up to byte {sum(place.values()):,} of {path.with_suffix('.bin').name}, which has {size:,}.")


def check_program(path: Path) -> None:
    """Check a program of torch (.pt2): no pickles, no libraries, only operators and expressions that networks are made of."""
    _regular(path)
    if not zipfile.is_zipfile(path):
        raise BadFileError(path, "it is damaged or no program of torch.")
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        if missing := PROGRAM - names:
            raise BadFileError(
                path, f"it is no program of torch: it has no {min(missing)}; expected a file that `pyramidvit export` wrote."
            )
        for member in archive.infolist():
            _, _, name = member.filename.partition("/")
            if name.startswith(("data/sample_inputs/", "data/aotinductor/", "data/executorch/")) and member.file_size:
                raise BadFileError(
                    path, f"it holds {name}, which could run code when opened; expected a file that `pyramidvit export` wrote."
                )
            if name.endswith(".json"):
                if member.file_size > MAX_HEADER:
                    raise BadFileError(path, f"its {name} has {member.file_size:,} bytes; {MAX_HEADER:,} are allowed.")
                _check_json(path, name, archive.read(member))


def _check_json(path: Path, name: str, data: bytes) -> None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise BadFileError(path, f"its {name} is damaged.") from None
    for key, value in _leaves(content):
        wrong = (
            (key == "use_pickle" and value is not False)
            or (key == "target" and name.startswith("models/") and not OPERATORS.fullmatch(str(value)))
            or (key == "expr_str" and not EXPRESSION.fullmatch(str(value)))
        )
        if wrong:
            raise BadFileError(path, f"its {name} has {key} {str(value)[:80]!r}, which no network needs and which could run code.")


def _leaves(content: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values of objects at any depth."""
    todo = [content]
    while todo:
        match todo.pop():
            case dict() as entries:
                yield from ((str(key), value) for key, value in entries.items() if not isinstance(value, dict | list))
                todo += entries.values()
            case list() as entries:
                todo += entries
            case _:
                pass


def _external(onnx: Any, model: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and place of every tensor that is in another file, at any depth of the graph."""

    def tensors(nodes: Iterable[Any]) -> Iterator[Any]:
        for node in nodes:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                yield from (part for one in (attribute.sparse_tensor, *attribute.sparse_tensors) for part in (one.values, one.indices))
                for graph in (attribute.g, *attribute.graphs):
                    yield from of(graph)

    def of(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        yield from (part for one in graph.sparse_initializer for part in (one.values, one.indices))
        yield from tensors(graph.node)

    functions = (tensor for function in model.functions for tensor in tensors(function.node))
    for tensor in (*of(model.graph), *functions):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            yield tensor.name, {entry.key: entry.value for entry in tensor.external_data}


def _beside(path: Path, name: str, place: dict[str, str]) -> None:
    """BadFileError unless a tensor's file is a plain one inside the model's folder, as long as is claimed."""
    location = place.get("location", "")
    kinds: tuple[Callable[[str], Any], ...] = (PurePosixPath, PureWindowsPath)
    parts = [kind(location) for kind in kinds]
    if not location or any(part.is_absolute() or part.drive or part.root or ".." in part.parts for part in parts):
        raise BadFileError(path, f"tensor {name!r} is said to be in {location!r}, outside of the model's folder.")
    file, folder = path.parent / location, path.parent.resolve()
    if Path(os.path.realpath(file)) != folder / location or (file.is_file() and file.stat().st_nlink > 1):
        raise BadFileError(path, f"tensor {name!r} is said to be in {location!r}, which is a link.")
    size = _regular(file).stat().st_size
    try:
        end = int(place.get("offset") or 0) + int(place.get("length") or 0)
    except ValueError:
        raise BadFileError(path, f"tensor {name!r} has a place that is no number: {place}.") from None
    if end > size or min(int(place.get(key) or 0) for key in ("offset", "length")) < 0:
        raise BadFileError(path, f"tensor {name!r} is said to end at byte {end:,} of {location}, which has {size:,}.")


def _regular(path: Path, most: int | None = None) -> Path:
    """The path, if it is a file with one name and no link. BadFileError otherwise, or when it is larger than ``most``."""
    if path.is_symlink():
        raise BadFileError(path, "it is a link; give the file itself.")
    if not path.is_file():
        raise BadFileError(path, "there is no such file.")
    size = path.stat().st_size
    if most is not None and size > most:
        raise BadFileError(path, f"it has {size:,} bytes; at most {most:,} are allowed.")
    return path
