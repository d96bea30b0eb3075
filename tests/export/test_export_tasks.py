"""Every task and kind of network as a file: what is found is what the network finds."""

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyramidvit
from pyramidvit.bench.measure import in_fresh_process
from pyramidvit.config import RunConfig
from pyramidvit.errors import UserError
from pyramidvit.export import write
from pyramidvit.export.detectors import find_boxes, find_masks, propose
from pyramidvit.export.exported import Exported, load_exported
from pyramidvit.export.suppress import suppress
from pyramidvit.export.translations import translations
from pyramidvit.export.verify import compare, reference, settled
from pyramidvit.models import BACKBONES, mask_rcnn, retinanet
from pyramidvit.models.box_coder import decode, shifted
from pyramidvit.models.found import Found
from pyramidvit.models.pvt_v2 import average_to
from pyramidvit.models.rpn import propose as propose_one_by_one
from pyramidvit.predict import Predictor
from pyramidvit.tasks.table import TASKS
from pyramidvit.types import Batch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SMALL = {"preset": "small"}
VALID = [(160, 224), (128, 150), (96, 224)]


def predictor(task: str, name: str = "pvt_v2_b0", **settings: object) -> Predictor:
    """With random weights, wide enough apart that detectors find something."""
    torch.manual_seed(0)
    config = RunConfig.model_validate({"task": task, "model": {"name": name}, **settings})
    made = TASKS[task](config, ("cat", "dog", "cow"))
    model = made.model()
    for part, weight in model.named_parameters():
        if part in ("classes.weight", "roi_heads.box.classes.weight", "rpn.objectness.weight"):
            torch.nn.init.normal_(weight, 0, 0.3)
        if part in ("boxes.weight", "roi_heads.box.boxes.weight", "rpn.boxes.weight"):
            torch.nn.init.normal_(weight, 0, 0.02)
    return Predictor(made, model, torch.device("cpu"))


@pytest.fixture(scope="module")
def detector() -> Predictor:
    return predictor("detect", head=SMALL)


@pytest.fixture(scope="module")
def segmenter() -> Predictor:
    return predictor("instances", head=SMALL)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.nn.functional.interpolate(torch.randn(3, 3, 10, 14), (160, 224), mode="bilinear")
    x[1, :, 128:], x[1, :, :, 150:], x[2, :, 96:] = 0, 0, 0
    return x


def found_of(image: torch.Tensor, *columns: torch.Tensor) -> list[Found]:
    return [
        Found(columns[0][image == i], columns[2][image == i], columns[1][image == i], *(c[image == i] for c in columns[3:]))
        for i in range(3)
    ]


def test_boxes_found_all_at_once(detector: Predictor, pictures: torch.Tensor) -> None:
    """What is in the graph, run by torch, finds what `retinanet.detect` finds picture by picture."""
    with torch.no_grad():
        outputs = detector.model(pictures)
        expected = retinanet.detect(outputs, VALID)
        got = found_of(*find_boxes(outputs, torch.tensor(VALID)))
    assert min(len(one.boxes) for one in expected) > 3
    difference = compare(expected, got, (3, 3, 160, 224))
    assert difference.value < 1e-5
    assert difference.lost == 0
    assert [len(one.boxes) for one in got] == [len(one.boxes) for one in expected]


@pytest.mark.slow
def test_proposals_and_masks_found_all_at_once(segmenter: Predictor, pictures: torch.Tensor) -> None:
    with torch.no_grad():
        outputs = segmenter.model(pictures)
        one_by_one = propose_one_by_one(outputs.maps, outputs.config.rpn, VALID)
        together = propose(outputs.maps, outputs.config.rpn, torch.tensor(VALID))
        for i, some in enumerate(one_by_one):
            there = together.scores[i] > 0
            torch.testing.assert_close(together.boxes[i][there], some.boxes)
        expected = mask_rcnn.detect(outputs, VALID)
        found, masks = find_masks(outputs, torch.tensor(VALID))
        got = found_of(*found, masks)
    assert sum(len(one.boxes) for one in expected) > 3
    difference = compare(expected, got, (3, 3, 160, 224))
    assert difference.value < 1e-4
    assert difference.lost == 0


