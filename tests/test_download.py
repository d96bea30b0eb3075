"""Published files arrive whole and verified, or not at all, whatever the server does."""

import hashlib
import http.client
import io
import json
import multiprocessing
import sys
import threading
import types
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.weights import download, source
from pyramidvit.weights.download import fetch
from pyramidvit.weights.source import locate, obtain, read_foreign
from pyramidvit.weights.zoo import Published, find

CONTENT = bytes(range(256)) * 5000
"""1.2 MiB."""


class Server:
    """On this machine; ``answer`` is what it does next, ``requests`` the headers it got."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = whole
        self.requests: list[dict[str, str]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests.append(dict(self.headers))
                owner.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | {n.replace("_", "-"): v for n, v in headers.items()}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def whole(handler: BaseHTTPRequestHandler) -> None:
    """What a good server does: the rest of the same version, or everything."""
    start = handler.headers.get("Range")
    if start and handler.headers.get("If-Range") == '"v1"':
        first = int(start.removeprefix("bytes=").removesuffix("-"))
        send(handler, 206, CONTENT[first:], ETag='"v1"', Content_Range=f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}")
    else:
        send(handler, 200, CONTENT, ETag='"v1"')


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Announces everything, sends 300,000 bytes more than were there, and hangs up."""
    start = handler.headers.get("Range")
    first = int(start.removeprefix("bytes=").removesuffix("-")) if start else 0
    extra = {"Content_Range": f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}"} if first else {}
    send(handler, 206 if first else 200, CONTENT[first : first + 300_000], ETag='"v1"', Content_Length=str(len(CONTENT) - first), **extra)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PYRAMIDVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYRAMIDVIT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def record(server) -> Published:
    return Published("pvt_tiny.in1k", f"{server.address}/file.pth", "official", {})


def get(record: Published) -> Path:
    return fetch(record, allow_http=True)


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_a_file_arrives_whole_and_is_fetched_once(server, record, cache):
    file = get(record)
    assert file == cache / "pvt_tiny.in1k.pth"
    assert file.read_bytes() == CONTENT
    note = json.loads((cache / "pvt_tiny.in1k.pth.json").read_text())
    assert note == {"url": record.url, "sha256": hashlib.sha256(CONTENT).hexdigest(), "bytes": len(CONTENT)}
    assert get(record) == file
    assert len(server.requests) == 1
    assert left(cache) == [file.name, f"{file.name}.json"]


def test_a_cut_download_goes_on_where_it_stopped(server, record, cache):
    server.answer = cut
    with pytest.raises(UserError, match=r"cut after 1,200,000 of 1,280,000 bytes; what has come is kept.*put it at .*pvt_tiny\.in1k\.pth"):
        get(record)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert not (cache / record.file_name).exists(), "what is not whole has no name"
    server.answer = whole
    assert get(record).read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=1200000-"
    assert left(cache) == [record.file_name, f"{record.file_name}.json"]


def test_the_rest_of_another_version_is_not_appended(server, record):
    server.answer = cut
    with pytest.raises(UserError):
        get(record)
    server.answer = lambda handler: send(handler, 200, b"new version", ETag='"v2"')
    assert get(record).read_bytes() == b"new version"


def test_without_a_version_a_cut_download_starts_anew(server, record):
    answers = [lambda h: send(h, 200, CONTENT[:9], Content_Length="100"), whole]
    server.answer = lambda handler: answers.pop(0)(handler)
    assert get(record).read_bytes() == CONTENT
    assert "Range" not in server.requests[1]


def test_another_part_than_asked_for_is_refused(server, record):
    wrong = lambda h: send(h, 206, CONTENT[5:], ETag='"v1"', Content_Range=f"bytes 5-{len(CONTENT) - 1}/{len(CONTENT)}")  # noqa: E731
    answers = [cut, wrong, whole]
    server.answer = lambda handler: answers.pop(0)(handler)
    assert get(record).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_dead_link_says_what_is_expected_and_where_to_put_it(server, record, cache, status):
    """PB-28."""
    server.answer = lambda handler: send(handler, status, b"<html>gone</html>")
    record = replace(record, mib=51, url=f"{server.address}/a-0123abcd.pth")
    with pytest.raises(UserError) as error:
        get(record)
    for part in (str(status), record.url, "pvt_tiny.in1k.pth", "51 MiB", "0123abcd", str(cache / "pvt_tiny.in1k.pth")):
        assert part in str(error.value)
    assert len(server.requests) == 1, "trying again would not help"
    assert left(cache) == []


def test_a_busy_server_is_tried_again(server, record):
    answers = [lambda h: send(h, 503), lambda h: send(h, 500), whole]
    server.answer = lambda handler: answers.pop(0)(handler)
    assert get(record).read_bytes() == CONTENT


