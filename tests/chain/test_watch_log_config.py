"""A whole chain that is watched by a real Prometheus while frames are left out on purpose."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.authority import Authority
from support.chain import Command, flowcheck, signal_stage, wait_until
from support.free import free_port
from support.watched import MONITORING, Prometheus, expressions, paced, prometheus

from flowcheck.findings.catalog.chain_health import LOST_STEP as STEP_LOST_HEALTH
from flowcheck.findings.catalog.chain_health import NO_CHAIN, SUPERVISOR_GONE, SUPERVISOR_HANGS
from flowcheck.findings.catalog.how_chains_end import KILLED
from flowcheck.stages.run_directory.run_dir import RunDir

LOST_STEP = 10
MOVING = {"time_ns", "beat_age_s", "lag_ms", "rate", "bytes_s", "step_rate", "frame_age_s", "age_s"}


WORD = "a-word-of-sixteen-and-more"


def asked(url: str) -> tuple[int, Any]:
    """Of https by whom SSL_CERT_FILE names."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {WORD}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def reason(url: str) -> str:
    """The code of why a chain is as healthy as it is; "" without an answer."""
    told = asked(url)[1]
    return str(told["reason"]["code"]) if told else ""


def alike(run: RunDir, base: str) -> bool:
    """Do `status`, `top` and the watcher say the same, but for when each looked? Nothing happens to
    a replica that waits before a step, once all frames are read."""
    words = ("--run", run.root, "--json")
    told = [json.loads(flowcheck(verb, *words)[1]) for verb in ("status", "top")]
    assert told[0].pop("leftovers") is not None
    states = [still(one) for one in (*told, asked(f"{base}/state.json")[1])]
    assert all(set(one) == set(states[0]) for one in states) and len(states[0]["jobs"]) == 1
    return bool(states[0] == states[1] == states[2])


def still(told: Any) -> Any:
    """Without what differs between two looks at the same."""
    if isinstance(told, dict):
        return {name: still(one) for name, one in told.items() if name not in MOVING}
    return [still(one) for one in told] if isinstance(told, list) else told


def marked(base: str) -> dict[int, Any]:
    """What the watcher's timeline says of each step."""
    state = asked(f"{base}/state.json")[1]
    return {one["step"]: one for one in state["jobs"][0]["timeline"]}


def untold(watching: Prometheus) -> list[Any]:
    """Rules that the last look at them could not tell."""
    rules = watching.get("rules")["groups"][0]["rules"]
    return [rule for rule in rules if rule["health"] == "err"]