def test_suppression_keeps_the_best_of_each_group() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 10], [1, 1, 11, 11], [30, 30, 40, 40], [0, 0, 10, 9]]])
    scores = torch.tensor([[[0.5, 0.9, 0.3, 0.0], [0.0, 0.0, 0.0, 0.8]]])
    kept = suppress(boxes, scores, 0.5, 10)
    assert kept.tolist() == torch.tensor([[[0.0, 0.9, 0.3, 0.0], [0.0, 0.0, 0.0, 0.8]]]).tolist()
    assert (suppress(boxes, scores, 0.5, 1) > 0).sum(2).tolist() == [[1, 1]]


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("places", [(5,), (6, 7), (2, 3, 4)])
def test_group_norm_in_operators_of_onnx(places: tuple[int, ...], affine: bool, tmp_path: Path) -> None:
    """Of any rank, with weights and without, and where the mean is far larger than the deviation."""
    onnxruntime = pytest.importorskip("onnxruntime")
    norm = torch.nn.GroupNorm(3, 12, eps=1e-3, affine=affine).eval().requires_grad_(False)
    if affine:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    x = torch.randn(2, 12, *places) + torch.arange(24.0).reshape(2, 12, *[1] * len(places)) * 10
    torch.onnx.export(norm, (x,), tmp_path / "norm.onnx", dynamo=True, custom_translation_table=translations(), verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "norm.onnx", providers=["CPUExecutionProvider"])
    assert "InstanceNormalization" not in (tmp_path / "norm.onnx").read_bytes().decode(errors="ignore")
    torch.testing.assert_close(
        torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]), norm(x), rtol=0, atol=2e-5
    )


def test_boxes_are_shifted_then_cut() -> None:
    origins, deltas = torch.tensor([[5.0, 5, 15, 25]]), torch.tensor([[0.5, -1.0, 0.7, 0.1]])
    cut = decode(origins, deltas, (20, 12))
    assert torch.equal(cut, shifted(origins, deltas).clamp(min=0).minimum(torch.tensor([12.0, 20, 12, 20])))


