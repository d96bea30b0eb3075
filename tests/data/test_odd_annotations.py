"""Annotations with what people's files really have in them: a message or the right meaning, never a fault of ours."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pyramidvit.cli import main

LATIN = "Zellkern \xe4".encode("latin-1")


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert isinstance(left.value.code, int)
    return left.value.code


def picture(path: Path, size: tuple[int, int] = (48, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(sum(path.name.encode())).integers(0, 255, (*size, 3), np.uint8)).save(path)


def coco(root: Path, *, names: tuple[str, ...] = ("a.png", "b.png"), category: object = 1, crowd: object = 0) -> Path:
    root.mkdir()
    for split in ("train", "val"):
        images = [{"id": i, "file_name": f"{split}_{name}", "height": 48, "width": 64} for i, name in enumerate(names)]
        for image in images:
            if len(str(image["file_name"])) < 200:
                picture(root / "images" / str(image["file_name"]))
        objects = [
            {"id": i, "image_id": i, "category_id": category, "bbox": [4, 4, 20, 20], "area": 400, "iscrowd": crowd}
            for i in range(len(names))
        ]
        content = {"images": images, "annotations": objects, "categories": [{"id": category, "name": "cell"}]}
        (root / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def yolo(root: Path, names: bytes) -> Path:
    for split in ("train", "val"):
        picture(root / "images" / split / "a.png")
        (root / "labels" / split).mkdir(parents=True)
        (root / "labels" / split / "a.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (root / "classes.txt").write_bytes(names)
    return root


def voc(root: Path, width: str) -> Path:
    picture(root / "JPEGImages" / "a.png")
    (root / "Annotations").mkdir()
    box = "<bndbox><xmin>4</xmin><ymin>4</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>"
    size = f"<size><width>{width}</width><height>48</height><depth>3</depth></size>"
    text = f"<annotation><filename>a.png</filename>{size}<object><name>cell</name>{box}</object></annotation>"
    (root / "Annotations" / "a.xml").write_text(text)
    return root


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: yolo(root, LATIN), "classes.txt"),
        (lambda root: voc(root, "inf"), "a.xml can't be used"),
        (lambda root: coco(root, names=("a" * 300 + ".png",)), "more than 255 letters"),
        (lambda root: coco(root, crowd="perhaps"), "is damaged"),
        (lambda root: coco(root, crowd=1), "nothing can be learned"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_message(make, message, tmp_path, capsys):
    assert run("check", make(tmp_path / "data"), "--task", "detect") == 2
    out, err = capsys.readouterr()
    assert message in " ".join((out + err).split())


def test_numbers_may_be_text(tmp_path, capsys):
    """Crowds said by "0" were all crowds once, and were neither learned nor counted."""
    assert run("check", coco(tmp_path / "data", category="--5", crowd="0"), "--task", "detect") == 0
    assert "crowd" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--strides", "8", "16", "40"), "double from one to the next"), (("--width", "20", "--norm-groups", "3"), "multiple of them")],
)
def test_heads_that_cannot_be_built(flags, message, tmp_path, capsys):
    data = coco(tmp_path / "data")
    assert run("train", data, "--task", "detect", *flags, "--runs", tmp_path / "runs") == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()