def test_a_file_of_another_size_than_published_is_refused(server, record, cache):
    """Such as a page that says sorry."""
    server.answer = lambda handler: send(handler, 200, b"<html>sorry</html>")
    with pytest.raises(UserError, match=r"has 0\.0 MiB, and 51 MiB were published"):
        get(replace(record, mib=51))
    assert left(cache) == []
    server.answer = whole
    assert get(replace(record, mib=1.2)).exists()


def test_more_bytes_than_announced_do_not_arrive(server, record, monkeypatch):
    """Nor does a body without an announcement grow for ever."""

    def chunked(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT)

    server.answer = chunked
    assert get(record).read_bytes() == CONTENT
    monkeypatch.setattr(download, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="more than the 1,000 bytes"):
        get(replace(record, name="pvt_small.in1k"))


def test_a_published_hash_is_verified(server, record, cache):
    """PB-28."""
    with pytest.raises(UserError, match=r"and 0123abcd… was published"):
        get(replace(record, url=f"{server.address}/a-0123abcd.pth"))
    assert left(cache) == []
    good = hashlib.sha256(CONTENT).hexdigest()[:8]
    assert get(replace(record, url=f"{server.address}/a-{good}.pth")).exists()


def test_a_file_that_changed_since_its_first_use_is_refused(server, record, cache):
    """In the cache, and where it is published."""
    file = get(record)
    file.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(UserError, match="at its first use it had"):
        get(record)
    file.unlink()
    server.answer = lambda handler: send(handler, 200, b"another file")
    with pytest.raises(UserError, match="at its first use it had"):
        get(record)
    assert not file.exists()
    (cache / f"{file.name}.json").write_text("{}")
    server.answer = whole
    with pytest.raises(UserError, match="delete it"):
        get(record)


def test_redirects_are_followed_over_https_only(server, record, tmp_path):
    answers = [lambda h: send(h, 302, Location="/elsewhere.pth"), whole]
    server.answer = lambda handler: answers.pop(0)(handler)
    assert get(record).read_bytes() == CONTENT
    secret = tmp_path / "secret"
    secret.write_text("x")
    for place in (secret.as_uri(), "ftp://127.0.0.1/x", "data:,x"):
        server.answer = lambda handler, place=place: send(handler, 302, Location=place)
        with pytest.raises(UserError, match="Can't fetch pvt_small"):
            get(replace(record, name="pvt_small.in1k"))
    with pytest.raises(UserError, match="is not https"):
        fetch(replace(record, name="pvt_small.in1k"))


@pytest.mark.parametrize("url", ["http://example.org/a", "file:///etc/passwd", "HTTP://example.org/a"])
def test_https_never_leads_elsewhere(url):
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(download.TransferError, match="is not https"):
        download._Redirects(allow_http=False).redirect_request(request, io.BytesIO(), 302, "Found", http.client.HTTPMessage(), url)


def test_redirects_in_a_circle_end(server, record):
    server.answer = lambda handler: send(handler, 302, Location=f"{server.address}/again")
    with pytest.raises(UserError, match="answered 302"):
        get(record)
    assert len(server.requests) <= 6


def test_a_server_that_trickles_counts_as_cut(server, record, monkeypatch):
    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            threading.Event().wait(0.02)

    server.answer = slow
    monkeypatch.setattr(download, "PATIENCE", 0.1)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"only \d+ bytes came in"):
        get(record)


def test_a_server_that_is_silent_counts_as_cut(server, record, monkeypatch):
    server.answer = lambda _: threading.Event().wait(0.5) and None
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(UserError, match="timed out"):
        get(record)
    assert len(server.requests) == 2


def test_no_server_at_all(server, record, cache):
    """Where nothing came, nothing is said to be kept."""
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(UserError, match=r"refused.*Fetch http") as error:
        get(record)
    assert "what has come is kept" not in str(error.value)
    assert left(cache) == []


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_offline_uses_the_cache_and_nothing_else(server, record, cache, monkeypatch, how):
    """PB-28."""
    if how == "variable":
        monkeypatch.setenv("PYRAMIDVIT_OFFLINE", "1")
    with pytest.raises(UserError, match=r"network is not to be used.*pvt_tiny\.in1k\.pth"):
        fetch(record, offline=how == "argument", allow_http=True)
    assert server.requests == []
    cache.mkdir(exist_ok=True)
    (cache / record.file_name).write_bytes(CONTENT)
    assert fetch(record, offline=True).read_bytes() == CONTENT, "a file put there by hand"


def test_what_only_a_browser_gets_says_where_to_put_it():
    with pytest.raises(UserError, match=r"in a browser.*drive\.google\.com.*pvt_small\.coco_retinanet\.pth"):
        fetch(find("pvt_small.coco_retinanet"))


def test_a_cache_that_can_not_be_written_says_so(record, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYRAMIDVIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="PYRAMIDVIT_CACHE"):
        get(record)


def _in_another_process(record: Published, results: "multiprocessing.Queue[str]") -> None:
    results.put(hashlib.sha256(get(record).read_bytes()).hexdigest())


