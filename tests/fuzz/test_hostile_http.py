"""Requests to the servers and answers of a store, changed in their structure: a server answers each
and goes on; a fetch takes what was told or refuses it with a sentence."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile import LONG, QUICK, changed, hostile_json, told_or_refused, torn
from support.persisting import kept_at, replica_in, take

from flowcheck.config import ServeConfig, WatchConfig
from flowcheck.ops.watch.monitoring_server import MonitoringServer as Watch
from flowcheck.ops.watch.state.chain_state import ChainState, decode_state
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.vault.download import download_source, retry_backoff
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.serve.step_catalog import StepCatalog
from flowcheck.vault.serve.step_server import StepServer as Serve

DATA = Path(__file__).resolve().parents[1] / "data" / "watch"
LIMIT_S = 30.0
WORD = "a-word-of-many-letters"
LOCAL = f"Host: localhost\r\nAuthorization: Bearer {WORD}"
HEAD_END = b"\r\n\r\n"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("kept")
    replica = replica_in(folder / "state", 100)
    take(replica, 2)
    replica.close()
    (folder / "word").write_text(WORD)
    found = kept_at(folder / "kept", folder / "state", 2)
    download_step(f"file://{found}", 2, folder / "into")  # what is loaded late is loaded now
    return found


class Faults:
    """What a server's threads raised."""

    def __init__(self) -> None:
        self.met: list[BaseException] = []
        self.said: list[str] = []

    def note(self, *_: object) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        if not isinstance(error, OSError):  # of a client that went away
            self.met.append(error)


@contextmanager
def running(kind: str, kept: Path) -> Iterator[tuple[int, Faults]]:
    """The port of a server of this kind."""
    faults = Faults()
    made: Any
    if kind == "serve":
        word = str(kept.parent / "word")  # who half closed a connection is told as nobody's
        stated = ServeConfig(port=0, timeout_s=5.0, token_file=word)
        made = Serve(StepCatalog([kept]), stated, say=faults.said.append)
    else:
        told = decode_state((DATA / "state.json").read_bytes())
        made = Watch(cast(StateReader, _Told(told)), WatchConfig(listen="127.0.0.1:0"))
    made.handle_error = faults.note
    made.start()
    try:
        yield made.server_address[1], faults
    finally:
        made.stop()


class _Told:
    """In place of a reader."""

    def __init__(self, told: ChainState) -> None:
        self._told = told

    def state(self) -> ChainState:
        return self._told


def asked(port: int, request: bytes) -> bytes:
    """All that comes back to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as one:
        with suppress(OSError):  # it was answered, and let go
            one.sendall(request)
            one.shutdown(socket.SHUT_WR)
        found = bytearray()
        with suppress(OSError):
            while part := one.recv(1 << 16):
                found += part
        return bytes(found)


PATHS = (
    *("/", "/steps", "/steps/latest", "/steps/2", "/steps/2/files/manifest.json", "/metrics"),
    *("/state.json", "/healthz", "/jobs/1/steps", "/steps/%00", "/steps/2/files/../../x", "//[",
      "http://[", "/steps/2/files/%2e%2e/%2e%2e/etc/passwd", "/steps/" + "9" * 5000, "*", "?", "#",
      "/steps/2/files/" + "a/" * 500, "/steps/\xff", "/%ff%fe", "//", "/steps/²",
      "/steps/2/files/model.safetensors"),
)  # fmt: skip
HEADERS = (
    *("Range: bytes=0-", "Range: bytes=-5", "Range: bytes=5-1", "Range: bytes=" + "0-1," * 99),
    *("Range: bytes=0-" + "9" * 5000, "Range: bytes=" + "9" * 5000 + "-", "If-Range: x"),
    *("Range: bytes=-" + "9" * 5000, "Range: bytes=²-", "If-None-Match: *", "Host: evil"),
    *("Host: 127.0.0.1", "Authorization: Bearer \xff", "Authorization: Basic !", "Accept: */*"),
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: x", "Transfer-Encoding: chunked"),
    *("Connection: close", "Connection: keep-alive", "Expect: 100-continue", "X" * 70_000, ": x"),
    *("A: " + "b" * 60_000, "Accept: application/openmetrics-text; version=" + "9" * 5000, "é: é"),
    *("Host:", "Host: [", "Host: localhost:99999999999999999999", "\x00: \x00"),
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "get", "OPTIONS", "TRACE", "__init__", "G" * 9000, "")
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1." + "9" * 5000, "HTTP/x", "")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One or several of a connection."""
    whole = b""
    for _ in range(draw(st.integers(1, 3))):
        method = draw(st.one_of(st.just("GET"), st.sampled_from(METHODS)))
        version = draw(st.one_of(st.just("HTTP/1.1"), st.sampled_from(VERSIONS)))
        path = draw(st.one_of(st.sampled_from(PATHS), st.text(max_size=30)))
        more = draw(st.lists(st.sampled_from(HEADERS), max_size=4))
        lines = [f"{method} {path} {version}", LOCAL, *more]
        one = "\r\n".join(lines).encode("utf-8", "surrogatepass") + HEAD_END
        whole += draw(torn(one)) if draw(st.integers(0, 5)) == 0 else one
    return whole