@pytest.mark.parametrize("size", [(56, 56), (7, 7), (64, 40), (15, 3)])
def test_pooling_as_a_product(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-96: sizes that 7 divides and doesn't, and maps smaller than 7."""
    x = torch.randn(2, *size, 5)
    expected = average_to(x, 7)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    torch.testing.assert_close(average_to(x, 7), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("task", ["detect", "instances"])
def test_detectors_as_files(task: str, suffix: str, pictures: torch.Tensor, tmp_path: Path) -> None:
    """Busy pictures, empty ones in which nothing is found, and both in a batch, of any size; as ONNX by both runtimes."""
    pytest.importorskip("openvino")
    owner = predictor(task, head=SMALL)
    empty, mixed = torch.zeros_like(pictures[:1]), torch.cat([pictures[:1], torch.zeros_like(pictures[:1]), pictures[2:]])
    overlook_empty(owner, empty)
    report = owner.export(tmp_path / f"model{suffix}")
    assert report.size is None
    assert max(one.objects or 0 for one in report.differences) > 10
    for backend in ("onnx", "openvino") if suffix == ".onnx" else ("torch",):
        file = load_exported(tmp_path / f"model{suffix}", backend)
        for x, valid in ((pictures, VALID), (mixed, VALID), (empty[..., :96, :128], [(96, 128)]), (pictures[:1], VALID[:1])):
            with torch.no_grad():
                expected, got = reference(owner.model, x, valid), settled(file(x), valid)
            difference = compare(expected, got, tuple(x.shape))
            assert difference.value < 1e-4, backend
            assert difference.lost <= 1, backend
            for entry, one in zip(x, got, strict=True):
                assert (len(one.boxes) > 0) == bool(entry.any()), backend
    picture = np.random.default_rng(0).integers(0, 255, (120, 170, 3), np.uint8)
    alone = pyramidvit.load(tmp_path / f"model{suffix}")
    assert abs(len(alone(picture).prediction) - len(owner(picture).prediction)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detect", "instances"])
def test_detectors_in_8_bits(task: str, pictures: torch.Tensor, tmp_path: Path) -> None:
    """OpenVINO runs them at a shape of its own graphs and at any other, which needs what it forgets of boxes in graphs of 8 bits."""
    pytest.importorskip("openvino")
    owner = predictor(task, head=SMALL)
    batch = Batch(pictures[:1], (None,), ("drawn",), ((160, 224),), ((160, 224),))
    meta = owner.task.weights_meta(owner.task.measured)
    write.export(owner.model, meta, owner.task.input_shape, tmp_path / "model.xml", "openvino", precision="int8", calibration=[batch])
    file = load_exported(tmp_path / "model.xml")
    for x in (pictures, pictures[:1], pictures[:2, :, :96, :128]):
        valid = [(x.shape[2], x.shape[3])] * len(x)
        found = settled(file(x), valid)
        assert len(found) == len(x)
        assert len(found[0].boxes) > 3
        assert bool((found[0].boxes >= 0).all())
        assert float(found[0].boxes.max()) <= max(valid[0])


def overlook_empty(owner: Predictor, empty: torch.Tensor) -> None:
    """Nothing is found in an empty picture, by the threshold."""
    with torch.no_grad():
        (found,) = reference(owner.model, empty, [(empty.shape[2], empty.shape[3])])
    model: Any = owner.model  # either of two, each with settings of its own
    highest = max([model.config.score_threshold, *found.scores.tolist()])
    model.config = replace(model.config, score_threshold=highest + 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "format"),
    [
        ("classify", "pvt_tiny", ".onnx"),
        ("classify", "pvt_v2_b2_li", ".onnx"),
        ("classify", "mvit_base16", ".onnx"),
        ("classify", "timm/resnet18", ".onnx"),
        ("segment", "pvt_v2_b0", ".onnx"),
        ("video", "mvit_mini_8x2", ".xml"),
        ("classify", "pvt_v2_b0", ".pt2"),
        ("segment", "pvt_v2_b0", ".pt2"),
        ("video", "mvit_mini_8x2", ".pt2"),
    ],
)
def test_tasks_and_networks_as_files(task: str, name: str, format: str, tmp_path: Path) -> None:
    """Each is verified at three sizes and batches by the export itself; the difference is said."""
    pytest.importorskip("openvino")
    settings: dict[str, object] = {"head": SMALL} if task == "segment" else {}
    report = predictor(task, name, **settings).export(tmp_path / f"model{format}")
    assert report.largest is not None
    assert report.largest < 1e-4
    assert report.size is None
    assert len(report.differences) == 3


@pytest.mark.slow
def test_relative_positions_of_clips_as_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices computed in floats made OpenVINO rewrite their graph without end; whole numbers don't."""
    pytest.importorskip("openvino")
    kind, config = BACKBONES["mvit_mini_8x2"]
    monkeypatch.setitem(BACKBONES, "mvit_mini_8x2", (kind, replace(config, v2=True, widen_in_attention=True)))
    report = predictor("video", "mvit_mini_8x2").export(tmp_path / "model.xml")
    assert report.largest is not None
    assert report.largest < 1e-5


@pytest.mark.slow
def test_views_stay_outside_of_the_graph(tmp_path: Path) -> None:
    """PB-101: several views of a clip give what the network gives for them."""
    owner = predictor("video", "mvit_mini_8x2")
    owner.export(tmp_path / "model.onnx")
    file, views = load_exported(tmp_path / "model.onnx", "onnx"), torch.randn(2, 3, 3, 8, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(file(views), owner.model(views), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_networks_of_one_size_say_so(tmp_path: Path) -> None:
    """PB-95: a file that takes one size only says so in its description and when it is called."""
    owner = predictor("classify", "timm/vit_tiny_patch16_224")
    report = owner.export(tmp_path / "model.onnx")
    file = load_exported(tmp_path / "model.onnx", "onnx")
    assert isinstance(file, Exported)
    if report.size is not None:
        with pytest.raises(UserError, match="of 224x224 only"):
            file(torch.zeros(1, 3, 96, 96))


def _export_small_mvit(path: str) -> float:
    """GB that a process needs at most to export it."""
    predictor("classify", "mvitv2_small").export(path)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@pytest.mark.slow
def test_the_small_mvit_v2_is_exported_within_4_gb(tmp_path: Path) -> None:
    """PB-94: its relative positions don't fill the memory, and the file gives the same to 1e-4 (or it would not be there)."""
    assert in_fresh_process(_export_small_mvit, str(tmp_path / "model.onnx")) < 4
    assert (tmp_path / "model.onnx").is_file()