def test_processes_that_fetch_at_once_do_not_disturb_each_other(server, record, cache):
    """The first one fetches, slowly; the others wait and take what it got."""

    def slow(handler: BaseHTTPRequestHandler) -> None:
        threading.Event().wait(0.3)
        whole(handler)

    server.answer = slow
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_in_another_process, args=(record, results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [hashlib.sha256(CONTENT).hexdigest()] * 3
    for process in processes:
        process.join()
    assert len(server.requests) == 1
    assert left(cache) == [record.file_name, f"{record.file_name}.json"]


def test_a_source_is_a_file_a_name_or_an_error(tmp_path, monkeypatch):
    file = tmp_path / "w.pth"
    file.write_bytes(b"x")
    assert locate(file) == (file, None)
    monkeypatch.setattr(source, "fetch", lambda record, **_: Path(record.file_name))
    assert locate("pvt_v2_b2.in1k") == (Path("pvt_v2_b2.in1k.pth"), find("pvt_v2_b2.in1k"))
    with pytest.raises(UserError, match=r"did you mean pvt_v2_b2\.in1k"):
        locate("pvt_v2_b2.in21k")
    for missing in ("pvt_v2_b2.pth", "folder/w.safetensors", "nothing", "", "long" * 100, "longer#" * 100):
        with pytest.raises(UserError, match="There is no weights file"):
            locate(missing)


def test_a_folder_in_place_of_a_file_is_told_what_to_give(tmp_path):
    with pytest.raises(UserError, match=r"is a folder; expected a file of weights in it\."):
        obtain(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "best.safetensors").touch()
    with pytest.raises(UserError, match=r"is a folder; expected a file of weights, such as .*weights/best\.safetensors\."):
        obtain(tmp_path)


def test_a_file_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    (tmp_path / "w.pth").touch()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"Can't read .*w\.pth: Permission denied\."):
        obtain(tmp_path / "w.pth")


def fake_hub(monkeypatch, get: Callable[..., str]) -> None:
    """huggingface_hub is an extra: only what is called of it."""
    hub, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
    for name in ("EntryNotFoundError", "HfHubHTTPError", "HFValidationError"):
        setattr(errors, name, type(name, (Exception,), {}))
    hub.hf_hub_download = get  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)


def test_the_hub_is_asked_for_safetensors_first(cache, monkeypatch):
    asked = []

    def get(repository: str, name: str, *, revision: str | None, cache_dir: Path, local_files_only: bool) -> str:
        asked.append((repository, name, revision, local_files_only))
        if name == "model.safetensors":
            raise OSError("not there")
        (cache_dir / "x").mkdir(parents=True, exist_ok=True)
        (cache_dir / "x" / name).write_bytes(b"1")
        return str(cache_dir / "x" / name)

    fake_hub(monkeypatch, get)
    file, record = locate("hf:owner/name@abc", offline=True)
    assert (file, record) == (cache / "hub" / "x" / "pytorch_model.bin", None)
    assert asked == [("owner/name", "model.safetensors", "abc", True), ("owner/name", "pytorch_model.bin", "abc", True)]
    assert locate("pvt_v2_b2.timm_in1k")[1] == find("pvt_v2_b2.timm_in1k")
    assert asked[-1] == ("timm/pvt_v2_b2.in1k", "pytorch_model.bin", None, False)


def test_a_repository_that_is_not_there_says_so(monkeypatch):
    def get(*_: str, **__: object) -> str:
        raise OSError("404 Client Error\nmore")

    fake_hub(monkeypatch, get)
    with pytest.raises(UserError, match=r"Can't get model\.safetensors or pytorch_model\.bin from hf:owner/name: .*404"):
        locate("hf:owner/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'pyramidvit\[hub\]'"):
        locate("hf:owner/name")


@pytest.mark.parametrize("wrapper", [(), ("model",), ("state_dict",), ("model_state",), ("state_dict_ema",), ("checkpoint", "model")])
def test_tensors_are_taken_out_of_what_they_are_wrapped_in(tmp_path, wrapper):
    tensors = {"patch_embed.proj.weight": torch.arange(6.0).reshape(1, 3, 2, 1), "b": torch.ones(2)}
    content: dict = tensors
    for name in reversed(wrapper):
        content = {"epoch": 3, name: content, "optimizer_state": {"state": {0: torch.ones(1)}}}
    torch.save(content, tmp_path / "w.pth")
    if "checkpoint" in wrapper:
        with pytest.raises(UserError, match="holds no state dict"):
            read_foreign(tmp_path / "w.pth")
        return
    got = read_foreign(tmp_path / "w.pth")
    assert got.keys() == tensors.keys()
    assert all(torch.equal(got[key], tensors[key]) for key in tensors)
    swapped = read_foreign(tmp_path / "w.pth", find("mvitv2_small_16x4.ssv2"))
    assert torch.equal(swapped["patch_embed.proj.weight"], tensors["patch_embed.proj.weight"][:, [2, 1, 0]])
