"""What runs exported files on the CPU: ONNX Runtime, OpenVINO, torch. Each is imported when it is first asked for."""

import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pyramidvit.errors import BadFileError, UserError
from pyramidvit.export import suppress as operators
from pyramidvit.export.describe import KEY, Description
from pyramidvit.export.graphs import Run
from pyramidvit.export.trust import check_openvino, check_program, open_onnx

Backend = Literal["torch", "compile", "onnx", "openvino", "auto"]
PACKAGES = {"onnx": ("onnxruntime", "onnx"), "openvino": ("openvino", "onnx"), "compile": (), "torch": ()}
"""Backend → packages that it needs; the fastest first, but for `torch.compile`, which needs a minute before the first answer."""
READERS: dict[str, tuple[Backend, ...]] = {".onnx": ("openvino", "onnx"), ".xml": ("openvino",), ".pt2": ("torch", "compile")}
"""Ending of an exported file → backends that run it, the fastest first."""

OWN_GRAPHS = 2
"""Shapes for which OpenVINO gets graphs of their own, each of which holds all weights again."""


def is_exported(path: Path) -> bool:
    """Whether a file's name is that of an export."""
    return path.suffix.lower() in READERS


def is_installed(backend: str) -> bool:
    """Whether all that a backend needs is there."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES[backend])


def choose(backend: Backend, able: Sequence[Backend]) -> Backend:
    """The backend to use, of those that are able to, the fastest first. UserError when it is not able to, or not installed."""
    if backend == "auto":
        found: Backend | None = next((name for name in able if is_installed(name)), None)
        if found is None:
            raise UserError(f"No program that runs this file is installed: pip install 'pyramidvit[{able[-1]}]'.")
        return found
    if backend not in able:
        raise UserError(f"--backend {backend} does not run this file; choose auto, {', '.join(able)}.")
    if not is_installed(backend):
        raise UserError(f"--backend {backend} needs {' and '.join(PACKAGES[backend])}: pip install 'pyramidvit[{backend}]'.")
    return backend


def open_file(path: Path, backend: str, *, exact: bool = False) -> tuple[Description, Run]:
    """What a file says about itself, and its graph, ready to run. UserError, BadFileError when it can't be used or may not be trusted.

    OpenVINO computes its own files in halves as well where the processor has such products, unless ``exact``.
    """
    if path.suffix.lower() == ".pt2":
        return _open_program(path, compiled=backend == "compile")
    if path.suffix.lower() == ".xml":
        check_openvino(path)
        run = _openvino(path)
        description = Description.from_json(run.text, path)
        run.exact = exact or description.precision != "fp16"
        return description, run
    model = open_onnx(path)
    description = Description.from_json({entry.key: entry.value for entry in model.metadata_props}.get(KEY), path)
    del model  # a runtime reads it again, and large ones fill the memory
    return description, run_onnx(path, backend)


def run_onnx(path: Path, backend: str) -> Run:
    """Any ONNX file of our own making, with a description or without, ready to run."""
    return _openvino(path) if backend == "openvino" else _onnx_runtime(path)


def _onnx_runtime(path: Path) -> Run:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its errors have no base of their own
        raise BadFileError(path, f"ONNX Runtime can't use it ({_line(error)}).") from None
    names = [one.name for one in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: x.contiguous().numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(y) for y in session.run(None, arrays)]

    return run


@cache
def openvino_core() -> Any:
    """The one of this process, kept to its end: OpenVINO gives the thread that first compiles a stack for signals and frees it with the
    last graph, in whatever thread that happens; the next signal would then be a segmentation fault."""
    import openvino  # noqa: PLC0415

    return openvino.Core()


def _openvino(path: Path) -> "ByShape":
    try:
        model = openvino_core().read_model(path)
        text = str(model.get_rt_info([KEY]).astype(str)) if model.has_rt_info([KEY]) else None
    except RuntimeError as error:
        raise BadFileError(path, f"OpenVINO can't use it ({_line(error)}).") from None
    return ByShape(path, model, text)


class ByShape:
    """A graph of OpenVINO that runs for any shape, and graphs of their own for the first and for one that comes often: they know their
    shape, which makes them up to 2.4 times as fast. One runs at a time, whoever asks, since each has all cores.

    ``text`` is what it says about itself under our key, if anything; ``exact`` that it computes in float32, not in what is fastest here.
    """

    def __init__(self, path: Path, model: Any, text: str | None) -> None:
        self.path, self.model, self.text = path, model, text
        self.exact = True
        self.own: dict[tuple[tuple[int, ...], ...], Any] = {}
        self.any: Any = None
        self.making = 0.0  # seconds
        self.spent: Counter[tuple[tuple[int, ...], ...]] = Counter()  # seconds that each shape took
        self.lock = Lock()

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        arrays: list[Any] = [x.contiguous().numpy() for x in inputs]
        shapes = tuple(tuple(x.shape) for x in inputs)
        with self.lock:
            request = self._request(shapes)
            started = time.perf_counter()
            results = request.infer(arrays, share_inputs=True)
            self.spent[shapes] += time.perf_counter() - started  # pyright: ignore[reportArgumentType]  a sum all the same
            return [torch.from_numpy(np.array(results[port])) for port in request.model_outputs]

    def _request(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        if shapes in self.own:
            return self.own[shapes]
        if not self.own or (len(self.own) < OWN_GRAPHS and self.spent[shapes] > self.making):
            self.own[shapes] = self._compile(shapes)
            return self.own[shapes]
        if self.any is None:
            self.any = self._compile(None)
        if len(self.spent) > 1000:
            self.spent.clear()
        return self.any

    def _compile(self, shapes: tuple[tuple[int, ...], ...] | None) -> Any:
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
        if self.exact:
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        started = time.perf_counter()
        try:
            model = self.model if shapes is None else self.model.clone()
            if shapes is not None:
                model.reshape(dict(enumerate(map(list, shapes))))
            request = openvino_core().compile_model(model, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            raise BadFileError(self.path, f"OpenVINO can't use it ({_line(error)}).") from None
        self.making = time.perf_counter() - started
        return request


def _open_program(path: Path, *, compiled: bool) -> tuple[Description, Run]:
    assert operators.suppress is not None  # the operator has to be known before a program with it is read
    check_program(path)
    extra = {f"{KEY}.json": ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except (RuntimeError, ValueError, KeyError, AttributeError, AssertionError) as error:
        raise BadFileError(path, f"torch can't use it ({_line(error)}).") from None
    description, module = Description.from_json(extra[f"{KEY}.json"], path), program.module(check_guards=False)
    call: Callable[..., Sequence[Tensor]] = torch.compile(module) if compiled else module

    def run(*inputs: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(call(*inputs))

    return description, run


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1][:300]
