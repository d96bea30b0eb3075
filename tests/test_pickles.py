"""Pickled files of others are read as data: real ones whole, hostile and damaged ones refused, and nothing is ever run."""

import argparse
import io
import os
import pickle
import random
import struct
import sys
import types
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.files import DamagedFile
from pyramidvit.weights import machine, pickles
from pyramidvit.weights.claims import Skipped
from pyramidvit.weights.pickles import read_pickle


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "w.pth"


def state_dict() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0).reshape(4, 6)
    integers = {str(t): torch.arange(5).to(t) for t in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)}
    floats = {str(t): torch.randn(3, 2).to(t) for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    shared = {"slice": base[1:, 2:], "transposed": base.T, "base": base, "scalar": torch.tensor(3.5), "empty": torch.empty(0, 3)}
    return OrderedDict(integers | floats | shared | {"parameter": torch.nn.Parameter(torch.randn(2))})


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_are_those_that_torch_reads(file, zipped, protocol):
    torch.save({"model": state_dict(), "epoch": 3}, file, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    got = read_pickle(file)
    assert got["epoch"] == 3
    want = state_dict()
    assert list(got["model"]) == list(want)
    for name, tensor in got["model"].items():
        assert (tensor.dtype, tensor.shape) == (want[name].dtype, want[name].shape)
    if protocol == 2:
        want = torch.load(file, weights_only=True)["model"]
        assert all(torch.equal(tensor, want[name]) and tensor.stride() == want[name].stride() for name, tensor in got["model"].items())
    assert torch.equal(got["model"]["slice"], torch.arange(24.0).reshape(4, 6)[1:, 2:])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_of_arrays(file, protocol):
    """As detectron2 publishes them."""
    arrays = {
        "f": np.random.default_rng(0).normal(size=(2, 3)).astype("f4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(4, dtype=">i4"),
        "none": np.zeros((0, 2), "f2"),
    }
    file.write_bytes(pickle.dumps({"model": arrays, "text": np.array(["a"]), "objects": np.array([{}, 1], dtype=object)}, protocol))
    got = read_pickle(file)
    for name, array in arrays.items():
        np.testing.assert_array_equal(got["model"][name].numpy(), array)
    assert isinstance(got["text"], Skipped)
    assert isinstance(got["objects"], Skipped)
    got["model"]["f"].add_(1)  # of its own memory


def test_what_old_programs_leave_beside_tensors_is_skipped(file, monkeypatch):
    """PB-27: namespaces, NumPy scalars and configurations; those whose package is not installed as well."""
    package = types.ModuleType("yacs.config")

    class CfgNode(dict):
        def __init__(self) -> None:
            super().__init__(LR=0.1)
            self.frozen = True

    CfgNode.__module__, CfgNode.__qualname__, package.CfgNode = "yacs.config", "CfgNode", CfgNode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", package)
    content = {
        "args": argparse.Namespace(lr=0.1, path=Path("x")),
        "cfg": CfgNode(),
        "best": np.float64(0.75),
        "step": np.int64(7),
        "seen": {"a", "b"},
        "counts": Counter("aab"),
        "groups": defaultdict(list, a=[1]),
        "size": torch.Size([2, 3]),
        "model": {"w": torch.ones(2)},
        "raw": b"\x00\xff",
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "rng": np.random.default_rng(0).integers(0, 9, 3),
    }
    torch.save(content, file)
    monkeypatch.delitem(sys.modules, "yacs.config")
    got = read_pickle(file)
    assert got["args"] == Skipped("argparse.Namespace")
    assert got["cfg"] == Skipped("yacs.config.CfgNode")
    assert (got["best"], got["step"], got["seen"], got["raw"]) == (0.75, 7, {"a", "b"}, b"\x00\xff")
    assert (got["counts"], got["groups"], got["size"]) == ({"a": 2, "b": 1}, {"a": [1]}, (2, 3))
    assert torch.equal(got["model"]["w"], torch.ones(2))


def complaint_about(file: Path) -> str:
    """What the error says, or the file's name when it is read; any other exception fails the test."""
    try:
        read_pickle(file)
    except UserError as error:
        return str(error)
    return str(file)


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class WithState:
    def __init__(self, state) -> None:
        self.state = state

    def __reduce__(self):
        return OrderedDict, (), self.state


def hostile(marker: str) -> dict[str, object]:
    code = f"import os; os.mkdir({marker!r})"
    return {
        "os.system": Call(os.system, f"mkdir {marker}"),
        "eval": Call(eval, f"__import__('os').mkdir({marker!r})"),
        "exec": Call(exec, code),
        "nested": {"model": [({"a": Call(eval, f"__import__('os').mkdir({marker!r})")},)]},
        "getattr chain": Call(getattr, Call(__import__, "os"), "mkdir"),
        "getattr of a skipped class": Call(getattr, argparse.Namespace, "__init__"),
        "code of a module": Call(__import__, "antigravity"),
        "a whole network": torch.nn.Linear(2, 2),
        "state of a dict that calls": WithState({"x": Call(os.mkdir, marker)}),
        "hub": Call(torch.hub.load, "owner/name", "entry"),
        "torch.load": Call(torch.load, "other.pth"),
    }


@pytest.mark.parametrize("zipped", [True, False, None], ids=["zip", "legacy", "plain"])
@pytest.mark.parametrize("attack", hostile(""))
def test_whatever_would_run_is_refused_and_does_not(file, zipped, attack, monkeypatch):
    marker = file.parent / "ran"
    content = hostile(str(marker))[attack]
    if zipped is None:
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save({"w": torch.ones(1), "x": content}, file, _use_new_zipfile_serialization=zipped)
    before = set(sys.modules)
    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    with pytest.raises(UserError, match=r"is refused: .*Nothing in it was run"):
        read_pickle(file)
    assert not marker.exists()
    assert set(sys.modules) == before


def pickled(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"


def tensor_claim(offset: bytes, size: bytes, stride: bytes) -> bytes:
    return pickled(b"ctorch._utils\n_rebuild_tensor_v2\n(", STORAGE, offset, size, stride, b"\x89ccollections\nOrderedDict\n)RtR")


def write_zip(path: Path, members: dict[str, bytes], *, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


HUGE = b"\x8a\x06" + (10**12).to_bytes(6, "little")


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (b"K\x00", HUGE + b"\x85", b"K\x01\x85"),
        (b"K\x00", HUGE + b"\x85", b"K\x00\x85"),
        (b"K\x03", b"K\x02\x85", b"K\x01\x85"),
        (HUGE, b"K\x01\x85", b"K\x01\x85"),
        (b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85"),
        (b"K\x00", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
        (b"K\x00", b"K\x02K\x02\x86", b"K\x01\x85"),
        (b"K\x00", b"X\x01\x00\x00\x00a\x85", b"K\x01\x85"),
        (b"K\x00", b"(" + b"K\x01" * 60 + b"t", b"(" + b"K\x01" * 60 + b"t"),
    ],
    ids=["longer", "repeated", "past the end", "far offset", "negative offset", "negative stride", "axes", "text", "60 axes"],
)
def test_a_tensor_stays_within_its_storage(file, offset, size, stride):
    write_zip(file, {"a/data.pkl": tensor_claim(offset, size, stride), "a/data/0": b"\x00" * 16})
    with pytest.raises(UserError, match=r"is refused: it (claims|describes) a tensor"):
        read_pickle(file)


def test_the_same_claim_with_sound_sizes_is_read(file):
    """So that the refusals above are for the sizes and for nothing else."""
    write_zip(file, {"a/data.pkl": tensor_claim(b"K\x01", b"K\x03\x85", b"K\x01\x85"), "a/data/0": struct.pack("4f", 1, 2, 3, 4)})
    assert read_pickle(file).tolist() == [2, 3, 4]


@pytest.mark.parametrize("stored", [0, 15, 17])
def test_a_storage_has_the_bytes_that_it_claims(file, stored):
    write_zip(file, {"a/data.pkl": tensor_claim(b"K\x00", b"K\x04\x85", b"K\x01\x85"), "a/data/0": b"\x00" * stored})
    with pytest.raises(DamagedFile, match=f"4 values .* has {stored} bytes"):
        read_pickle(file)


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/..\\evil"])
def test_members_named_as_if_elsewhere_are_refused(file, name):
    write_zip(file, {"a/data.pkl": pickled(b"}"), name: b"x"})
    with pytest.raises(UserError, match="a member is named"):
        read_pickle(file)
    assert list(file.parent.iterdir()) == [file]


def test_packed_members_are_refused(file):
    """A zip bomb needs them."""
    write_zip(file, {"a/data.pkl": pickled(b"}"), "a/data/0": bytes(10_000_000)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="is compressed"):
        read_pickle(file)


def test_programs_of_torchscript_are_called_by_their_name(file):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", b"")
        archive.writestr("net/code/__torch__.py", "class Net: pass")
    with pytest.raises(UserError, match="it is a TorchScript program"):
        read_pickle(file)


def test_members_that_share_bytes_are_refused(file):
    """The other kind of zip bomb: many entries of the list point to the same place."""
    write_zip(file, {"a/data.pkl": pickled(b"}"), "a/data/0": bytes(1000)})
    data = file.read_bytes()
    start = data.index(b"PK\x01\x02")
    entries, end = data[start : data.index(b"PK\x05\x06")], data[data.index(b"PK\x05\x06") :]
    second = entries[entries.index(b"PK\x01\x02", 4) :]
    extra = b"".join(second.replace(b"a/data/0", b"a/data/%d" % n) for n in range(1, 9))
    count = struct.pack("<HHI", 10, 10, len(entries) + len(extra))
    file.write_bytes(data[:start] + entries + extra + end[:8] + count + end[16:])
    with pytest.raises(UserError, match="more bytes than the file has"):
        read_pickle(file)


def test_two_members_of_one_name_are_refused(file):
    write_zip(file, {"a/data.pkl": pickled(b"}"), "b/data.pkl": pickled(b"]")})
    file.write_bytes(file.read_bytes().replace(b"b/data.pkl", b"a/data.pkl"))
    with pytest.raises(UserError, match="same name"):
        read_pickle(file)


NESTED = b")" + b"\x85" * 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        b"}" + NESTED + b"K\x01s",  # a key whose hash would overflow the stack
        NESTED,
        b"K\x01" + b"2\x86" * 60,  # doubles its size as text 60 times
        b"]q\x00h\x00a",  # holds itself
        b"\x8a\xff" + b"\x01" * 10,  # cut
        b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85Rq\x00cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + HUGE + b"\x85h\x00\x89C\x01atb",
        b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85Rq\x00cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + HUGE + b"]\x86h\x00\x89C\x01atb",
        b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R" + HUGE + b"\x86R",  # bytes(10**12)
        b"ccollections\nOrderedDict\n}bK\x01b",  # state of a name
        b"cargparse\nNamespace\n)\x81ccollections\nOrderedDict\nb",
        b"c__main__\nConfig\n)\x81",
        b"K\x05K\x01b",
        b"K\x05K\x01a",
        b"h\x07",
        b"R",
        b"(t" * 3 + b"R",
        b"P0\n",
        b"\x82\x01",
        b"X\xff\xff\xff\x7fabc",  # a text of 2 GiB
        b"\x8e" + struct.pack("<Q", 1 << 62),  # bytes of 4 EiB
        b"\x96" + struct.pack("<Q", 1 << 62),
        b"r\xff\xff\xff\x7f",
        b"cos\nsystem\n",
        b"cbuiltins\neval\n",
        b"cargparse\nNamespace.__init__.__globals__\n(tR" + b"cbuiltins\ngetattr\n" + b"cargparse\nNamespace\nX\x01\x00\x00\x00a\x86R",
    ],
)
def test_programs_made_by_hand_do_no_harm(file, program):
    """Refused, damaged, or plain values: never a crash, a wait or a large allocation."""
    file.write_bytes(pickled(program))
    complaint = complaint_about(file)
    assert str(file) in complaint
    assert len(complaint) < 1000


def test_text_and_bytes_of_python_2_are_read(file):
    """A NumPy array of a Python 2 pickle keeps its values in a text."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08"
        + struct.pack("<2f", 1.5, -2)
        + b"tb"
    )
    file.write_bytes(pickled(b"}U\x01w", array, b"s"))
    assert read_pickle(file)["w"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_cut_and_changed_files_are_refused_or_read_whole(file, zipped):
    content = {"w": torch.arange(6.0), "b": torch.ones(3, dtype=torch.int64), "n": 5}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    for length in [*range(0, 64), *range(64, len(whole), 29)]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError):
            read_pickle(file)
    chance = random.Random(0)
    for _ in range(300):
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        assert str(file) in complaint_about(file)


def test_changed_values_in_a_zip_are_noticed(file):
    torch.save({"w": torch.arange(600.0)}, file)
    data = bytearray(file.read_bytes())
    data[data.index(struct.pack("<f", 300.0))] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFile, match="CRC"):
        read_pickle(file)


def test_there_are_limits(file, monkeypatch):
    torch.save({f"w{i}": torch.ones(2) for i in range(20)}, file)
    with pytest.raises(UserError, match=r"at most 0\.0 GiB"):
        read_pickle(file, max_bytes=100)
    monkeypatch.setattr(pickles, "MAX_TENSORS", 19)
    with pytest.raises(UserError, match="more than 19 tensors"):
        read_pickle(file)
    monkeypatch.setattr(machine, "MAX_OPCODES", 50)
    with pytest.raises(UserError, match="more than 50 instructions"):
        read_pickle(file)


def test_views_of_one_storage_can_not_add_up_to_a_bomb(file):
    base = torch.ones(10_000)
    torch.save([base.view(100, 100) for _ in range(50)], file)
    with pytest.raises(UserError, match="far more bytes than the file has"):
        read_pickle(file)


def test_other_files_are_no_pickles(file):
    for content in (b"", b"hello", b"<html>404</html>", b"PK\x03\x04", b"PK\x03\x04" + bytes(100)):
        file.write_bytes(content)
        with pytest.raises(DamagedFile, match="no file of tensors"):
            read_pickle(file)
    with pytest.raises(UserError, match="Can't read"):
        read_pickle(file.parent / "absent.pth")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.jpg", b"x")
    file.write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match=r"without the data\.pkl"):
        read_pickle(file)
