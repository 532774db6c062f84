"""A step from elsewhere: whole, verified, and on from where a cut or a kill left it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from support import preloaded
from support.fetching import Cutting, served, sums, verb
from support.persisting import proved, saver_for
from support.refused_as import like, refused_as
from support.s3 import BUCKET, Server, server

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_downloads import (
    CONNECTION_FAILED,
    DENIED,
    NO_STEP_THERE,
    NO_SUCH_STEP,
    NOTHING_DURABLE,
    TRIED,
)
from flowcheck.findings.catalog.checkpoint_stores import NEEDS_PACKAGE
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.download import (
    checkpoint_download,
    download_source,
    partial_download,
    retry_backoff,
)
from flowcheck.vault.download.checkpoint_download import download_step

WORD = "a word of many letters"
CHUNK = 64 << 10


def test_connections_that_are_cut_again_and_again_cost_only_what_was_under_way(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_download, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(checkpoint_download, "CHUNK_BYTES", CHUNK)
    with served(kept) as url:
        cutting = Cutting(url, 5 * CHUNK)
        seen: list[tuple[int, int]] = []
        got = download_step(
            cutting.url, "latest", tmp_path / "got", moved=lambda *told: seen.append(told)
        )
        cutting.close()
    assert got == tmp_path / "got" / "step-2"
    assert sums(got) == sums(kept / "step-2")
    assert proved(got) == 2
    total = sum(path.stat().st_size for path in got.iterdir())
    assert seen[-1] == (total, total)
    assert total < cutting.passed < 2 * total
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["step-2"]


KILLED = """
import sys
from pathlib import Path
from flowcheck.vault.download import checkpoint_download, partial_download
checkpoint_download.CHUNK_BYTES = partial_download.CHUNK_BYTES = 65536
sound = partial_download.PartialDownload.write
def write(self, chunk, data):
    sound(self, chunk, data)
    if self.done_bytes > 600_000:
        print(self.done_bytes, flush=True)
        sys.stdin.read()
partial_download.PartialDownload.write = write
checkpoint_download.download_step(sys.argv[1], "latest", Path(sys.argv[2]), at_once=1)
"""


def test_a_killed_client_goes_on_where_it_was_even_from_another_server(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_download, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(checkpoint_download, "CHUNK_BYTES", CHUNK)
    with served(kept) as url:
        command = [sys.executable, "-c", KILLED, url, str(tmp_path / "got")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        there = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        note = tmp_path / "got" / ".step-2.part" / ".fetch.done"
        note.write_bytes(note.read_bytes() + b"1 ")  # as a kill amid its line leaves it
        cutting = Cutting(url, 1 << 40)
        seen: list[int] = []
        got = download_step(
            cutting.url, 2, tmp_path / "got", moved=lambda done, _: seen.append(done)
        )
        cutting.close()
    total = sum(path.stat().st_size for path in got.iterdir())
    assert seen[0] == there
    assert cutting.passed < total - there + 20_000
    assert sums(got) == sums(kept / "step-2")


MANIFEST = {"name": "manifest.json", "bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize("asked", ["date", "Sun, 06 Nov 1994 08:49:37 GMT", "-3", "nan", "soon"])
def test_a_server_that_asks_for_patience_is_asked_again_whatever_way_it_says_so(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(download_source, "WAIT_MAX_S", 0.2)
    told = [{"step": 7, "digest": "d", "files": [MANIFEST]}, {"step": 7}]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(202 if len(told) > 1 else 200)
            body = json.dumps(told.pop()).encode()
            later = datetime.now(UTC) + timedelta(hours=1)
            stated = format_datetime(later, usegmt=True) if asked == "date" else asked
            self.send_header("Retry-After", stated)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        origin = download_source.HttpSource(f"http://127.0.0.1:{server.server_port}", None, 5.0)
        assert origin.find("latest").listing.step == 7 and not told
        origin.close()
        server.shutdown()


def test_what_a_disk_made_of_it_is_found_and_fetched_again(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = partial_download.PartialDownload.write
    torn = []

    def write(
        self: partial_download.PartialDownload, chunk: partial_download.Chunk, data: bytes
    ) -> None:
        if not torn:
            torn.append(chunk)
            data = bytes([data[0] ^ 1]) + data[1:]
        sound(self, chunk, data)

    monkeypatch.setattr(partial_download.PartialDownload, "write", write)
    with served(kept) as url:
        got = download_step(url, 2, tmp_path / "got")
    assert sums(got) == sums(kept / "step-2")


def test_what_is_not_to_be_had_is_told_in_words(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_backoff, "TRIES", 2)
    (tmp_path / "word").write_text(WORD)
    with served(kept, token_file=str(tmp_path / "word")) as url:
        with refused_as(DENIED):
            download_step(url, 2, tmp_path / "got", "another word of letters")
        with refused_as(NO_SUCH_STEP, step="9", steps=(2,)):
            download_step(url, 9, tmp_path / "got", WORD)
    with refused_as(TRIED, tries=2, error=like(CONNECTION_FAILED, kind="ConnectionRefusedError")):
        said: list[str] = []
        download_step(url, 2, tmp_path / "got", WORD, said=said.append)
    (told,) = said
    assert told.startswith(f"{url}: ConnectionRefusedError") and "1 more tries within" in told
    with refused_as(NEEDS_PACKAGE, kind=ConfigError, package="gcsfs"):
        download_step("gs://box/job", 2, tmp_path / "got")


def test_a_trainer_restores_over_the_network_and_loads_in_one_call(
    kept: Path, replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "word").write_text(WORD)
    own = ("--token-file", str(tmp_path / "word"))
    with verb(str(kept), *own) as url:
        out = tmp_path / "[red]resume.pt"
        command = ["restore", "--from", url, *own]
        done = preloaded.run(
            [*command, "--format", "torch", "--out", str(out)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"{out}: step 2 of {url}/step-2" in done.stdout
        loaded = flowcheck.load(url, token_file=tmp_path / "word")
    flat = replica.parameters()
    tree = torch.load(out, weights_only=True)
    for one in (tree, loaded):
        values = torch.cat([value.reshape(-1) for value in one["model"].values()])
        assert torch.equal(values, torch.from_numpy(flat.copy()))
        assert one["step"] == 2
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".flowcheck")}
    assert left == set() and not list((tmp_path / "tmp").glob("*/*"))


def test_many_trainers_at_once_all_get_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    with served(kept, connections=5) as url:
        threads = [
            Thread(target=download_step, args=(url, "latest", tmp_path / f"got-{n}"))
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    wanted = sums(kept / "step-2")
    assert all(sums(tmp_path / f"got-{n}" / "step-2") == wanted for n in range(6))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_target_of_a_chain_is_fetched_from_as_well(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    pytest.importorskip("s3fs")
    with server() as store:
        target = f"s3://{BUCKET}/job"
        config = PersistConfig(target=target, options=store.options, every_steps=1)
        saver = saver_for(config, tmp_path / "staging", shm / "state")
        saver.save(2)
        got = download_step(target, "latest", tmp_path / "got", options=store.options)
        assert proved(got) == 2
        assert sums(got) == sums(read_by_boto(store, tmp_path))
        with refused_as(NO_STEP_THERE, step=7):
            download_step(target, 7, tmp_path / "got", options=store.options)
        with refused_as(NOTHING_DURABLE):
            download_step(target + "x", "latest", tmp_path / "got", options=store.options)


def read_by_boto(store: Server, tmp_path: Path) -> Path:
    return store.folder("job", tmp_path / "read") / "step-2"
