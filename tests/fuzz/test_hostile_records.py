"""What lies in a run directory, job files and messages, changed in their structure: every verb that
reads them tells a state or one sentence, and a stage goes on."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chain import Command, wait_until
from support.formatted import run as verb
from support.hostile import LONG, QUICK, hostile_json, told_or_refused, torn

from flowcheck import messages
from flowcheck.config import load_job
from flowcheck.errors import MessageError
from flowcheck.findings.catalog.chain_processes import STARTED_BY
from flowcheck.findings.catalog.lost_steps import COPIES_DIFFER
from flowcheck.messages import Message, decode, encode, parse_audit_record
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import load_layout as load_topology
from flowcheck.ops.mirror_ports.cluster_layout.nccl_xml_dumps import read_dump
from flowcheck.ops.watch.prometheus_metrics import metrics_text
from flowcheck.ops.watch.state.chain_state import decode_state, encode_state
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.vault.persist import checkpoint_ledger

DATA = Path(__file__).resolve().parents[1] / "data"
STEPS = 4
JOB = f"""
run = "{{root}}/run"
checkpoint = "{{root}}/kept"
[[source]]
file = "{DATA}/two-ranks-ll.pcapng"
[optimizer]
name = "sgd"
learning_rate = 0.1
[services]
user = "root"
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a chain that followed a small job and was stopped."""
    root = tmp_path_factory.mktemp("ended")
    (root / "job.toml").write_text(JOB.format(root=root))
    steps = root / "run" / "steps.jsonl"
    with Command("up", root / "job.toml") as chain:
        wait_until(lambda: steps.exists() and steps.read_bytes().count(b"\n") == STEPS, 60, "steps")
        chain.process.send_signal(signal.SIGTERM)
        chain.result()
    used(root / "run")  # what is loaded late is loaded now
    return root / "run"


def read_whole(run: Path) -> None:
    state = StateReader(run).state()
    decode_state(encode_state(state))
    metrics_text(state, "")


def used(run: Path) -> None:
    """All that verbs of a run that has ended do with it, but for those that run its code."""
    out = run.parent / "out.pt"
    for words in (("status",), ("status", "--json"), ("top", "--json")):
        told_or_refused(lambda words=words: verb(*words, "--run", run), run.parent)
    # `down` takes away what chains of anybody left in memory that were killed.
    told_or_refused(lambda: verb("down", "--run", run), run.parent, Path("/dev/shm"))
    told_or_refused(lambda: read_whole(run), run.parent)
    words = ("restore", "--format", "torch", "--out", out, "--force")
    told_or_refused(lambda: verb(*words, "--run", run), run.parent, Path("/dev/shm"))


@st.composite
def lines(draw: st.DrawFn, raw: bytes) -> bytes:
    """A file of records, a line of which is another."""
    every = raw.splitlines(keepends=True)
    at = draw(st.integers(0, len(every) - 1))
    told = draw(st.one_of(hostile_json(every[at]), torn(every[at])))
    return b"".join([*every[:at], told, draw(st.sampled_from([b"", b"\n"])), *every[at + 1 :]])


def changed_file(raw: bytes, name: str) -> st.SearchStrategy[bytes]:
    if name.endswith(".jsonl") and raw:
        return lines(raw)
    if name.endswith(".json") and raw:
        return hostile_json(raw)
    return torn(raw)


def records(ended: Path, data: st.DataObject) -> None:
    files = sorted(path for path in ended.rglob("*") if path.is_file())
    own = data.draw(st.sampled_from(files)).relative_to(ended)
    raw = data.draw(changed_file((ended / own).read_bytes(), own.name))
    with tempfile.TemporaryDirectory() as below:
        run = Path(below) / "run"
        shutil.copytree(ended, run, symlinks=True)
        (run / own).write_bytes(raw)
        used(run)


EXAMPLES: tuple[Message, ...] = (
    messages.Hello(stage="parse-0", pid=4711, layout_version=1),
    messages.StepLost(step=4, missing=((0, 8), (64, 128)), why=COPIES_DIFFER(8)),
    messages.StepSaved(step=3, name="step-3", bytes=9, seconds=0.5, time_ns=7),
    messages.Stop(reason=STARTED_BY(15), drain=True),
)


def hostile_messages() -> st.SearchStrategy[bytes]:
    return st.sampled_from(EXAMPLES).map(encode).flatmap(hostile_json)


def message(ended: Path, data: st.DataObject) -> None:
    frame = data.draw(hostile_messages())
    found = told_or_refused(lambda: decode(frame), ended)
    assert found is None or isinstance(found, Message)
    parse_audit_record(frame)


def text_of_toml(tree: Any) -> str:
    """As far as TOML has a word for it."""

    def value(one: Any) -> str:
        if isinstance(one, dict):
            pairs = (f"{json.dumps(str(key))} = {value(own)}" for key, own in one.items())
            return "{" + ", ".join(pairs) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(map(value, one)) + "]"
        return json.dumps(one).replace("Infinity", "inf").replace("NaN", "nan")

    return "\n".join(f"{json.dumps(key)} = {value(own)}" for key, own in tree.items())


FULL: dict[str, Any] = {
    "run": "/run/x",
    "checkpoint": "/var/x",
    "source": [{"pci": "0000:3b:00.0"}, {"interface": "eth1"}],
    "optimizer": {
        "name": "adamw",
        "learning_rate": 1e-4,
        "schedule": "train.py:schedule",
        "schedule_arguments": {"warmup": 100},
        "groups": [{"parameters": ["*.bias"], "weight_decay": 0.0}],
        "betas": [0.9, 0.95],
        "clip_norm": 1.0,
        "scaler": {"growth_interval": 5},
    },
    "model": {"factory": "net.py:make", "names": ["a", "b"]},
    "replica": {"keep_bytes": 100, "awaits_base": True},
    "persist": {"target": "s3://bucket/x", "every_steps": 5},
    "serve": {"port": 7377, "host": "127.0.0.1"},
    "watch": {"listen": "127.0.0.1:9100"},
    "services": {"user": "nobody"},
    "ring": {"slots": 1024},
    "mirror": [{"port": "eth1", "host": "10.0.0.1", "direction": "rx"}],
    "gradient_log": {"file": "/var/log/x"},
}


def job_file(ended: Path, data: st.DataObject) -> None:
    tree = data.draw(hostile_json(json.dumps(FULL).encode()))
    try:
        text = text_of_toml(json.loads(tree))
    except (ValueError, AttributeError, RecursionError):
        text = tree.decode(errors="replace")
    with tempfile.TemporaryDirectory() as below:
        path = Path(below) / "job.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        told_or_refused(lambda: load_job(path), Path(below))


def layout_of_ports(ended: Path, data: st.DataObject) -> None:
    files = sorted(p for p in (DATA / "ports").rglob("*") if p.is_file())
    file = data.draw(st.sampled_from(files))
    with tempfile.TemporaryDirectory() as below:
        path = Path(below) / file.name
        path.write_bytes(data.draw(torn(file.read_bytes())))
        for read in (load_topology, read_dump):
            told_or_refused(lambda read=read: read(path), Path(below))


def ledgers(ended: Path, data: st.DataObject) -> None:
    entry = checkpoint_ledger.LedgerEntry(
        name="step-1", step=1, digest="ab", bytes=1, saved=0.0, run="r"
    )
    whole = checkpoint_ledger.encode(
        checkpoint_ledger.Ledger(entries=(entry,), writing=("step-2",))
    )
    raw = data.draw(hostile_json(whole))
    found = told_or_refused(lambda: checkpoint_ledger.decode(raw, "x"), ended)
    if found is not None:
        again = checkpoint_ledger.decode(
            checkpoint_ledger.encode(msgspec.convert(found, checkpoint_ledger.Ledger)), "x"
        )
        assert again == found


KINDS: tuple[Callable[[Path, st.DataObject], None], ...] = (
    message,
    job_file,
    layout_of_ports,
    ledgers,
)


@pytest.mark.slow
@settings(QUICK, max_examples=8)
@given(data=st.data())
def test_a_run_directory_is_told_or_refused(ended: Path, data: st.DataObject) -> None:
    """Fewer examples than of the others: each goes through six verbs."""
    records(ended, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@QUICK
@given(data=st.data())
def test_what_is_read_is_told_or_refused(
    ended: Path, kind: Callable[[Path, st.DataObject], None], data: st.DataObject
) -> None:
    kind(ended, data)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", (records, *KINDS), ids=lambda kind: kind.__name__)
@settings(LONG)
@given(data=st.data())
def test_what_is_read_is_told_or_refused_at_length(
    ended: Path, kind: Callable[[Path, st.DataObject], None], data: st.DataObject
) -> None:
    kind(ended, data)


@QUICK
@given(frames=st.lists(st.lists(hostile_messages(), min_size=1, max_size=3), max_size=3))
def test_an_inbox_gives_messages_or_refuses_and_takes_the_next(frames: list[list[bytes]]) -> None:
    """Whatever stands in a message of ZeroMQ, of one part or of several."""
    with tempfile.TemporaryDirectory() as below:
        links = StageSockets(Path(below), "parse-0")
        inbox = links.inbox
        with zmq.Context() as context, context.socket(zmq.PUSH) as other:
            other.setsockopt(zmq.LINGER, 0)
            other.connect(f"ipc://{below}/parse-0")
            for parts in frames:
                other.send_multipart(parts)
            other.send(encode(EXAMPLES[0]))
            met: list[Message] = []
            for _ in range(200):
                try:
                    met += inbox.drain(limit=64, wait_ms=100)
                except MessageError:
                    continue
                if EXAMPLES[0] in met:
                    break
            assert EXAMPLES[0] in met
        links.close()
