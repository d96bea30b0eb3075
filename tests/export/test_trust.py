"""Model files may not reach outside their folder, nor run anything."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pyramidvit.errors import BadFileError
from pyramidvit.export import trust
from pyramidvit.export.trust import check_openvino, check_program, open_onnx

onnx = pytest.importorskip("onnx")


def model_with(folder: Path, location: str, *, inside: bool = False, **place: str) -> Path:
    """An ONNX file whose only tensor is said to be elsewhere, in the graph or in a branch of it."""
    tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), "weight")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **place}.items():
        tensor.external_data.add(key=key, value=value)
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    node = onnx.helper.make_node("Constant", [], ["y"], value=tensor) if inside else onnx.helper.make_node("Identity", ["weight"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [output], [] if inside else [tensor])
    if inside:
        branch = onnx.helper.make_node("If", ["c"], ["z"], then_branch=graph, else_branch=graph)
        graph = onnx.helper.make_graph([branch], "outer", [onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])], [])
    path = folder / "model.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "C:\\secret", "..\\secret", "\\\\host\\secret", ""])
def test_tensors_outside_of_the_folder(tmp_path: Path, location: str, inside: bool) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    with pytest.raises(BadFileError, match="outside of the model's folder"):
        open_onnx(model_with(tmp_path / "m", location, inside=inside))


@pytest.mark.parametrize("kind", ["file", "folder", "hard"])
def test_tensors_behind_links(tmp_path: Path, kind: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "out").mkdir()
    secret = tmp_path / "out" / "secret"
    secret.write_bytes(bytes(16))
    if kind == "folder":
        (tmp_path / "m" / "data").symlink_to(tmp_path / "out")
    elif kind == "file":
        (tmp_path / "m" / "data").symlink_to(secret)
    else:
        os.link(secret, tmp_path / "m" / "data")
    with pytest.raises(BadFileError, match="is a link"):
        open_onnx(model_with(tmp_path / "m", "data/secret" if kind == "folder" else "data"))


def test_tensors_longer_than_their_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(16))
    assert open_onnx(model_with(tmp_path, "data", offset="0", length="16")).graph.name == "g"
    for place in ({"offset": "8", "length": "16"}, {"offset": "-1"}, {"length": "many"}):
        with pytest.raises(BadFileError, match=r"byte|number"):
            open_onnx(model_with(tmp_path, "data", inside=False, **place))


def test_onnx_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x80\x04 not a graph")
    with pytest.raises(BadFileError, match="no ONNX file"):
        open_onnx(path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    with pytest.raises(BadFileError, match="it is a link"):
        open_onnx(link)
    monkeypatch.setattr(trust, "MAX_ONNX", 4)
    with pytest.raises(BadFileError, match="at most 4"):
        open_onnx(path)


def test_descriptions_that_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = onnx.helper.make_graph([], "g", [], [])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"pyramidvit": "x" * 2000})
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    open_onnx(tmp_path / "model.onnx")
    monkeypatch.setattr(trust, "MAX_HEADER", 1000)
    with pytest.raises(BadFileError, match="1,000 are allowed"):
        open_onnx(tmp_path / "model.onnx")


def test_openvino_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tensors = tmp_path / "model.xml", tmp_path / "model.bin"
    tensors.write_bytes(bytes(16))
    good = b'<?xml version="1.0"?>\n<net name="g"><data element_type="f32" shape="4" offset="0" size="16"/></net>'
    graph.write_bytes(good)
    check_openvino(graph)
    for text, message in (
        (b'<!DOCTYPE x [<!ENTITY a "b">]>' + good, "entities"),
        (good.replace(b'size="16"', b'size="17"'), "byte 17"),
        (b"<html/>", "no graph"),
    ):
        graph.write_bytes(text)
        with pytest.raises(BadFileError, match=message):
            check_openvino(graph)
    graph.write_bytes(good)
    tensors.rename(tmp_path / "other.bin")
    tensors.symlink_to(tmp_path / "other.bin")
    with pytest.raises(BadFileError, match="it is a link"):
        check_openvino(graph)
    monkeypatch.setattr(trust, "MAX_HEADER", 10)
    with pytest.raises(BadFileError, match="at most 10"):
        check_openvino(graph)


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("data/sample_inputs/model.pt", b"\x80\x04pickle", "could run code"),
        ("data/aotinductor/model/a.so", b"\x7fELF", "could run code"),
        ("data/weights/model_weights_config.json", json.dumps({"w": {"use_pickle": True}}).encode(), "use_pickle"),
        ("models/model.json", json.dumps([{"target": "torch.hub.load"}]).encode(), "torch.hub.load"),
        ("models/model.json", json.dumps([{"target": "torch.ops.aten.add.Tensor.__class__"}]).encode(), "__class__"),
        ("models/model.json", json.dumps({"expr_str": "__import__('os').system('x')"}).encode(), "__import__"),
        ("models/model.json", json.dumps({"expr_str": "Symbol('s0').func"}).encode(), "func"),
        ("models/model.json", b"{", "damaged"),
    ],
)
def test_programs_that_could_run_code(tmp_path: Path, member: str, content: bytes, message: str) -> None:
    buffer = io.BytesIO()
    members = {"archive_format": b"pt2", "models/model.json": b"{}"} | {member: content}
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    (tmp_path / "model.pt2").write_bytes(buffer.getvalue())
    with pytest.raises(BadFileError, match=message):
        check_program(tmp_path / "model.pt2")


def test_programs_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"\x80\x04.")
    with pytest.raises(BadFileError, match="no program"):
        check_program(tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "photos.pt2", "w") as archive:
        archive.writestr("photos/a.txt", "hello")
    with pytest.raises(BadFileError, match="no program of torch: it has no archive_format"):
        check_program(tmp_path / "photos.pt2")
