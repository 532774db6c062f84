"""The watcher as its clients meet it: curl, a scraper, a browser, and those who mean it harm."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from support.refused_as import refused_as

from flowcheck.config import WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_downloads import FILE_UNREADABLE
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.refused_commands import CANNOT_LISTEN
from flowcheck.findings.catalog.refused_settings import ADDRESS_AND_PORT, PORT_NUMBER, TOKEN_NEEDED
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.watch.monitoring_server import MonitoringServer
from flowcheck.ops.watch.prometheus_metrics import METRICS, metrics_text
from flowcheck.ops.watch.state.chain_state import ChainState, Health, HealthWord, decode_state
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.replica.model_taint import ModelPart, TaintedTensor, model_taint
from flowcheck.replica.step_journal.journal_figures import JournalFigures
from flowcheck.stages.replica_copies.copy_records import CopiesRecord, CopyRecord
from flowcheck.step_numbers import Step

DATA = Path(__file__).resolve().parents[1] / "data" / "watch"
WORD = "a-word-of-sixteen-and-more"
Serve = Callable[..., str]


def recorded(name: str = "state.json") -> ChainState:
    return decode_state((DATA / name).read_bytes())


class Told:
    """In place of a reader: a state that was recorded."""

    def __init__(self, state: ChainState) -> None:
        self.told = state

    def state(self) -> ChainState:
        return self.told


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[MonitoringServer] = []

    def start(state: ChainState, **settings: Any) -> str:
        config = WatchConfig(**({"listen": "127.0.0.1:0"} | settings))
        running.append(MonitoringServer(cast(StateReader, Told(state)), config))
        running[-1].start()
        return running[-1].url

    yield start
    for server in running:
        server.stop()


def curl(*words: str) -> tuple[int, str]:
    """(status, body), of the real client."""
    asked = ["curl", "-s", "--max-time", "10", "-w", "\n%{http_code}", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.mark.parametrize(
    ("word", "status"),
    [("exact", 200), ("behind", 200), ("tainted", 503), ("stale", 503), ("ended", 503)],
)
def test_health_is_a_status_that_a_probe_understands_and_a_reason(
    serve: Serve, word: str, status: int
) -> None:
    reason = earlier_finding('it says "why" </script>\n')
    health = Health(word=HealthWord(word), reason=reason)
    url = serve(msgspec.structs.replace(recorded(), health=health))
    got, body = curl(f"{url}/healthz")
    told = json.loads(body)
    assert got == status and told == {"word": word, "reason": msgspec.to_builtins(reason)}
    assert told["reason"]["sentence"] == 'it says "why" </script>\n'


def test_every_metric_is_one_that_prometheus_own_tools_take(serve: Serve) -> None:
    state = recorded("state-lost.json")
    kept = JournalFigures(folder="/kept", size_bytes=9, first_step=Step(3), last_step=Step(5))
    copies = {"copied_by": CopiesRecord(url="http://x"), "copy_of": CopyRecord(source="http://y")}
    jobs = [msgspec.structs.replace(job, kept_steps=kept, **copies) for job in state.jobs]
    tensor = TaintedTensor(job="job-1", parameter="w", tainted_elements=2, all_elements=9, since=3)
    part = ModelPart(job="job-1", step=Step(5), all_elements=9, tensors=(tensor,))
    models = (model_taint([part], Step(2)),)
    url = serve(msgspec.structs.replace(state, jobs=type(state.jobs)(jobs), models=models))
    _, text = curl(f"{url}/metrics")
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "metrics"], input=text.encode(), check=True)
    found = {sample.name for family in plain(text) for sample in family.samples}
    audits = ("audited_step", "audit_passed", "audit_equal_step", "audited_files_total")
    never = {*(f"flowcheck_{name}" for name in audits), "flowcheck_under_way_ratio"}
    assert set(METRICS) - found <= never, "of a run that was never audited"
    assert found <= set(METRICS)
    modern = curl("-H", "Accept: application/openmetrics-text; version=1.0.0", f"{url}/metrics")[1]
    again = {sample.name for family in openmetrics(modern) for sample in family.samples}
    assert again == found and modern.endswith("# EOF\n")


def test_what_a_state_says_is_what_a_scraper_reads() -> None:
    state = recorded("state-lost.json")
    text = metrics_text(state, "")[0].decode()
    samples = [sample for family in plain(text) for sample in family.samples]
    told = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    own, ring = (("training_job", "job-1"),), (("ring", "0"),)
    job = state.jobs[0]
    assert told["flowcheck_step", own] == job.step
    assert told["flowcheck_durable_step", own] == (job.durable and job.durable.step)
    assert told["flowcheck_lost_steps_total", own] == 1
    assert told["flowcheck_missing_packets", ring] == state.rings[0].missing_packets > 0
    restarts = ("flowcheck_stage_restarts_total", (("stage", "parse-0"), *own))
    assert told[restarts] == 1
    assert told["flowcheck_health", (("word", "stale"),)] == 1
    assert sum(s.value for s in samples if s.name == "flowcheck_health") == 1


def test_hostile_names_are_labels_like_any_other(serve: Serve) -> None:
    state = recorded()
    name = 'x"} 1\n# HELP \\ </script>\x1b[31m'
    job = msgspec.structs.replace(state.jobs[0], name=name)
    url = serve(msgspec.structs.replace(state, jobs=(job,)))
    families = list(plain(curl(f"{url}/metrics")[1]))
    assert {s.labels["training_job"] for f in families for s in f.samples if "step" in f.name} == {
        name
    }


def test_a_page_of_somebody_elses_cannot_reach_it_by_another_name(serve: Serve) -> None:
    url = serve(recorded())
    port = url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", f"localhost:{port}", f"[::1]:{port}"):
        assert curl("-H", f"Host: {host}", f"{url}/healthz")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert curl("-H", f"Host: {host}" if host else "Host;", f"{url}/state.json")[0] == 421


def test_beyond_this_machine_there_is_nothing_without_the_word(
    serve: Serve, tmp_path: Path
) -> None:
    with refused_as(TOKEN_NEEDED, kind=ConfigError, token_file="watch.token_file"):
        WatchConfig(listen="0.0.0.0:9464")
    for wrong in ("9464", "127.0.0.1", "127.0.0.1:port", ":1"):
        with refused_as(ADDRESS_AND_PORT, kind=ConfigError, key="watch.listen"):
            WatchConfig(listen=wrong)
    for wrong in ("127.0.0.1:65536", "[::1]:99999"):
        port = wrong.rpartition(":")[2]
        with refused_as(PORT_NUMBER, kind=ConfigError, key="watch.listen", port=port):
            WatchConfig(listen=wrong)
    assert WatchConfig(listen="127.0.0.1:65535").port == 65535
    (tmp_path / "job.toml").write_text(
        '[[source]]\ninterface = "eth1"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
        f'[watch]\nlisten = "0.0.0.0:9464"\ntoken_file = "{tmp_path}/token"\n'
    )
    with refused_as(
        FILE_UNREADABLE, kind=ConfigError, key="token_file"
    ):  # before anything is captured
        load_checked_job(tmp_path / "job.toml")
    (tmp_path / "token").write_text(WORD + "\n")
    load_checked_job(tmp_path / "job.toml")
    url = serve(recorded(), listen="0.0.0.0:0", token_file=str(tmp_path / "token"))
    url = url.replace("0.0.0.0", "127.0.0.1")
    for path in ("/", "/metrics", "/healthz", "/state.json", "/none"):
        assert curl(f"{url}{path}")[0] == 401
    for wrong in (f"any:{WORD}x", "any:", f"{WORD}:"):
        assert curl("-u", wrong, f"{url}/metrics")[0] == 401
    assert curl("-u", f"anyone:{WORD}", f"{url}/")[0] == 200
    assert curl("-H", f"Authorization: Bearer {WORD}", f"{url}/metrics")[0] == 200
    for odd in ("Basic", "Basic %%%", "Bearer", f"bearer  {WORD} x", "Digest a"):
        assert curl("-H", f"Authorization: {odd}", f"{url}/metrics")[0] == 401
    challenge = curl("-D", "-", "-o", "/dev/null", url)[1]
    assert 'WWW-Authenticate: Basic realm="flowcheck"' in challenge, "a browser asks for it"


def test_heads_other_methods_and_other_paths(serve: Serve) -> None:
    url = serve(recorded())
    status, head = curl("-I", f"{url}/metrics")
    size = len(curl(f"{url}/metrics")[1])
    assert status == 200 and f"Content-Length: {size}" in head
    assert curl("-X", "POST", "-d", "x" * 100, f"{url}/metrics")[0] == 501
    assert curl("-X", "GET", "-d", "x" * 100_000, f"{url}/healthz")[0] == 200
    for path in ("/none", "/metrics/", "/../../etc/passwd", "/%2e%2e/x"):
        assert curl("--path-as-is", f"{url}{path}")[0] == 404
    assert curl(f"{url}/metrics?x=1")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(300)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
    ],
)
def test_what_is_no_request_ends_its_connection_and_no_other(serve: Serve, sent: bytes) -> None:
    url = serve(recorded(), timeout_s=1.0)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b" 200 " not in answer.split(b"\r\n")[0]
    assert curl(f"{url}/healthz")[0] == 200


def test_slow_clients_keep_nobody_else_out_for_long(serve: Serve) -> None:
    url = serve(recorded(), connections=3, timeout_s=0.5)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    slow = [socket.create_connection(address, 10) for _ in range(3)]
    for one in slow:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHo")
    until_s = time.monotonic() + 60
    seen = set()
    while time.monotonic() < until_s and 200 not in seen:
        try:
            seen.add(curl(f"{url}/healthz")[0])
        except subprocess.CalledProcessError:  # refused, and the answer did not get through
            seen.add(503)
    assert 200 in seen
    for one in slow:
        one.settimeout(60)
        assert one.recv(100) == b"", "it was let go"
        one.close()


def test_a_port_that_is_taken_is_said(serve: Serve) -> None:
    url = serve(recorded())
    with refused_as(CANNOT_LISTEN, kind=ConfigError):
        serve(recorded(), listen=url.removeprefix("http://"))
