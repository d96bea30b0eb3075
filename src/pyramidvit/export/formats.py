"""Traced graphs as files: ONNX, OpenVINO's pair of files, torch's archive. Each holds its description."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from pyramidvit.errors import UserError
from pyramidvit.export.describe import KEY, Description
from pyramidvit.export.graphs import Graph
from pyramidvit.export.program import Traced
from pyramidvit.export.runtimes import openvino_core
from pyramidvit.export.translations import translations

Format = Literal["onnx", "openvino", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
OPSET = 20
"""Of ONNX; the first with GELU as one operator."""


def format_of(path: Path) -> Format:
    """The format that a file's name stands for. UserError when it stands for none."""
    for name, suffix in SUFFIXES.items():
        if path.suffix.lower() == suffix:
            return name
    known = ", ".join(f"{suffix} ({name})" for name, suffix in SUFFIXES.items())
    raise UserError(f"{path.name} has the name of no export; end it in {known}.")


def write_onnx(path: Path, traced: Traced, graph: Graph, description: Description) -> None:
    """An ONNX file. UserError when onnx or onnxscript is not installed."""
    try:
        import onnx  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError:
        raise UserError("Exporting to ONNX and OpenVINO needs onnx and onnxscript: pip install 'pyramidvit[onnx]'.") from None
    with warnings.catch_warnings(), _quiet("onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")  # about the exporter's own insides
        program = torch.onnx.export(
            traced.program,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            custom_translation_table=translations(),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    describe_onnx(model, description)
    onnx.save(model, path)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Loggers that tell of the exporter's insides say errors only."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def describe_onnx(model: Any, description: Description) -> None:
    """Put the description into an ONNX model, in the place of any other."""
    import onnx  # noqa: PLC0415

    onnx.helper.set_model_props(model, {KEY: description.to_json()})


def write_openvino(path: Path, onnx_file: Path, description: Description) -> None:
    """OpenVINO's .xml and .bin from an ONNX file, under fp16 with tensors kept in halves. UserError when it is not installed."""
    try:
        import openvino  # noqa: PLC0415
    except ImportError:
        raise UserError("Exporting to OpenVINO needs openvino: pip install 'pyramidvit[openvino]'.") from None
    model = openvino_core().read_model(onnx_file)  # not convert_model, which tells its maker about it
    model.set_rt_info(description.to_json(), [KEY])
    openvino.save_model(model, path, compress_to_fp16=description.precision == "fp16")


def write_program(path: Path, traced: Traced, description: Description) -> None:
    """torch's archive, without the inputs it was traced with, which it would keep as a pickle."""
    traced.program._example_inputs = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # of tensors that share memory; compared later
        torch.export.save(traced.program, path, extra_files={f"{KEY}.json": description.to_json()})
