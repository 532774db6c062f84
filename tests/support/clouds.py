"""Google's and Azure's stores on loopback, of others' making: gcp-storage-emulator (PyPI) and
Azurite (npm, Microsoft's own), each a process of its test alone."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from support.free import free_port

BOX = "box"
ACCOUNT = "devstoreaccount1"
KEY = "Zmxvd2NoZWNrIHNheXMgdGhhdCB0aGlzIGtleSBpcyBub2JvZHkncyBvd24gYW5kIG9wZW5zIG5vdGhpbmc="
AZURITE = "FLOWCHECK_AZURITE"
START_S = 60.0


@dataclass
class Cloud:
    """A store with an empty bucket or container. folder: (prefix, into) -> where all objects below
    the prefix lie, as something reads them that is not fsspec."""

    url: str
    options: dict[str, Any]
    wrong: dict[str, Any]
    folder: Callable[[str, Path], Path]
    process: subprocess.Popen[bytes]


def lacks_google() -> str:
    """What of it is not installed; empty: nothing."""
    names = ("gcsfs", "gcp_storage_emulator")
    return ", ".join(name for name in names if importlib.util.find_spec(name) is None)


def lacks_azure() -> str:
    if importlib.util.find_spec("adlfs") is None:
        return "adlfs"
    return "" if _azurite() else f"azurite-blob (on the path, or named by {AZURITE})"


def _azurite() -> str | None:
    return shutil.which(os.environ.get(AZURITE) or "azurite-blob")


@contextmanager
def google(folder: Path) -> Iterator[Cloud]:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    code = "import sys; from gcp_storage_emulator.__main__ import main; main(sys.argv[1:])"
    words = ["start", "-q", "-M", "--default-bucket", BOX, "-H", "127.0.0.1", "--port", str(port)]
    with _running([sys.executable, "-c", code, *words], folder, base) as process:

        def read(prefix: str, into: Path) -> Path:
            told = _got(f"{base}/storage/v1/b/{BOX}/o?prefix={urllib.parse.quote(prefix + '/')}")
            for one in json.loads(told).get("items", []):
                name = urllib.parse.quote(one["name"], safe="")
                data = _got(f"{base}/storage/v1/b/{BOX}/o/{name}?alt=media")
                _put(into / one["name"], data)
            return into / prefix

        options = {"endpoint_url": base, "token": "anon", "project": "flowcheck"}
        yield Cloud(f"gs://{BOX}", options, {}, read, process)


@contextmanager
def azure(folder: Path) -> Iterator[Cloud]:
    port = free_port()
    base = f"http://127.0.0.1:{port}/{ACCOUNT}"
    words = ["--blobPort", str(port), "--blobHost", "127.0.0.1", "--location", str(folder)]
    command = [str(_azurite()), *words, "--silent", "--skipApiVersionCheck"]
    own = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with _running(command, folder, f"http://127.0.0.1:{port}", **own) as process:
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient(base, credential=KEY) as service:
            service.create_container(BOX)

        def read(prefix: str, into: Path) -> Path:
            with BlobServiceClient(base, credential=KEY) as service:
                box = service.get_container_client(BOX)
                for one in box.list_blobs(name_starts_with=f"{prefix}/"):
                    _put(into / one.name, box.download_blob(one.name).readall())
            return into / prefix

        def words_of(key: str) -> dict[str, Any]:
            text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key}"
            return {"connection_string": f"{text};BlobEndpoint={base};"}

        wrong = words_of(KEY[:8] + "A" * (len(KEY) - 10) + "==")
        yield Cloud(f"abfs://{BOX}", words_of(KEY), wrong, read, process)


def _got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@contextmanager
def _running(
    command: list[str], folder: Path, url: str, **own: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it answers anything at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + START_S
        while not _answers(url):
            assert time.monotonic() < until_s, (folder / "server.log").read_text()
            Event().wait(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
