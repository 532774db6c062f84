"""A chain with one more kind of stage, of which nothing but its row in the table tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chain import Command, flowcheck, signal_stage, slowed, wait_until
from support.free import free_port
from support.tally_stage import known_to_all_processes

from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 12
JOB = """run = "{0}/run"
checkpoint = "{0}/out"
[[source]]
file = "{0}/slow.pcap"
speed = 1.0
[ring]
slots = 64
[staging]
size_bytes = 4_194_304
[optimizer]
name = "sgd"
learning_rate = 0.01
[watch]
listen = "127.0.0.1:{1}"
"""
NEEDED = ["update", "extract", "parse-0", "tally-0", "capture-0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up job of STEPS steps, captured at one port."""
    file = tmp_path_factory.mktemp("made") / "job.pcap"
    words = ["-m", "flowcheck.lab", str(file), "--steps", str(STEPS), "--shapes", "4x3,3"]
    subprocess.run([sys.executable, *words], check=True, timeout=60)
    return file


@pytest.fixture
def registered() -> Iterator[None]:
    environment = dict(os.environ)
    with known_to_all_processes(environment), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        yield


def replayed(capture: Path, run: Path) -> Any:
    words = ("--source", "file", "--optimizer", "sgd", "--lr", "0.01", "--digests", "--json")
    with Command("replay", capture, *words, "--run", run) as command:
        return command.json()


def digests(result: Any) -> list[tuple[str, str]]:
    return [(one["gradient_sha256"], one["parameters_sha256"]) for one in result["digests"]]


def events(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.events.read_text().splitlines()]


def test_a_replay_takes_the_same_steps_beside_it(
    made: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    without = replayed(made, tmp_path / "without")
    request.getfixturevalue("registered")
    told = replayed(made, tmp_path / "run")
    assert told["steps"] == STEPS and digests(told) == digests(without)
    assert "tally-0: frames are tallied" in [note["sentence"] for note in told["notes"]]
    assert (tmp_path / "run/tally-0.txt").read_text() == str(told["frames"])
    up = [event["stage"] for event in events(RunDir(tmp_path / "run")) if event["kind"] == "up"]
    assert sorted(up) == sorted(NEEDED)
    assert up.index("tally-0") < up.index("capture-0"), "it takes frames"


@pytest.mark.nightly
def test_a_live_chain_shows_it_starts_it_again_and_ends_with_it(
    made: Path, tmp_path: Path, registered: None
) -> None:
    slowed(made, tmp_path / "slow.pcap", frame_every_s=0.05, behind=40)
    port, run = free_port(), RunDir(tmp_path / "run")
    (tmp_path / "job.toml").write_text(JOB.format(tmp_path, port))

    def answered(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def of_page() -> dict[str, Any]:
        """What the page is made of, of the further stage."""
        state = json.loads(answered("/state.json") or '{"stages": []}')
        return {one["name"]: one for one in state["stages"]}.get("tally-0", {})

    with Command("up", tmp_path / "job.toml", "--json") as up:
        wait_until(lambda: (of_page().get("done") or 0) > 40, 90, "frames that are tallied")
        first = signal_stage(run, "tally-0")
        assert first is not None
        wait_until(lambda: of_page().get("pid") not in (None, first), 60, "it is started again")
        wait_until(lambda: of_page().get("restarts") == 1, 60, "that is counted")
        assert of_page()["unit"] == "frames"
        metric = 'flowcheck_stage_up{stage="tally-0",training_job="job-1"} 1.0'
        wait_until(lambda: metric in answered("/metrics"), 60, "a metric")
        code, out, _ = flowcheck("status", "--run", run.root, "--json")
        status = json.loads(out)
        assert [one["name"] for one in status["stages"]] == [
            "supervisor", "update", "extract", "watch", "parse-0", "tally-0", "capture-0",
        ]  # fmt: skip
        assert code == 0, status["health"]
        assert "tally-0" in flowcheck("status", "--run", run.root)[1]
        up.process.send_signal(signal.SIGTERM)
        code, out, err = up.result()
    assert code == 0, err
    assert json.loads(out)["steps"] > 0
    assert int((run.root / "tally-0.txt").read_text()) == json.loads(out)["frames"]
    restarted = [event["stage"] for event in events(run) if event["kind"] == "restart"]
    assert restarted == ["tally-0"]
