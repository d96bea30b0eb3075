"""Exported files give what the network gives, at sizes and batches they were not traced with, and nothing is left that doesn't."""

import json
import os
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pyramidvit
from pyramidvit.bench.measure import in_fresh_process, measures_memory
from pyramidvit.config import RunConfig
from pyramidvit.errors import UserError
from pyramidvit.export import verify as verifying
from pyramidvit.export import write
from pyramidvit.export.exported import load_exported
from pyramidvit.export.formats import write_openvino
from pyramidvit.export.program import Traced
from pyramidvit.export.runtimes import PACKAGES, Backend, ByShape, openvino_core
from pyramidvit.export.smaller import write_halves
from pyramidvit.export.verify import compare
from pyramidvit.models.found import Found
from pyramidvit.predict import Predictor
from pyramidvit.tasks.table import TASKS

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
CPU = torch.device("cpu")


def predictor(task: str = "classify", name: str = "pvt_v2_b0", **settings: object) -> Predictor:
    """With random weights, wide enough apart that detectors find something."""
    torch.manual_seed(0)
    config = RunConfig.model_validate({"task": task, "model": {"name": name}, "head": {"preset": "small"}, **settings})
    made = TASKS[task](config, ("cat", "dog", "cow"))
    model = made.model()
    for part, weight in model.named_parameters():
        if part in ("classes.weight", "roi_heads.box.classes.weight", "rpn.objectness.weight"):
            torch.nn.init.normal_(weight, 0, 0.2)
    return Predictor(made, model, CPU)


@pytest.fixture(scope="module")
def classifier() -> Predictor:
    return predictor()


