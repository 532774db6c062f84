"""Steps over https, by certificates that openssl makes: what curl and a restore get, and whom a
client sends its word to."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.authority import Authority
from support.fetching import served
from support.persisting import kept_at, stepped
from support.refused_as import like, refused_as

import flowcheck
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_downloads import (
    CA_WITHOUT_TLS,
    CERTIFICATE_AND_KEY,
    FILE_UNREADABLE,
    INVALID_CA,
    UNTRUSTED,
)
from flowcheck.findings.catalog.refused_settings import NEEDS_OTHER
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.http_support import bounded_http_server

WORD = "a word of many letters"
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("curl") is None, reason="needs openssl, curl"
)


@pytest.fixture
def kept(shm: Path, tmp_path: Path) -> Iterator[Path]:
    with stepped(shm / "state") as replica:
        yield kept_at(tmp_path / "kept", shm / "state", replica.step)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path, "authority")
    made.sign(tmp_path / "own.pem", tmp_path / "own.key")
    return made


def _stated(folder: Path) -> dict[str, str]:
    (folder / "word").write_text(WORD)
    told = {"tls_certificate": folder / "own.pem", "tls_key": folder / "own.key"}
    return {key: str(file) for key, file in (told | {"token_file": folder / "word"}).items()}


def _curl(url: str, authority: Path) -> bytes:
    word = ["-H", f"Authorization: Bearer {WORD}"]
    command = ["curl", "-sS", "--fail", "--max-time", "20", *word, "--cacert", str(authority), url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def test_curl_and_a_restore_get_what_lies_there_and_nothing_goes_in_clear(
    kept: Path, authority: Authority, tmp_path: Path
) -> None:
    with served(kept, **_stated(tmp_path)) as url:
        assert url.startswith("https://127.0.0.1:")
        folder = download_step(
            url, "latest", tmp_path / "came", WORD, authority=str(authority.file)
        )
        for file in folder.iterdir():
            raw = _curl(f"{url}/steps/latest/files/{file.name}", authority.file)
            assert hashlib.sha256(raw).digest() == hashlib.sha256(file.read_bytes()).digest()
        step = flowcheck.load(url, token_file=tmp_path / "word", ca=authority.file)["step"]
        assert folder.name == f"step-{step}"
        with socket.create_connection(_address(url), 10) as plain:
            plain.settimeout(60)
            plain.sendall(b"GET /steps HTTP/1.1\r\nHost: x\r\n\r\n")
            with suppress(ConnectionError):
                assert plain.recv(1 << 12) == b""


@pytest.mark.parametrize("at", ["IP:127.0.0.1", "DNS:other.example"])
def test_a_server_that_nobody_vouches_for_is_refused_at_once(
    kept: Path, authority: Authority, tmp_path: Path, at: str
) -> None:
    authority.sign(tmp_path / "own.pem", tmp_path / "own.key", at)
    other = Authority(tmp_path, "other")
    with served(kept, **_stated(tmp_path)) as url:
        for trusted in (None, str(other.file), *([str(authority.file)] * at.startswith("DNS"))):
            said: list[str] = []
            with refused_as(UNTRUSTED):
                download_step(
                    url, "latest", tmp_path / "came", WORD, authority=trusted, said=said.append
                )
            assert not said  # nothing was tried again
    assert not (tmp_path / "came").exists()


def test_a_renewed_certificate_is_used_and_half_of_one_is_not(
    kept: Path, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    with served(kept, **_stated(tmp_path)) as url:
        before = ssl.get_server_certificate(_address(url), ca_certs=str(authority.file))
        certificate = (tmp_path / "own.pem").read_bytes()
        other.sign(tmp_path / "own.pem", tmp_path / "own.key")
        new = (tmp_path / "own.pem").read_bytes()
        (tmp_path / "own.pem").write_bytes(certificate)  # with the new one's key
        assert ssl.get_server_certificate(_address(url)) == before
        (tmp_path / "own.pem").write_bytes(new)
        os.utime(tmp_path / "own.pem", (1, 1))
        assert ssl.get_server_certificate(_address(url), ca_certs=str(other.file)) != before


def _address(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rsplit(":", 1)[1])


def test_who_comes_when_all_connections_are_taken_is_told_so_over_tls_too(
    kept: Path, authority: Authority, tmp_path: Path
) -> None:
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        served(kept, connections=1, **_stated(tmp_path)) as url,
        socket.create_connection(_address(url), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1"),
        socket.create_connection(_address(url), 10) as second,
        context.wrap_socket(second, server_hostname="127.0.0.1") as told,
    ):
        told.sendall(b"GET /steps HTTP/1.1\r\n\r\n")
        assert told.recv(1 << 12) == bounded_http_server.SERVER_FULL_RESPONSE


def test_what_is_no_certificate_or_of_another_key_is_refused_before_anything_is_served(
    kept: Path, authority: Authority, tmp_path: Path
) -> None:
    stated = _stated(tmp_path)
    Authority(tmp_path, "other").sign(tmp_path / "not.pem", tmp_path / "not.key")
    (tmp_path / "text").write_text("no certificate")
    wrong = [
        ("tls_key", "not.key", like(CERTIFICATE_AND_KEY, key=tmp_path / "not.key")),
        ("tls_key", "none", like(FILE_UNREADABLE, value=repr(f"{tmp_path}/none"))),
        (
            "tls_certificate",
            "text",
            like(CERTIFICATE_AND_KEY, value=repr(f"{tmp_path}/text")),
        ),
    ]
    for name, file, wanted in wrong:
        told = stated | {name: str(tmp_path / file)}
        with refused_as(wanted, kind=ConfigError), served(kept, **told):
            pass
    with (
        refused_as(NEEDS_OTHER, kind=ConfigError, other="serve.tls_certificate"),
        served(kept, tls_key="x.key"),
    ):
        pass
    for ca in ("text", "none"):
        with refused_as(INVALID_CA, kind=ConfigError, key="--ca"):
            download_step("https://127.0.0.1:1", "latest", tmp_path, authority=str(tmp_path / ca))
    with refused_as(CA_WITHOUT_TLS, kind=ConfigError, key="--ca"):
        download_step("http://127.0.0.1:1", "latest", tmp_path, authority=str(authority.file))
