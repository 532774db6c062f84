"""Names that come from outside: every reader refuses the same ones, and nothing is written."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_downloads import MORE_THAN_ASKED, STEP_OF_NAME
from flowcheck.findings.catalog.checkpoint_stores import LEDGER_STEP
from flowcheck.findings.catalog.untrusted_names import NOT_A_CHECKPOINT_NAME, NOT_IN_THE_FOLDER
from flowcheck.replica.checkpoint_files.latest_pointer import latest_checkpoint, latest_name
from flowcheck.replica.checkpoint_files.manifest import FileSum, Manifest, encode_manifest
from flowcheck.untrusted_paths import is_relative, open_below
from flowcheck.vault.checkpoint_formats import huggingface_format
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.download.download_source import ObjectStoreSource
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.checkpoint_ledger import Ledger, LedgerEntry
from flowcheck.vault.persist.checkpoint_listing import (
    ListedFile,
    checked_listing,
    listing_of_manifest,
)

ZEROS = "0" * 64
BAD = (
    "/etc/passwd",
    "..",
    "../step-1",
    "step-1/../step-2",
    "a//b",
    "a/",
    "./a",
    "",
    "a\0b",
    "a\nb",
    "a\x1b[2Jb",
    "\ud800",
    "a" * 256,
    "/".join("a" * 40),
)


def of_listing(name: str) -> None:
    checked_listing(1, "", (ListedFile(name, 1, ZEROS),), "x")


def of_manifest(name: str) -> None:
    files = {name: FileSum(1, ZEROS, ZEROS)}
    listing_of_manifest(
        encode_manifest(Manifest(step=1, digest="", torch_version="", files=files)), "x"
    )


def of_ledger(name: str) -> None:
    checkpoint_ledger.decode(checkpoint_ledger.encode(Ledger(writing=(name,))), "x")


def of_entry(name: str) -> None:
    entry = LedgerEntry(name=name, step=1, digest="", bytes=1, saved=0.0, run="r")
    checkpoint_ledger.decode(checkpoint_ledger.encode(Ledger(entries=(entry,))), "x")


def of_latest(name: str) -> None:
    latest_name(name.encode(errors="surrogatepass") + b"\n", "x")


READERS: tuple[Callable[[str], None], ...] = (
    of_listing,
    of_manifest,
    of_ledger,
    of_entry,
    of_latest,
)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
def test_every_reader_refuses_a_name_that_leads_elsewhere(
    read: Callable[[str], None], name: str
) -> None:
    with pytest.raises((StateError, msgspec.MsgspecError, UnicodeEncodeError)):
        read(name)


@pytest.mark.parametrize("name", ["/tmp/x", "..", "step-1/x", "evil", "step-1\0", "step-01"])
def test_a_store_whose_latest_names_something_else_gets_nothing_written(
    tmp_path: Path, name: str
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "latest").write_text(name + "\n")
    before = sorted(tmp_path.rglob("*"))
    with refused_as(NOT_A_CHECKPOINT_NAME):
        download_step(f"file://{store}", "latest", tmp_path / "into")
    assert sorted(tmp_path.rglob("*")) == before
    assert latest_checkpoint(store) is None


def test_a_checkpoint_under_the_name_of_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    told = encode_manifest(Manifest(step=9, digest="", torch_version=""))
    (tmp_path / "step-5" / "manifest.json").write_bytes(told)
    (tmp_path / "latest").write_text("step-5\n")
    with refused_as(STEP_OF_NAME, step=9):
        ObjectStoreSource(f"file://{tmp_path}", fsspec.filesystem("file")).find("latest")
    entry = LedgerEntry(name="step-5", step=9, digest="", bytes=1, saved=0.0, run="r")
    with refused_as(LEDGER_STEP, name="step-5", step=9):
        checkpoint_ledger.decode(checkpoint_ledger.encode(Ledger(entries=(entry,))), "x")


@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "a/b"), (".fetch.json",), (".fetch.done", "manifest.json")]
)
def test_files_that_are_no_files_of_one_folder_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(StateError):
        checked_listing(1, "", tuple(ListedFile(name, 1, ZEROS) for name in names), "x")


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_sizes_that_no_file_has_are_refused(size: int) -> None:
    with pytest.raises(StateError):
        checked_listing(1, "", (ListedFile("a", size, ZEROS),), "x")


@pytest.mark.parametrize("index", ["../x.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_of_shards_names_files_of_its_folder_alone(tmp_path: Path, index: str) -> None:
    told = {"weight_map": {"w": index}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(told))
    with refused_as(NOT_IN_THE_FOLDER):
        huggingface_format.read(tmp_path)


def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "secret").write_text("x")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "link").symlink_to(tmp_path / "far" / "secret")
    (tmp_path / "own" / "folder").symlink_to(tmp_path / "far")
    for name in ("link", "folder/secret"):
        with pytest.raises((StateError, OSError)):
            open_below(tmp_path / "own", name)


@given(st.text())
def test_a_name_that_passes_stays_below_its_folder(name: str) -> None:
    if is_relative(name):
        assert Path("/a/b", name).resolve().is_relative_to("/a/b")
        assert Path("/a/b", name) != Path("/a/b")


@pytest.mark.parametrize("extra", [1, 1 << 22])
def test_an_answer_longer_than_what_was_asked_for_is_not_read(tmp_path: Path, extra: int) -> None:
    """A server whose 206 holds more than the range: its bytes are neither kept nor waited for."""
    manifest = encode_manifest(Manifest(step=1, digest="", torch_version=""))
    sent = [0]

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("/steps/1"):
                one = {"name": "manifest.json", "bytes": len(manifest), "sha256": ZEROS}
                body = json.dumps({"step": 1, "digest": "", "files": [one]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_response(206)
            self.end_headers()
            for _ in range(extra):
                self.wfile.write(b"x" * 4096)
                sent[0] += 4096

        def log_message(self, *_: object) -> None: ...

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return

    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with refused_as(MORE_THAN_ASKED):
            download_step(f"http://127.0.0.1:{server.server_port}", 1, tmp_path / "into")
        server.shutdown()
    assert sent[0] < 64 << 20


def test_no_other_file_decides_what_a_name_may_be() -> None:
    """`Path(x).name != x` and its like are in outside_names.py alone, but for names of our own."""
    own = {"stages/supervisor/checkpoint_helper.py", "vault/overwrite_guard.py"}
    package = Path(__file__).resolve().parents[2] / "flowcheck"
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Compare)
                and isinstance(node.left, ast.Attribute)
                and node.left.attr == "name"
                and isinstance(node.left.value, ast.Call)
                and getattr(node.left.value.func, "id", "") == "Path"
            ):
                found.add(str(path.relative_to(package)))
    assert found <= own
