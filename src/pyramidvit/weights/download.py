"""Published files into the cache: whole and verified, or not at all.

Only https, redirects included. A file grows beside its place under a lock, goes on where it was cut, is checked, and only then gets its
name. Its SHA-256 is compared with the published one, or with what was written down at its first use.
"""

import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from pyramidvit.errors import UserError
from pyramidvit.files import give_name, write_text
from pyramidvit.weights.zoo import Published

CHUNK = 1 << 20
ATTEMPTS = 4
"""How often a download that was cut is taken up again."""
TIMEOUT = 30.0
"""Seconds without an answer after which a connection counts as cut."""
SLOWEST, PATIENCE = 1000, 60.0
"""So does one that brings fewer bytes per second, on average over so many seconds."""
MAX_BYTES = 16 << 30


def cache_folder() -> Path:
    """Where published files are kept: PYRAMIDVIT_CACHE, or pyramidvit/ in the user's cache folder."""
    if folder := os.environ.get("PYRAMIDVIT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyramidvit"


def is_offline() -> bool:
    """Whether PYRAMIDVIT_OFFLINE forbids the network."""
    return os.environ.get("PYRAMIDVIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch(record: Published, *, offline: bool = False, allow_http: bool = False) -> Path:
    """The file of a record: from the cache, or downloaded into it. UserError when it can't be had or isn't what it was.

    ``allow_http`` is for tests against a server on this machine.
    """
    target = cache_folder() / record.file_name
    if target.exists():
        verify(target, target, record)
    else:
        if record.by_hand:
            raise UserError(f"{record.name} can only be fetched in a browser. {_by_hand(record, target)}")
        if offline or is_offline():
            raise UserError(f"{record.name} is not in the cache, and the network is not to be used. {_by_hand(record, target)}")
        _download(record, target, allow_http)
    return target


def verify(file: Path, target: Path, record: Published) -> None:
    """Compare size and SHA-256 with the published ones and with those of the first use, which are kept beside ``target``."""
    size, sha256 = file.stat().st_size, _sha256(file)
    if record.mib is not None and abs(size / 2**20 - record.mib) > max(1.0, 0.02 * record.mib):
        raise UserError(f"{record.name} has {size / 2**20:.1f} MiB, and {record.mib:g} MiB were published. {_by_hand(record, target)}")
    if not sha256.startswith(record.sha256):
        raise UserError(f"{record.name} has SHA-256 {sha256}, and {record.sha256}… was published. {_by_hand(record, target)}")
    note = target.with_name(f"{target.name}.json")
    if not note.exists():
        write_text(note, json.dumps({"url": record.url, "sha256": sha256, "bytes": size}))
    elif (known := _noted(note)) != sha256:
        raise UserError(
            f"{record.name} has SHA-256 {sha256}, and at its first use it had {known}: it changed, in {target} or where it is "
            f"published. If you know why, delete {note}."
        )


def _noted(note: Path) -> str:
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{note}, which keeps the SHA-256 of the first use, can't be read: delete it.") from None


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _by_hand(record: Published, target: Path) -> str:
    size = "" if record.mib is None else f", {record.mib:g} MiB"
    sha256 = f", SHA-256 {record.sha256}…" if record.sha256 else ""
    return f"Fetch {record.url} by other means and put it at {target} (expected: {record.file_name}{size}{sha256})."


def _download(record: Published, target: Path, allow_http: bool) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part, target) as file:
            if not target.exists():  # another process may have been first
                _fill(record, file, part, target, allow_http)
            part.unlink(missing_ok=True)
    except TransferError as error:
        raise UserError(f"Can't fetch {record.name}: {error}. {_by_hand(record, target)}") from None
    except OSError as error:
        raise UserError(f"Can't write {target}: {error.strerror or error}. Set PYRAMIDVIT_CACHE to a folder that can be written.") from None


def _fill(record: Published, file: BinaryIO, part: Path, target: Path, allow_http: bool) -> None:
    try:
        Transfer(record.url, file, part, allow_http).run(record.name)
        verify(part, target, record)
    except UserError:
        part.unlink()
        raise
    except TransferError:
        if part.stat().st_size == 0:
            part.unlink()
        raise
    give_name(part, target)


@contextmanager
def _locked(part: Path, target: Path) -> Iterator[BinaryIO]:
    """The unfinished file, opened for this process alone; others wait."""
    while True:
        with part.open("ab+") as file:
            if os.name == "posix":
                import fcntl  # noqa: PLC0415 - not everywhere

                fcntl.flock(file, fcntl.LOCK_EX)
            if target.exists() or (part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat())):
                yield cast(BinaryIO, file)
                return