def served(kind: str, kept: Path, request: bytes) -> None:
    with running(kind, kept) as (port, faults):
        answer = asked(port, request)
        begins = re.match(rb"(GET|HEAD) [!-~]+ HTTP/1\.[01]\r\n", request)
        if begins is not None and HEAD_END in request[:60_000]:
            assert answer.startswith(b"HTTP/1."), (request[:200], answer[:100])
        assert not faults.met, (request[:300], faults.met)
        assert all(line.isprintable() for line in faults.said)
        told = asked(port, f"GET / HTTP/1.1\r\n{LOCAL}\r\n\r\n".encode())
        assert told.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("kind", ["serve", "watch"])
@QUICK
@given(request_=requests())
def test_a_server_answers_whatever_is_asked_and_goes_on(
    kept: Path, kind: str, request_: bytes
) -> None:
    served(kind, kept, request_)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["serve", "watch"])
@settings(LONG)
@given(request_=requests())
def test_a_server_answers_whatever_is_asked_at_length(
    kept: Path, kind: str, request_: bytes
) -> None:
    served(kind, kept, request_)


Change = Callable[[int, bytes, bytes], bytes]
"""(number of the answer, its head, its body) to what is sent."""


class Answering:
    """A server of one checkpoint, whose answers somebody changes."""

    def __init__(self, folder: Path, change: Change) -> None:
        self._folder, self._change, self._count = folder, change, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # which, unlike close(), ends the wait for one
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            one.settimeout(LIMIT_S)
            Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            request = b""
            while HEAD_END not in request:
                part = one.recv(1 << 16)
                if not part:
                    return
                request += part
            number, self._count = self._count, self._count + 1
            one.sendall(self._change(number, *self._told(request)))

    def _told(self, request: bytes) -> tuple[bytes, bytes]:
        path = request.split(b" ")[1].decode()
        if "/files/" not in path:
            files = [
                {"name": file.name, "bytes": file.stat().st_size, "sha256": sum_of(file)}
                for file in sorted(self._folder.iterdir())
            ]
            return b"200 OK", json.dumps({"step": 2, "digest": "", "files": files}).encode()
        held = (self._folder / path.split("/files/")[1]).read_bytes()
        asked_for = re.search(rb"Range: bytes=(\d+)-(\d+)", request)
        if asked_for is None:
            return b"200 OK", held
        return b"206 Partial Content", held[int(asked_for[1]) : int(asked_for[2]) + 1]


def sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


STATUSES = (
    b"200 OK",
    b"202 x",
    b"204 x",
    b"206 x",
    b"301 x",
    b"304 x",
    b"401 x",
    b"404 x",
    b"416 x",
)
MORE = (
    *(b"Content-Length: 0", b"Content-Length: 99999999999999", b"Content-Length: -1"),
    *(b"Transfer-Encoding: chunked", b"Content-Range: bytes 5-9/10", b"Retry-After: nan"),
    *(b"Retry-After: 1e999", b"Content-Encoding: gzip", b"Location: file:///etc/passwd"),
    *(
        b"X: " + b"y" * 70_000,
        b"\x00",
        b"Retry-After: Fri, 99 Foo 9999 99:99:99 GMT",
        b"\xff: \xfe",
    ),
)


