"""What README and quick start tell people to type works: commands on a small data set, Python as it stands."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import pyramidvit
from pyramidvit.cli import main
from pyramidvit.data.dense_scenes import write_object_scenes
from pyramidvit.data.motion import write_motion
from pyramidvit.data.scenes import write_scenes

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/quickstart.md", "docs/dense.md", "docs/video.md")
SMALL = ["--batch-size", "8", "--workers", "0", "--threads", "1", "--device", "cpu"]
SMALL_VIEW = ["--short", "64", "--long", "64", "--width", "16", "--max-per-image", "10"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def commands(page: str) -> list[str]:
    lines = [line.split(" #")[0].strip() for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("pyramidvit") and line != "pyramidvit demo"]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """A folder with what the pages speak of."""
    monkeypatch.chdir(tmp_path)
    write_scenes(tmp_path / "scenes", train=24, val=8, size=(40, 40), seed=0)
    (tmp_path / "scenes" / "train").rename(tmp_path / "photos")
    (tmp_path / "scenes" / "val").rename(tmp_path / "other-photos")
    pictures = sorted((tmp_path / "photos").rglob("*.png"))
    (tmp_path / "holiday").mkdir()
    (tmp_path / "photo.jpg").write_bytes(pictures[0].read_bytes())
    (tmp_path / "holiday" / "a.jpg").write_bytes(pictures[1].read_bytes())
    write_object_scenes(tmp_path / "cells", train=8, val=4, size=(64, 64), seed=0)
    write_motion(tmp_path / "clips", train=8, val=8, frames=8, size=(40, 48), seed=0)
    for name in ("clip.mp4", "long.mp4"):
        (tmp_path / name).write_bytes(next((tmp_path / "clips" / "val").rglob("*.mp4")).read_bytes())
    (tmp_path / "cell.png").write_bytes(next((tmp_path / "cells" / "images").glob("*.png")).read_bytes())
    return tmp_path


def run(line: str) -> int:
    words = shlex.split(line)[1:]
    if words[0] == "train" and "--resume" not in words:
        if "--epochs" in words:
            words[words.index("--epochs") + 1] = "1"
        else:
            words += ["--epochs", "1"]
        words = [word for i, word in enumerate(words) if word != "--batch-size" and words[i - 1] != "--batch-size"] + SMALL
        if "--task" in words:
            words = [word for i, word in enumerate(words) if not {word, words[i - 1]} & {"--short", "--long"}] + SMALL_VIEW
        else:
            words += ["--size", "32x32"]
    if words[:2] == ["bench", "scaling"]:
        words += ["pvt_v2_b0", "--sizes", "32", "64", "--threads", "1"]
    elif words[0] == "bench":
        words += ["--size", "64x64", "--rounds", "3", "--threads", "1"]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page, workplace):
    lines = [line for line in commands(page) if "--help" not in line]
    assert len(lines) >= 4
    if page == "docs/dense.md":  # its commands come after those of the README
        assert run("pyramidvit train cells --task detect") == 0
    if page == "docs/quickstart.md":
        assert run("pyramidvit train photos --model pvt_v2_b0") == 0
        (workplace / "runs/classify/pvt_v2_b0-1/weights/best.safetensors").rename(workplace / "pvt_v2_b0.safetensors")
        (workplace / "runs").rename(workplace / "before")
    for line in lines:
        assert run(line) == 0, line


@pytest.mark.slow
def test_every_python_block_runs(workplace):
    assert run("pyramidvit train photos --model pvt_v2_b0") == 0
    assert run("pyramidvit train cells --task detect") == 0
    assert run("pyramidvit train clips") == 0
    for page in PAGES:
        names = {"images": torch.zeros(1, 3, 64, 64), "pyramidvit": pyramidvit}
        for code in blocks(page, "python"):
            exec(compile(code, page, "exec"), names)
    assert (workplace / "annotated.png").exists()


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
