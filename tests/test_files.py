"""Files are whole or absent."""

import errno
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.files import read_tensors, remove_temps, write_bytes, write_tensors, write_text


def test_text_is_written_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "grüße\n")
    write_text(tmp_path / "a.txt", "again")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "again"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_tensors_come_back_bit_equal_whatever_their_layout(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    tensors = {
        "strided": base.t(),
        "slice": base[1:3],
        "same": base,
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "half": torch.randn(3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    write_tensors(tmp_path / "t.safetensors", tensors, {"note": 'ü "quoted"\n', "b": "2", "a": "1"})
    back, metadata = read_tensors(tmp_path / "t.safetensors")
    assert metadata == {"note": 'ü "quoted"\n', "b": "2", "a": "1"}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name


def test_a_header_of_any_length_is_read(tmp_path: Path) -> None:
    """The file begins with the length of its header, which can look like the beginning of a pickle or of a zip file."""
    starts = set()
    for length in range(0, 520, 4):
        write_tensors(tmp_path / "t.safetensors", {"x": torch.ones(1)}, {"note": "n" * length})
        starts.add((tmp_path / "t.safetensors").read_bytes()[0])
        assert read_tensors(tmp_path / "t.safetensors")[1] == {"note": "n" * length}
    assert 0x80 in starts


def test_no_tensors_at_all_is_a_legal_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", {}, {})
    assert read_tensors(tmp_path / "t.safetensors") == ({}, {})


@pytest.mark.slow
def test_the_same_content_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """The library orders metadata by a hash that differs from process to process; published weights need one checksum."""
    script = (
        "import torch, sys, pathlib; from pyramidvit.files import write_tensors\n"
        "write_tensors(pathlib.Path(sys.argv[1]), {'x': torch.ones(3)}, {k: k for k in 'qwertyuiop'})"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=True)
    write_tensors(tmp_path / "b", {"x": torch.ones(3)}, {key: key for key in "poiuytrewq"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("where", ["names", "values", "metadata", "end"])
def test_any_changed_byte_is_noticed(tmp_path: Path, where: str) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"weight": torch.ones(64)}, {"note": "hello"})
    data = path.read_bytes()
    damaged = {
        "names": data.replace(b"weight", b"weighs"),
        "values": data[:-3] + b"\x01" + data[-2:],
        "metadata": data.replace(b"hello", b"hallo"),
        "end": data[:-5],
    }[where]
    assert damaged != data
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="damaged"):
        read_tensors(path)


def test_files_that_are_no_safetensors_are_refused_without_running_code(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "plain.pth").write_bytes(pickle.dumps(Hostile(), protocol=protocol))
        with pytest.raises(UserError, match="safetensors"):
            read_tensors(tmp_path / "plain.pth")
    torch.save({"x": Hostile()}, tmp_path / "zip.pth")
    with pytest.raises(UserError, match=r"weights_only=True\)\n.*save_file") as caught:
        read_tensors(tmp_path / "zip.pth")
    assert "pyramidvit convert" not in str(caught.value)
    for content in (b"", b"12345678", b"\xff" * 100, b"\x10\x00\x00\x00\x00\x00\x00\x00[1,2,3,4,5,6,7]"):
        (tmp_path / "odd").write_bytes(content)
        with pytest.raises(UserError, match="damaged or no safetensors"):
            read_tensors(tmp_path / "odd")
    with pytest.raises(UserError, match="No such file"):
        read_tensors(tmp_path / "absent")
    assert not marker.exists()


def test_a_failed_write_keeps_the_old_file_and_no_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(descriptor: int) -> None:  # noqa: ARG001
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_disk_that_returns_other_bytes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def corrupt(descriptor: int) -> None:
        os.pwrite(descriptor, b"X", 0)

    monkeypatch.setattr(os, "fsync", corrupt)
    with pytest.raises(UserError, match="differs"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_a_real_size_limit_gives_a_message_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"x": torch.ones(10)}, {})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="File too large"):
            write_tensors(path, {"x": torch.ones(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_the_way_to_a_safetensors_file_that_the_message_gives_works(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "it's old.pth")
    with pytest.raises(UserError) as caught:
        read_tensors(tmp_path / "it's old.pth")
    exec("\n".join(line.strip() for line in str(caught.value).splitlines()[1:]), {})
    assert torch.equal(read_tensors(tmp_path / "it's old.safetensors")[0]["x"], torch.ones(2))


def test_a_file_system_that_became_read_only_is_the_error_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing the unfinished file fails then, too, which must not take the place of the reason."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(UserError, match="Read-only file system"):
        write_text(tmp_path / "a.txt", "x")


def test_names_that_are_no_utf8_are_written_and_json_reads_them_back(tmp_path: Path) -> None:
    content = {"paths": [os.fsdecode(b"b\xff.png"), "\\" + os.fsdecode(b"\xfe"), "grüße 🐈"]}
    write_text(tmp_path / "a.json", json.dumps(content, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == content
    write_tensors(tmp_path / "t", {"x": torch.ones(1)}, {"meta": json.dumps(content, ensure_ascii=False)})
    assert json.loads(read_tensors(tmp_path / "t")[1]["meta"]) == content


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        write_bytes(tmp_path / "absent" / "a", b"x")


def test_only_unfinished_files_are_removed(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "keep")
    (tmp_path / ".tmp-99-a.txt").write_text("half")
    (tmp_path / ".hidden").write_text("keep")
    assert [path.name for path in remove_temps(tmp_path)] == [".tmp-99-a.txt"]
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a.txt"]