@st.composite
def answers(draw: st.DrawFn, head: bytes, body: bytes) -> bytes:
    if draw(st.booleans()) and body.startswith(b"{"):
        body = draw(hostile_json(body))
    if draw(st.integers(0, 3)) == 0:
        body = draw(torn(body))
    if draw(st.integers(0, 4)) == 0:
        head = draw(st.sampled_from(STATUSES))
    lines = [b"HTTP/1.1 " + head, b"Content-Length: %d" % len(body)]
    lines += draw(st.lists(st.sampled_from(MORE), max_size=1)) if draw(st.booleans()) else []
    whole = b"\r\n".join(lines) + HEAD_END + body
    return draw(torn(whole)) if draw(st.integers(0, 6)) == 0 else whole


def fetch(kept: Path, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, 4))
    drawn: list[bytes] = []
    folder = kept / "step-2"
    asked = Answering(folder, lambda _, head, body: b"")
    listing = asked._told(b"GET /steps/latest HTTP/1.1")
    asked.close()
    model = (b"206 Partial Content", (folder / "model.safetensors").read_bytes())
    drawn.append(data.draw(answers(*(listing if which == 0 else model))))

    def change(number: int, head: bytes, body: bytes) -> bytes:
        if number == which:
            return drawn[0]
        return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (head, len(body)) + body

    with tempfile.TemporaryDirectory() as below:
        into, server = Path(below) / "into", Answering(folder, change)
        try:
            found = told_or_refused(
                lambda: download_step(server.url, "latest", into, timeout_s=2.0, at_once=1),
                Path(below),
            )
        finally:
            server.close()
        outside = [path for path in Path(below).iterdir() if path != into]
        assert outside == []
        if found is not None:  # then it is the very checkpoint
            own = {path.name: sum_of(path) for path in cast(Path, found).iterdir()}
            assert own == {path.name: sum_of(path) for path in folder.iterdir()}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked again after a while."""
    monkeypatch.setattr(retry_backoff, "WAIT_FIRST_S", 0.0)
    monkeypatch.setattr(retry_backoff, "TRIES", 2)
    monkeypatch.setattr(retry_backoff, "BUSY_S", 0.0)
    monkeypatch.setattr(download_source, "WRITING_S", 0.2)


@QUICK
@given(data=st.data())
def test_a_fetch_takes_the_checkpoint_or_refuses_whatever_a_server_answers(
    at_once: None, kept: Path, data: st.DataObject
) -> None:
    fetch(kept, data)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@settings(LONG)
@given(data=st.data())
def test_a_fetch_takes_the_checkpoint_or_refuses_at_length(
    at_once: None, kept: Path, data: st.DataObject
) -> None:
    fetch(kept, data)


def store(kept: Path, data: st.DataObject) -> None:
    """A folder as [persist] leaves it, some file of which was changed."""
    with tempfile.TemporaryDirectory() as below:
        target = Path(below) / "store"
        shutil.copytree(kept, target)
        names = sorted(p for p in target.rglob("*") if p.is_file())
        file = data.draw(st.sampled_from(names))
        raw = file.read_bytes()
        if raw.startswith(b"{"):
            tree = json.loads(raw)
            file.write_bytes(data.draw(st.one_of(changed(tree).map(_text), torn(raw))))
        else:
            file.write_bytes(data.draw(torn(raw)))
        into = Path(below) / "into"
        which = data.draw(st.sampled_from(["latest", 2, 3]))
        told_or_refused(lambda: download_step(f"file://{target}", which, into), Path(below))


def _text(tree: Any) -> bytes:
    return json.dumps(tree).encode()


@QUICK
@given(data=st.data())
def test_a_store_is_fetched_from_or_refused(at_once: None, kept: Path, data: st.DataObject) -> None:
    store(kept, data)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@settings(LONG)
@given(data=st.data())
def test_a_store_is_fetched_from_or_refused_at_length(
    at_once: None, kept: Path, data: st.DataObject
) -> None:
    store(kept, data)
