"""`export` and `--backend` on the command line: a run, its exports, and what fewer bits cost."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyramidvit.cli import main
from pyramidvit.data.scenes import write_scenes
from pyramidvit.export import write
from pyramidvit.export.exported import load_exported
from pyramidvit.export.program import Traced
from pyramidvit.verbs.export import Judge

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
QUICK = ["--size", "32x32", "-b", "8", "--workers", "0", "--threads", "1", "--warmup-epochs", "0", "--device", "cpu", "--epochs", "1"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "scenes"
    write_scenes(folder, train=16, val=16, size=(40, 48), seed=1)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch with an export in its folder."""
    runs = tmp_path_factory.mktemp("runs")
    assert run("train", data, "--runs", runs, "--name", "first", "--model", "pvt_v2_b0", *QUICK) == 0
    folder = runs / "classify" / "first"
    assert run("export", folder) == 0
    assert (folder / "exports" / "pvt_v2_b0.onnx").is_file()
    return folder


@pytest.fixture
def quick(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the export that is there in the place of tracing the network again."""
    done = trained / "exports" / "pvt_v2_b0.onnx"
    monkeypatch.setattr(write, "trace", lambda *_: Traced(None))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(write, "write_onnx", lambda path, *_: shutil.copy(done, path))


def answers(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    """What was printed as JSON, and what was said on standard error."""
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_a_run_and_its_export_answer_alike(trained: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PB-99: measured on the same folder, through the exported file, the run behind a backend, and the run itself."""
    capsys.readouterr()
    file, picture = trained / "exports" / "pvt_v2_b0.onnx", next(data.rglob("*.png"))
    results = []
    for network, backend in ((trained, "torch"), (trained, "onnx"), (file, "onnx")):
        assert run("evaluate", network, data, "--split", "val", "--backend", backend, "--json") == 0
        assert run("predict", network, picture, "--backend", backend, "--json") == 0
        (measured, found), said = answers(capsys)
        assert "exporting" not in said  # the one in the run's folder will do
        results.append((measured, found))
    for measured, found in results[1:]:
        for name in ("top1", "n", "loss"):
            assert measured.get(name) == pytest.approx(results[0][0].get(name), abs=1e-5)
        assert [one["class"] for one in found["top"]] == [one["class"] for one in results[0][1]["top"]]


@pytest.mark.usefixtures("quick")
def test_fewer_bits_say_what_they_cost(trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The metric before and after on the user's data, and the gain in time; both files are smaller and predict."""
    full = (trained / "exports" / "pvt_v2_b0.onnx").stat().st_size
    for flag, share in ((["--fp16"], 0.6), (["--int8", data, "--samples", 4], 0.5)):
        out = tmp_path / f"{flag[0]}.onnx"
        capsys.readouterr()
        assert run("export", trained, *flag, "--out", out, "--max-drop", 1, "--json") == 0
        ((report,), _) = answers(capsys)
        assert report["cost"]["samples"] == 16
        assert 0 <= report["cost"]["before"] <= 1
        assert 0 <= report["cost"]["after"] <= 1
        assert report["cost"]["speed"] > 0
        assert (report["largest_difference"] is None) == ("int8" in out.name)  # which only a metric can judge
        assert out.stat().st_size < share * full
        assert load_exported(out, "onnx").description.precision == flag[0].removeprefix("--")
        assert run("predict", out, next(data.rglob("*.png")), "--json") == 0


@pytest.mark.usefixtures("quick")
def test_a_harmful_loss_of_bits_keeps_no_file(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it was forced."""
    results = iter([0.9, 0.85] * 2)
    monkeypatch.setattr(Judge, "_headline", lambda *_: ("Top-1 accuracy", next(results)))
    assert run("export", trained, "--fp16", "--out", tmp_path / "model.onnx") == 2
    assert "drops from 90.0% to 85.0%" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
    assert run("export", trained, "--fp16", "--out", tmp_path / "model.onnx", "--force") == 0
    assert "90.0% → 85.0% on 16 samples" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """The command line's own handler of signals goes again."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("quick", "handlers")
def test_a_stopped_export_leaves_nothing(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle; what SIGKILL left is removed by a later export once it is old, that of a living process never."""
    with monkeypatch.context() as patch:
        patch.setattr(write, "write_onnx", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert run("export", trained, "--out", tmp_path / "model.onnx") == 128 + signal.SIGTERM
    assert [*tmp_path.iterdir()] == []
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    old, fresh, ours = (tmp_path / f"{write.WORKSHOP}{name}" for name in (f"{gone}-a", f"{gone}-b", f"{os.getpid()}-c"))
    for folder in (old, fresh, ours):
        folder.mkdir()
        (folder / "half.onnx").write_text("half")
    for folder in (old, ours):
        os.utime(folder, (0, 0))
    assert run("export", trained, "--out", tmp_path / "model.onnx") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([fresh.name, ours.name, "model.onnx"])


def test_mistakes_are_told(trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained / "exports" / "pvt_v2_b0.onnx"
    for arguments, message in (
        ((trained, "--fp16", "--int8", data), "choose one"),
        ((file, "--out", tmp_path / "a.onnx"), "an exported file already"),
        ((trained, "--format", "torch", "--fp16", "--out", tmp_path / "a.pt2"), "keeps full precision"),
        ((trained, "--out", tmp_path / "a.tflite"), "name of no export"),
        ((trained, "--format", "onnx", "--out", tmp_path / "a.xml"), "end in .onnx"),
    ):
        capsys.readouterr()
        assert run("export", *arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
