"""What a fetch refuses: names outside its folder, and more than the disk has room for."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from support.fetching import Cutting, served, sums
from support.refused_as import Wanted, like, refused_as

from flowcheck.findings.catalog.checkpoint_downloads import DISK_TOO_SMALL, UNEXPECTED_REPLY
from flowcheck.findings.catalog.untrusted_names import NOT_IN_A_CHECKPOINT
from flowcheck.vault.download.checkpoint_download import download_step

OUTSIDE = {"step": 1, "digest": "", "files": [{"name": "../x", "bytes": 1, "sha256": "0"}]}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (json.dumps(OUTSIDE), like(NOT_IN_A_CHECKPOINT, name="'../x'")),
        ("[" * 200_000, UNEXPECTED_REPLY),
    ],
)
def test_nothing_is_written_outside_the_folder_whatever_a_server_says(
    body: str, wanted: Wanted, tmp_path: Path
) -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body.encode())
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            one, _ = listening.accept()
            one.recv(4096)
            one.sendall(said)
            Event().wait(0.2)
            one.close()

        thread = Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with refused_as(wanted):
            download_step(url, 1, tmp_path / "got")
        thread.join()
    assert list(tmp_path.rglob("*")) == []


def test_a_disk_without_room_is_told_before_anything_comes(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(total=1 << 30, free=100_000)
    with served(kept) as url:
        cutting = Cutting(url, 1 << 40)
        with monkeypatch.context() as full, refused_as(DISK_TOO_SMALL, free=100_000):
            full.setattr(shutil, "disk_usage", lambda _: disk)
            download_step(cutting.url, 2, tmp_path / "got")
        assert cutting.passed < 20_000
        assert sums(download_step(cutting.url, 2, tmp_path / "got")) == sums(kept / "step-2")
        cutting.close()
