"""Each thing that makes training wrong is found, said in words and given a level."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from pyramidvit.data.check import CheckReport, Finding, check_class_data, render
from pyramidvit.data.folders import read_class_data
from pyramidvit.data.image import ReadOptions


def write(root: Path, name: str, value: int = -1, side: int = 40) -> Path:
    """A picture that is like no other, or plain when a value is given."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    array = rng.integers(0, 256, (side, side, 3), dtype=np.uint8) if value < 0 else np.full((side, side, 3), value, np.uint8)
    Image.fromarray(array).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sound data: two classes, eight pictures to train and two to measure each."""
    for name in ("cat", "dog"):
        for i in range(8):
            write(tmp_path, f"train/{name}/{i}.png")
        for i in range(2):
            write(tmp_path, f"val/{name}/v{i}.png")
    return tmp_path


def check(root: Path, **options: object) -> CheckReport:
    return check_class_data(read_class_data(root), ReadOptions(**options), workers=2)  # pyright: ignore[reportArgumentType]


def finding(report: CheckReport, code: str) -> Finding:
    found = [one for one in report.findings if one.code == code]
    assert len(found) == 1, [one.code for one in report.findings]
    return found[0]


def test_sound_data_is_ready(root: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = check_class_data(read_class_data(root), ReadOptions(), on_progress=lambda *step: steps.append(step))
    assert report.ok
    assert report.findings == ()
    assert report.counts == {"train": {"cat": 8, "dog": 8}, "val": {"cat": 2, "dog": 2}}
    assert report.sizes == {"width": (40, 40, 40), "height": (40, 40, 40)}
    assert report.modes == {"RGB": 20}
    assert steps == [(i, 20) for i in range(1, 21)]


def test_damaged_files_are_errors_with_their_reasons(root: Path) -> None:
    """PB-35: cut at 60 %, empty, text under a picture's name; the pre-scan lists them."""
    whole = (root / "train/cat/0.png").read_bytes()
    contents = {"0.png": whole[: len(whole) * 6 // 10], "1.png": b"", "2.jpg": b"I am text"}
    for name, content in contents.items():
        (root / "train/cat" / name).write_bytes(content)
    report = check(root)
    found = finding(report, "damaged")
    assert not report.ok
    assert found.level == "error"
    assert found.paths == ("train/cat/0.png", "train/cat/1.png", "train/cat/2.jpg")
    assert ["cut off" in found.details[0], "0 bytes" in found.details[1], "I am text" in found.details[2]] == [True] * 3


def test_copies_across_splits_and_classes(root: Path) -> None:
    (root / "val/cat/copy.png").write_bytes((root / "train/cat/0.png").read_bytes())
    (root / "train/dog/copy.png").write_bytes((root / "train/cat/1.png").read_bytes())
    (root / "train/dog/again.png").write_bytes((root / "train/dog/1.png").read_bytes())
    report = check(root)
    assert finding(report, "duplicate-splits").paths == ("val/cat/copy.png",)
    assert finding(report, "duplicate-splits").details == ("the same as train/cat/0.png",)
    assert finding(report, "duplicate-classes").paths == ("train/dog/copy.png",)
    assert finding(report, "duplicate").level == "note"
    assert not report.ok


def test_one_copy_among_many_is_a_warning(tmp_path: Path) -> None:
    for i in range(6):
        write(tmp_path, f"train/a/{i}.png", i)
        write(tmp_path, f"train/b/{i}.png", i + 100)
    for i in range(150):
        write(tmp_path, f"val/{'ab'[i % 2]}/{i}.png", side=33 + i)
    write(tmp_path, "val/a/copy.png", 0)
    report = check(tmp_path)
    assert finding(report, "duplicate-splits").level == "warning"
    assert report.ok


def test_classes_missing_here_and_there(root: Path) -> None:
    """PB-30: what the class list of train does to each split is said."""
    write(root, "train/cow/1.png")
    (root / "train/empty").mkdir()
    (root / "train/owl").mkdir()
    write(root, "val/owl/1.png")
    report = check(root)
    assert finding(report, "untrained").details == ("owl",)
    assert finding(report, "untrained").level == "error"
    assert finding(report, "empty").details == ("empty",)
    assert finding(report, "unmeasured").details == ("cow",)
    assert finding(report, "few").details == ("cow",)


def test_uneven_classes_and_one_class(tmp_path: Path) -> None:
    """PB-77: 90 to 10 gets the advice to weight."""
    for i in range(60):
        write(tmp_path, f"many/{i}.png", side=32 + i)
    report = check(tmp_path)
    assert "many is not a class" in finding(report, "one-class").message
    assert report.ok
    for i in range(6):
        write(tmp_path, f"rare/{i}.png")
    assert "--class-weights auto" in finding(check(tmp_path), "uneven").message


def test_no_validation_or_training_pictures(tmp_path: Path) -> None:
    write(tmp_path, "a/1.png")
    write(tmp_path, "b/1.png")
    assert finding(check(tmp_path), "no-validation").level == "warning"
    write(tmp_path / "other", "val/a/1.png")
    assert finding(check(tmp_path / "other"), "no-training").level == "error"


def test_band_count_must_be_that_of_the_network(root: Path) -> None:
    """PB-37."""
    np.save(root / "train/cat/bands.npy", np.zeros((40, 40, 7), np.uint16))
    found = finding(check(root), "bands")
    assert (found.level, found.paths) == ("error", ("train/cat/bands.npy",))
    assert "7 bands" in found.details[0]
    assert len(finding(check(root, in_chans=7), "bands").paths) == 20


def test_deep_pictures_with_a_narrow_or_unknown_range(tmp_path: Path) -> None:
    """12-bit values in 16-bit files look black; the advice is the option to pass."""
    rng = np.random.default_rng(0)
    for name in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / name).mkdir(parents=True)
        for i in range(6):
            np.save(tmp_path / name / f"{i}.npy", rng.integers(100, 4096, (40, 40), dtype=np.uint16))
    report = check(tmp_path)
    assert report.ok
    message = finding(report, "narrow-range").message
    assert "--value-range 10" in message
    assert "409" in message
    assert [f.code for f in check(tmp_path, value_range=(0, 4095)).findings] == []
    np.save(tmp_path / "train/a/float.npy", np.full((40, 40), 300.0))
    write(tmp_path, "train/b/photo.png")
    report = check(tmp_path)
    assert finding(report, "value-range-unknown").level == "error"
    assert "24 of 25" in finding(report, "mixed-depth").message


def test_oddities_are_noted(root: Path) -> None:
    """PB-31, PB-34, small pictures, wrong suffixes, animations."""
    write(root, "train/cat/tiny.png", side=20)
    write(root, "train/cat/really.png").rename(root / "train/cat/really.jpg")
    exif = Image.Exif()
    exif[274] = 6
    Image.open(root / "train/cat/0.png").save(root / "train/cat/phone.jpg", exif=exif)
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    frames[0].save(root / "train/dog/moving.gif", save_all=True, append_images=frames[1:])
    (root / ".DS_Store").touch()
    report = check(root)
    assert report.ok
    for code, path in (
        ("small", "train/cat/tiny.png"),
        ("wrong-suffix", "train/cat/really.jpg"),
        ("turned", "train/cat/phone.jpg"),
        ("frames", "train/dog/moving.gif"),
        ("ignored", ".DS_Store"),
    ):
        assert finding(report, code).paths == (path,)


def test_report_is_plain_json_and_readable_text(root: Path) -> None:
    (root / "train/cat/[red]odd.png").write_bytes(b"text")
    for i in range(20):
        write(root, f"train/class{i:02}/1.png", side=32 + i)
    report = check(root)
    content = json.loads(json.dumps(report.to_json()))
    assert content["ok"] is False
    assert {one["code"] for one in content["findings"]} == {"damaged", "unmeasured", "few", "uneven"}
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(report))
    console.file.close()
    text = console.export_text()
    assert "training would go wrong (1 error, 3 warnings)" in text
    assert "[red]odd.png" in text
    assert "… 10 more" in text
    assert text.index("error:") < text.index("warning:")


def test_grocery_photos_are_sound(shared: Path) -> None:
    data = read_class_data(shared / "data/grocery")
    some = type(data)(data.root, data.classes, {split: items[::10] for split, items in data.splits.items()})
    assert check_class_data(some, ReadOptions()).ok