# Python's ssl leaves a socket to the collector whose peer was reset before its handshake began:
# `SSLSocket._create` in ssl.py, where getpeername says ENOTCONN. The watcher is killed here.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prometheus_shows_a_loss_with_its_next_scrape_and_a_killed_watcher_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over https, by a word. A scrape a second: of each, what was captured and what was missing are
    one reading. So a scrape that has captured what lies behind the frames left out shows the loss,
    and the next one does that comes."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt-get install openssl")
    authority, word = Authority(tmp_path, "authority"), tmp_path / "word"
    authority.sign(tmp_path / "own.pem", tmp_path / "own.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    word.write_text(WORD)
    port, run = free_port(), RunDir(tmp_path / "run")
    reveals = paced(tmp_path / "c.pcap", from_step=7, lost_step=LOST_STEP, frame_every_s=0.01)
    (tmp_path / "job.toml").write_text(
        f'run = "{run.root}"\n[[source]]\nfile = "{tmp_path}/c.pcap"\nspeed = 1.0\n'
        f"[ring]\nslots = 4096\n[staging]\nsize_bytes = 16_777_216\n"
        f'[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n[watch]\nlisten = "127.0.0.1:{port}"\n'
        f'token_file = "{word}"\ntls_certificate = "{tmp_path}/own.pem"\n'
        f'tls_key = "{tmp_path}/own.key"\n'
    )
    base = f"https://127.0.0.1:{port}"
    with (
        prometheus(tmp_path, f"127.0.0.1:{port}", word, authority.file) as watching,
        Command("up", tmp_path / "job.toml", "--json") as up,
    ):
        wait_until(lambda: asked(f"{base}/healthz")[0] != 0, 120, "the watcher")
        assert signal_stage(run, "watch") is not None  # it may be killed: nothing waits for it
        stale = f"{base}/healthz"
        wait_until(lambda: reason(stale) == STEP_LOST_HEALTH.code, 90, "a loss")
        assert asked(stale)[0] == 503
        assert asked(stale.replace("https:", "http:"))[0] == 0, "nothing is told in clear"
        wait_until(lambda: 1 in watching.samples("flowcheck_lost_steps_total").values(), 60, "it")
        parsed = watching.samples("flowcheck_parsed_frames_total")
        missing = watching.samples("flowcheck_missing_packets")
        behind = [at for at, frames in parsed.items() if frames > reveals + 100]
        before = [at for at, frames in parsed.items() if frames <= reveals]
        assert behind and all(missing[at] > 0 for at in behind)
        assert not any(missing[at] for at in before)
        for expr in expressions(json.loads((MONITORING / "dashboard.json").read_text())):
            watching.get("query", query=expr)
        wait_until(lambda: not untold(watching), 60, "rules that can be told")
        # A loss is seen by the extractor: the updater may have steps before it to take yet.
        wait_until(lambda: bool(marked(base)[LOST_STEP - 1]["applied_ns"]), 60, "the step before")
        marks = marked(base)
        assert marks[LOST_STEP]["lost"] and not marks[LOST_STEP]["applied_ns"]
        assert {step for step, one in marks.items() if one["missing"]} == {LOST_STEP}
        wait_until(lambda: alike(run, base), 60, "one answer of status, top and the watcher")
        up.process.send_signal(signal.SIGTERM)
        code, out, _ = up.result()
        assert code == 1 and json.loads(out)["steps"] == LOST_STEP - 1
    kinds = [json.loads(line)["kind"] for line in run.events.read_text().splitlines()]
    assert kinds[0] == "start" and kinds[-1] == "stop"
    told = [json.loads(line) for line in run.events.read_text().splitlines()]
    steps = {one.get("step") for one in told if one.get("what") == "packets"}
    assert steps - {None} == {LOST_STEP}, "None: of connections that carry no gradient"
    assert {"up", "learned", "arrived", "applied", "loss", "restart", "note"} <= set(kinds)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_watcher_that_outlives_its_chain_says_so(tmp_path: Path) -> None:
    """One of its own; the supervisor is stopped, then killed."""
    port, run = free_port(), RunDir(tmp_path / "run")
    paced(tmp_path / "c.pcap", from_step=7, lost_step=13, frame_every_s=0.2)
    (tmp_path / "job.toml").write_text(
        f'run = "{run.root}"\n[[source]]\nfile = "{tmp_path}/c.pcap"\nspeed = 1.0\n'
        '[ring]\nslots = 4096\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
    )
    address = f"127.0.0.1:{port}"
    health = f"http://{address}/healthz"
    with Command("watch", "--run", run.root, "--listen", address):
        wait_until(lambda: asked(health)[0] == 503, 120, "a watcher without a chain")
        assert reason(health) == NO_CHAIN.code
        with Command("up", tmp_path / "job.toml") as up:
            wait_until(lambda: asked(health)[1]["word"] == "exact", 90, "a chain that is well")
            os.kill(up.process.pid, signal.SIGSTOP)
            wait_until(lambda: reason(health) == SUPERVISOR_HANGS.code, 60, "no heart beat")
            os.kill(up.process.pid, signal.SIGCONT)
            wait_until(lambda: asked(health)[0] == 200, 60, "its return")
            os.kill(up.process.pid, signal.SIGKILL)
            wait_until(lambda: reason(health) == SUPERVISOR_GONE.code, 60, "its end")
            assert asked(health)[0] == 503
        with Command("down", "--run", run.root) as down:
            assert down.result()[0] == 0
        wait_until(lambda: reason(health) == KILLED.code, 60, "that it is no more")
        assert time.time_ns() > asked(f"http://{address}/state.json")[1]["time_ns"]
