"""Exports in fewer bits: tensors kept in halves, or products in 8-bit integers fitted to pictures of the user's."""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyramidvit.errors import UserError
from pyramidvit.export.describe import Description
from pyramidvit.export.formats import describe_onnx
from pyramidvit.types import Batch

WORTH = 1024
"""Values from which a tensor is worth halving."""
QUANTISED = ("Conv", "MatMul", "Gemm")
"""Operators that compute in 8 bits; normalisation, softmax and what selects objects stay as they are."""


def write_halves(source: Path, path: Path, description: Description) -> None:
    """An ONNX file whose large tensors are kept in float16 and widened when a session starts: half the size, float32 arithmetic."""
    import onnx  # noqa: PLC0415

    model = onnx.load(source)
    halved = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT and np.prod(one.dims) >= WORTH]
    casts = []
    for one in halved:
        values = onnx.numpy_helper.to_array(one)
        if not np.abs(values).max() < np.finfo(np.float16).max:
            raise UserError(f"{one.name} holds values that are too large for float16: export in full precision.")
        name = one.name
        one.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}_half"], [name], name=f"widen_{name}", to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]
    describe_onnx(model, description)
    onnx.save(model, path)


def write_int8(source: Path, path: Path, description: Description, calibration: Iterable[Batch]) -> None:
    """An ONNX file whose convolutions and products compute in 8 bits, with ranges found on ``calibration``."""
    try:
        from onnxruntime import quantization  # noqa: PLC0415
        from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415
    except ImportError:
        raise UserError("8 bits need onnxruntime: pip install 'pyramidvit[onnx]'.") from None
    import onnx  # noqa: PLC0415

    prepared = path.with_name("prepared.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the quantiser's own insides
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True, skip_optimization=True)
        quantization.quantize_static(
            str(prepared),
            str(path),
            _reader(quantization, calibration, description.inputs),
            op_types_to_quantize=list(QUANTISED),
            per_channel=True,
            reduce_range=False,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True, "MatMulConstBOnly": True},
        )
    model = onnx.load(path)
    describe_onnx(model, description)
    onnx.save(model, path)


def _reader(quantization: Any, calibration: Iterable[Batch], names: tuple[str, ...]) -> Any:
    """What the quantiser asks for input after input."""

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = _feeds(calibration, names)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    return Reader()


def _feeds(calibration: Iterable[Batch], names: tuple[str, ...]) -> Iterator[dict[str, np.ndarray]]:
    for batch in calibration:
        images = batch.images.flatten(0, 1) if batch.images.ndim == 6 else batch.images  # views are inputs of their own
        inputs = images, torch.tensor(batch.valid, dtype=torch.int64).reshape(-1, 2)
        yield {name: x.numpy() for name, x in zip(names, inputs, strict=False)}
