"""Steps over HTTP: what curl gets, who gets in, and what many at once cost."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from support.persisting import Steps, kept_at, proved, take
from support.refused_as import refused_as

from flowcheck.config import ServeConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_downloads import TOKEN_FILE
from flowcheck.findings.catalog.refused_settings import TOKEN_NEEDED
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.vault.serve import read_leases
from flowcheck.vault.serve.step_catalog import StepCatalog
from flowcheck.vault.serve.step_server import StepServer

WORD = "a word of many letters"


class Memory(Steps):
    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._state = state

    def versions(self) -> tuple[int, ...]:
        return peek_versions(self._state)[1]

    def tainted(self) -> frozenset[int]:
        return frozenset()


Serving = Callable[..., StepServer]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A server that is stopped afterwards."""
    made: list[StepServer] = []
    (tmp_path / "word").write_text(WORD + "\n")

    def begin(catalogue: StepCatalog, **more: object) -> StepServer:
        stated = {"port": 0, "token_file": str(tmp_path / "word"), "timeout_s": 5.0} | more
        server = StepServer(catalogue, ServeConfig(**stated))  # type: ignore[arg-type]
        server.start()
        made.append(server)
        return server

    yield begin
    for server in made:
        server.stop()


def curl(url: str, *more: str, word: str | None = WORD) -> bytes:
    told = ["-H", f"Authorization: Bearer {word}"] if word is not None else []
    command = ["curl", "-sS", "--max-time", "20", *told, *more, url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def status(url: str, *more: str, word: str | None = WORD) -> int:
    return int(curl(url, "-o", "/dev/null", "-w", "%{http_code}", *more, word=word))


pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def test_curl_gets_whole_files_and_any_part_of_them(kept: Path, serving: Serving) -> None:
    server = serving(StepCatalog([kept]))
    steps = json.loads(curl(f"{server.url}/steps"))
    assert (steps["latest"], steps["durable"]) == (2, 2)
    told = json.loads(curl(f"{server.url}/steps/latest"))
    own = {path.name: path.read_bytes() for path in (kept / "step-2").iterdir()}
    assert {one["name"] for one in told["files"]} == own.keys()
    for one in told["files"]:
        url = f"{server.url}/steps/2/files/{one['name']}"
        assert curl(url) == own[one["name"]]
        assert hashlib.sha256(own[one["name"]]).hexdigest() == one["sha256"]
    url, data = f"{server.url}/steps/2/files/model.safetensors", own["model.safetensors"]
    size = len(data)
    assert curl(url, "-r", "100-199") == data[100:200]
    assert curl(url, "-r", "-7") == data[-7:]
    assert curl(url, "-r", f"{size - 5}-{size + 5}") == data[-5:]
    several = curl(url, "-r", "0-3,10-12")
    assert data[:4] in several and f"Content-Range: bytes 10-12/{size}".encode() in several
    assert status(url, "-r", f"{size}-") == 416
    head = curl(url, "-I").decode()
    tag = f'"{hashlib.sha256(data).hexdigest()}"'
    assert f"Content-Length: {size}" in head and f"ETag: {tag}" in head
    assert status(url, "-H", f"If-None-Match: {tag}") == 304
    assert status(url, "-r", "0-1", "-H", f"If-Range: {tag}") == 206
    assert curl(url, "-r", "0-1", "-H", 'If-Range: "other"') == data


def test_curl_goes_on_with_what_it_has(kept: Path, serving: Serving, tmp_path: Path) -> None:
    server = serving(StepCatalog([kept]))
    data = (kept / "step-2" / "optimizer.safetensors").read_bytes()
    (tmp_path / "part").write_bytes(data[:1000])
    url = f"{server.url}/steps/2/files/optimizer.safetensors"
    curl(url, "-C", "-", "-o", str(tmp_path / "part"))
    assert (tmp_path / "part").read_bytes() == data


def test_nobody_gets_in_without_the_word_and_nobody_gets_out_of_the_folder(
    kept: Path, serving: Serving, tmp_path: Path
) -> None:
    server = serving(StepCatalog([kept]))
    for path in ("/", "/steps", "/steps/2/files/manifest.json"):
        assert status(server.url + path, word=None) == 401
        assert status(server.url + path, word=WORD + "x") == 401
        assert status(server.url + path, word="") == 401
    for path in ("/steps/2/files/../../checkpoints.json", "/steps/2/files/%2e%2e/latest",
                 "/steps/2/files//etc/passwd", "/steps/../word", "/steps/-1", "/steps/3",
                 "/steps/2/files/"):  # fmt: skip
        assert status(server.url + path, "--path-as-is") == 404, path
    assert status(f"{server.url}/steps", "-X", "POST", "-d", "x") == 501
    with refused_as(TOKEN_NEEDED, kind=ConfigError):
        ServeConfig(host="0.0.0.0")
    (tmp_path / "short").write_text("guess")
    with refused_as(TOKEN_FILE, kind=ConfigError, characters=16):
        serving(StepCatalog([kept]), token_file=str(tmp_path / "short"))


def test_no_terminal_obeys_what_a_client_asks_for(kept: Path, serving: Serving) -> None:
    server, said = serving(StepCatalog([kept])), list[str]()
    server.say = said.append
    host, port = server.server_address[:2]
    with socket.create_connection((str(host), int(port)), timeout=60) as client:
        client.sendall(b"GET /\x1b]0;mine\x07 \x9b2J HTTP/1.0\r\n\r\n")
        while client.recv(4096):
            pass
    until(lambda: bool(said))
    assert "mine" in said[0] and all(line.isprintable() for line in said)


def test_a_step_in_memory_becomes_files_once_for_all_who_ask_and_stays_while_it_is_read(
    replica: Replica, shm: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_leases, "LEASE_S", 0.0)
    catalogue = StepCatalog([], Memory(shm / "state"), tmp_path / "staging", 1)
    server = serving(catalogue)

    def got(step: int | str) -> int:
        for _ in range(1200):
            told = json.loads(curl(f"{server.url}/steps/{step}"))
            if "files" in told:
                return int(told["step"])
            step = told["step"]
            Event().wait(0.05)
        raise AssertionError

    assert got("latest") == 2
    assert proved(tmp_path / "staging" / "step-2") == 2
    with catalogue.leases.reading(tmp_path / "staging" / "step-2"):
        take(replica, 4)
        assert got("latest") == 2, "no room for another: the one there is"
        assert status(f"{server.url}/steps/6") == 503
    assert got("latest") == 6
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["step-6"]
    assert status(f"{server.url}/steps/2") == 404


def test_more_connections_than_are_allowed_are_told_to_come_back_and_slow_ones_are_let_go(
    kept: Path, serving: Serving
) -> None:
    server = serving(StepCatalog([kept]), connections=2, timeout_s=1.0)
    port = server.server_address[1]
    dripping = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    for one in dripping:
        one.sendall(b"GET /steps HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    until(lambda: status(f"{server.url}/steps") == 503)
    for one in dripping:
        one.settimeout(60)

        def drip(to: socket.socket = one) -> bool:
            try:
                to.sendall(b"x")
                return to.recv(1, socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        until(drip)
        one.close()
    until(lambda: status(f"{server.url}/steps") == 200)


def until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        Event().wait(0.05)
    raise AssertionError("it never came")


def test_what_is_served_stays_until_its_reader_has_gone(
    kept: Path, replica: Replica, shm: Path, tmp_path: Path, serving: Serving
) -> None:
    server = serving(StepCatalog([kept]))
    told = json.loads(curl(f"{server.url}/steps/2"))
    take(replica)
    kept_at(kept, shm / "state", 3)
    assert json.loads(curl(f"{server.url}/steps"))["latest"] == 3
    for one in told["files"]:
        data = curl(f"{server.url}/steps/2/files/{one['name']}")
        assert hashlib.sha256(data).hexdigest() == one["sha256"]


def test_a_client_that_goes_away_amid_a_file_costs_nobody_else(
    kept: Path, serving: Serving
) -> None:
    server = serving(StepCatalog([kept]), connections=1)
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(host), int(port), timeout=60)
    headers = {"Authorization": f"Bearer {WORD}"}
    connection.request("GET", "/steps/2/files/optimizer.safetensors", headers=headers)
    assert connection.getresponse().read(10)
    connection.close()
    until(lambda: status(f"{server.url}/steps") == 200)


def test_a_page_that_was_made_to_point_here_gets_nothing(kept: Path, serving: Serving) -> None:
    server = serving(StepCatalog([kept]), token_file=None)
    assert status(f"{server.url}/steps", word=None) == 200
    assert status(f"{server.url}/steps", "-H", "Host: evil.example", word=None) == 421