@pytest.fixture(scope="module")
def exported(classifier: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    report = classifier.export(path)
    assert report.largest is not None
    assert report.largest < 1e-5
    assert report.size is None
    return path


@pytest.mark.slow
def test_any_size_and_batch(classifier: Predictor, exported: Path) -> None:
    """PB-95: nothing of the traced size is left in the file."""
    file = load_exported(exported, "onnx")
    for shape in ((1, 3, 224, 224), (3, 3, 256, 320), (2, 3, 33, 65), (5, 3, 32, 32)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(file(x), classifier.model(x), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_file_alone_predicts_the_same(classifier: Predictor, exported: Path) -> None:
    """PB-99: resize, crop, mean and order of colours travel inside; classes and probabilities are those of the run."""
    picture = np.random.default_rng(0).integers(0, 255, (150, 210, 3), np.uint8)
    alone = pyramidvit.load(exported)
    assert alone.task.preprocess == classifier.task.preprocess
    assert alone.backend in ("openvino", "onnx")
    (want, got) = (dict(one(picture).prediction.top(3)) for one in (classifier, alone))
    assert want.keys() == got.keys()
    assert all(abs(want[name] - got[name]) < 1e-4 for name in want)


@pytest.mark.slow
def test_layer_norm_and_gelu_stay_one_operator(exported: Path) -> None:
    """PB-100: normalisation and activation are not taken apart."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(exported)).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("LayerNormalization") == 30
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    assert all(ranks[node.output[0]] == 3 for node in graph.node if node.op_type == "LayerNormalization"), "OpenVINO cuts up others"
    assert kinds.count("Gelu") == 8
    assert kinds.count("ReduceMean") == 1  # the mean over the last map


@pytest.mark.slow
def test_openvino_reads_the_onnx_file(classifier: Predictor, exported: Path) -> None:
    """And makes a graph of its own for the first shape, then for one that comes often, which both give the same as the one for any."""
    pytest.importorskip("openvino")
    file = load_exported(exported, "openvino")
    graphs = file.run
    assert isinstance(graphs, ByShape)
    with torch.no_grad():
        for shape in ((2, 3, 96, 64), (1, 3, 64, 32), (2, 3, 96, 64)):
            x = torch.randn(shape)
            torch.testing.assert_close(file(x), classifier.model(x), rtol=0, atol=1e-4)
        assert list(graphs.own) == [((2, 3, 96, 64),)]
        graphs.making = graphs.spent[((1, 3, 64, 32),)] / 2
        for shape in ((1, 3, 64, 32), (1, 3, 32, 32)):
            x = torch.randn(shape)
            torch.testing.assert_close(file(x), classifier.model(x), rtol=0, atol=1e-4)
        graphs.making = 0.0
        file(x)
    assert list(graphs.own) == [((2, 3, 96, 64),), ((1, 3, 64, 32),)]  # and no third one


@pytest.mark.slow
def test_halves_are_half_as_large(exported: Path, tmp_path: Path) -> None:
    file = load_exported(exported, "onnx")
    write_halves(exported, tmp_path / "half.onnx", replace(file.description, precision="fp16"))
    half, x = load_exported(tmp_path / "half.onnx", "onnx"), torch.randn(1, 3, 64, 64)
    assert (tmp_path / "half.onnx").stat().st_size < 0.6 * exported.stat().st_size
    assert half.description.precision == "fp16"
    torch.testing.assert_close(half(x), file(x), rtol=0, atol=2e-2)


@pytest.mark.slow
def test_openvino_computes_its_files_of_halves_in_halves(exported: Path, tmp_path: Path) -> None:
    """Where the processor can; ``exact`` or full precision is float32 everywhere."""
    pytest.importorskip("openvino")
    files = [tmp_path / "full.xml", tmp_path / "half.xml"]
    full = load_exported(exported, "onnx")
    for file, precision in zip(files, ("fp32", "fp16"), strict=True):
        write_openvino(file, exported, replace(full.description, precision=precision))
    kept, half, exact = load_exported(files[0]), load_exported(files[1]), load_exported(files[1], exact=True)
    x = torch.randn(2, 3, 96, 64)
    expected = full(x)
    torch.testing.assert_close(kept(x), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(exact(x), expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(half(x), expected, rtol=0, atol=5e-2)
    used = []
    for file in (kept, exact, half):
        assert isinstance(file.run, ByShape)
        (request,) = file.run.own.values()
        used.append(request.get_compiled_model().get_property("INFERENCE_PRECISION_HINT").to_string())
    able = "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert used[:2] == ["f32", "f32"]
    assert not able or used[2] == "bf16"


@pytest.mark.slow
def test_another_network_is_no_export_of_this_one(exported: Path) -> None:
    """What is compared decides, not that a file was written."""
    file = load_exported(exported, "onnx")
    other = predictor().model
    with torch.no_grad():
        other.get_parameter("head.bias")[1] += 0.01
    with pytest.raises(UserError, match="differs from the network"):
        verifying.verify(other.eval(), file, (3, 64, 64))


@pytest.mark.slow
def test_a_file_that_differs_is_not_left(classifier: Predictor, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file of that name stays; nothing else does."""
    (tmp_path / "model.onnx").write_text("older")

    def broken(path: Path, *_: object) -> None:
        model = onnx.load(exported)
        for one in model.graph.initializer:
            if one.data_type == onnx.TensorProto.FLOAT:
                one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one) * np.float32(1.1), one.name))
        onnx.save(model, path)

    monkeypatch.setattr(write, "trace", lambda *_: Traced(None))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(write, "write_onnx", broken)
    with pytest.raises(UserError, match="no file was kept"):
        classifier.export(tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "older"


def test_names_that_stand_for_no_format(classifier: Predictor, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.onnx"):
        classifier.export(tmp_path / "model.tflite")
    with pytest.raises(UserError, match="does not exist"):
        classifier.export(tmp_path / "none" / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(UserError, match="it is a folder"):
        classifier.export(tmp_path / "folder.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.onnx"]


@pytest.mark.slow
def test_other_channels_and_backends_are_told(exported: Path) -> None:
    with pytest.raises(UserError, match="takes 3 channels"):
        load_exported(exported, "onnx")(torch.zeros(1, 4, 64, 64))
    with pytest.raises(UserError, match="at least 32x32 pixels, got 64x31"):
        load_exported(exported, "onnx")(torch.zeros(1, 3, 64, 31))
    with pytest.raises(UserError, match="does not run this file"):
        load_exported(exported, "torch")
    with pytest.raises(UserError, match="runs on the CPU"):
        pyramidvit.load(exported, device="cuda")


@pytest.mark.slow
def test_files_without_a_description(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported)
    newer = json.loads(model.metadata_props[0].value) | {"format": 99}
    for value, message in (
        ("", "doesn't say"),
        ("{}", "'format' is missing"),
        ("[]", "no JSON object"),
        (json.dumps(newer), "newer version"),
    ):
        onnx.helper.set_model_props(model, {"pyramidvit": value})
        onnx.save(model, tmp_path / "model.onnx")
        with pytest.raises(UserError, match=message):
            load_exported(tmp_path / "model.onnx", "onnx")


def _many_requests(path: str, backend: Backend) -> float:
    """MiB that a process grows by 400 requests from eight threads, after 200 others."""
    torch.set_num_threads(1)
    file = load_exported(Path(path), backend)
    inputs = [torch.randn(1 + (height == 64), 3, height, width) for height in (32, 64, 96) for width in range(32, 160, 32)]
    alone = [file(x) for x in inputs]
    if isinstance(file.run, ByShape):
        file.run.making = 0.0  # so that all of its graphs are there before memory is measured

    def ask(number: int) -> bool:
        return torch.allclose(file(inputs[number % len(inputs)]), alone[number % len(inputs)], atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(200)))
        before = _resident_mib()
        assert all(threads.map(ask, range(400)))
        return _resident_mib() - before


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not measures_memory(), reason="the system does not tell the memory of a process")
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_memory_stays_flat_over_many_sizes_and_threads(exported: Path, backend: Backend) -> None:
    """PB-104: nothing is kept of a request, and every thread gets its own answer."""
    pytest.importorskip(PACKAGES[backend][0])
    assert in_fresh_process(_many_requests, str(exported), backend) < 16


def _signal_after_openvino(path: str) -> list[int]:
    """What a handler got of a signal to a process whose OpenVINO file was freed by another thread."""
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    files = [load_exported(Path(path), "openvino")]
    files[0](torch.randn(1, 3, 64, 64))
    thread = threading.Thread(target=files.clear)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    return got


@pytest.mark.slow
def test_signals_are_still_received_after_openvino(exported: Path) -> None:
    pytest.importorskip("openvino")
    assert in_fresh_process(_signal_after_openvino, str(exported)) == [signal.SIGTERM]


def test_objects_are_compared_by_their_counterparts() -> None:
    """The order of equal scores says nothing, a lost object does."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40], [50, 0, 60, 30]])
    one = Found(boxes, torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0, 1, 1]))
    order = [1, 0, 2]
    same = compare([one], [Found(boxes[order], one.scores[order], one.labels[order])], (1, 3, 64, 64))
    assert (same.value, same.objects, same.lost) == (0, 6, 0)
    fewer = compare([one], [Found(boxes[1:], one.scores[1:], one.labels[1:])], (1, 3, 64, 64))
    assert fewer.lost == 1
    nothing = compare([one], [Found(boxes[:0], one.scores[:0], one.labels[:0])], (1, 3, 64, 64))
    assert nothing.lost == 2  # the last one is at the edge of what is kept