class TransferError(Exception):
    """The file can't be had; trying again would not help."""


class CutError(Exception):
    """The connection broke; what has come is kept."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def __init__(self, allow_http: bool) -> None:
        self.allow_http = allow_http

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _check_scheme(newurl, self.allow_http)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str, allow_http: bool) -> None:
    if not url.startswith(("https://", "http://") if allow_http else "https://"):
        raise TransferError(f"{url[:200]} is not https")


@dataclass
class Transfer:
    """A download into ``file``, which may hold the beginning already; a note beside ``part`` says of which version it is."""

    url: str
    file: BinaryIO
    part: Path
    allow_http: bool

    def run(self, name: str) -> None:
        columns = TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            self.bar, self.task = bar, bar.add_task("")
            for attempt in range(ATTEMPTS):
                try:
                    self._attempt()
                    self._note().unlink(missing_ok=True)
                    return
                except CutError as error:
                    if attempt == ATTEMPTS - 1:
                        kept = "; what has come is kept, so that the next try goes on from there" if self._goes_on() else ""
                        raise TransferError(f"{self.url}: {error}{kept}") from None
                    time.sleep(min(2**attempt - 1, 5))

    def _attempt(self) -> None:
        _check_scheme(self.url, self.allow_http)
        have, version = self.file.seek(0, os.SEEK_END), self._version()
        headers = {"User-Agent": "pyramidvit", "Accept-Encoding": "identity"}
        if have and version:
            headers |= {"Range": f"bytes={have}-", "If-Range": version}
        opener = urllib.request.build_opener(_Redirects(self.allow_http))
        try:
            with opener.open(urllib.request.Request(self.url, headers=headers), timeout=TIMEOUT) as response:
                self._receive(response, have)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            if error.code == 416 or error.code >= 500:
                self.file.truncate(0 if error.code == 416 else have)
                raise CutError(f"the server answered {error.code} {error.reason}") from None
            raise TransferError(f"{self.url} answered {error.code} {str(error.reason).splitlines()[0][:200]}") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise CutError(str(getattr(error, "reason", error)) or type(error).__name__) from None

    def _receive(self, response: http.client.HTTPResponse, have: int) -> None:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        if response.status == 206:
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if not found or int(found[1]) != have:
                self.file.truncate(0)
                raise CutError("the server sent another part of the file than was asked for")
            total = int(found[2])
        elif response.status == 200:
            self.file.truncate(0)
            have = 0
            version = response.headers.get("ETag") or response.headers.get("Last-Modified", "")
            write_text(self._note(), "" if version.startswith("W/") else version)  # a weak one does not vouch for every byte
        else:
            raise TransferError(f"{self.url} answered {response.status}")
        self.bar.update(self.task, total=total, completed=have)
        start, received = time.monotonic(), 0
        while block := response.read1(CHUNK):
            received += len(block)
            if have + received > (MAX_BYTES if total is None else total):
                self.file.truncate(0)
                raise TransferError(f"{self.url} sends more than the {MAX_BYTES if total is None else total:,} bytes that were announced")
            self.file.write(block)
            self.bar.update(self.task, advance=len(block))
            seconds = time.monotonic() - start
            if seconds > PATIENCE and received < SLOWEST * seconds:
                raise CutError(f"only {received:,} bytes came in {seconds:.0f} seconds")
        self.file.flush()
        if total is not None and have + received < total:
            raise CutError(f"the connection was cut after {have + received:,} of {total:,} bytes")

    def _note(self) -> Path:
        return self.part.with_name(f"{self.part.name}.version")

    def _goes_on(self) -> bool:
        return self.file.seek(0, os.SEEK_END) > 0 and bool(self._version())

    def _version(self) -> str:
        """The server's name for the version of which ``file`` holds the beginning; empty when it gave none."""
        return self._note().read_text(encoding="utf-8").strip() if self._note().exists() else ""
