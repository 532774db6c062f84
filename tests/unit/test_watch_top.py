"""The terminal view: what it says, to whom, and what it does not let through."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support import preloaded
from test_watch_reading import CONFIG, beat
from test_watch_server import recorded

from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.run_directories import FOUND_NOTHING, NO_CHAIN_STARTED
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.status_command import print_state
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.ops.watch.top_command import FittedFrame, screen_parts
from flowcheck.stages.chain_events.heartbeat import write_beat


def shown(state: ChainState, width: int = 140) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(screen_parts(state))
    return out.getvalue()


def test_a_frame_says_in_words_what_the_state_says() -> None:
    state = recorded("state-lost.json")
    job = state.jobs[0]
    text = shown(state)
    assert text.index("STALE") < 20 and f"step {job.lost_step} was lost" in text
    assert (
        f"waits at {job.lost_step}" in text and f"step {job.durable and job.durable.step}" in text
    )
    assert "34 packets" in text and "LOST: every flow went on without it" in text
    for stage in state.stages:
        assert stage.name in text and str(stage.pid) in text
    assert "EXACT" in shown(recorded()) and "LOST" not in shown(recorded())


def test_status_in_a_pipe_has_whole_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program reads it: there is no width to cut it to."""
    monkeypatch.delenv("COLUMNS", raising=False)
    state = recorded("state-lost.json")
    rings = tuple(msgspec.structs.replace(one, huge_pages=True, head=10**15) for one in state.rings)
    print_state(msgspec.structs.replace(state, rings=rings), [])
    lines = capsys.readouterr().out.splitlines()
    titles = next(line for line in lines if "parse lag" in line)
    assert "extract lag" in titles and "last frame" in titles and "memory" in titles
    assert len([line for line in lines if "2 MiB pages" in line]) == len(rings) > 0
    assert not any("\u2026" in line for line in lines)


def fitted(state: ChainState, width: int, height: int) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, height=height, highlight=False)
    console.print(FittedFrame(state), height=height)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(20, 24), (80, 24), (100, 30), (200, 50)])
def test_a_terminal_holds_what_fits_and_counts_the_rest(width: int, height: int) -> None:
    for state in (recorded(), recorded("state-lost.json"), crowded()):
        lines = fitted(state, width, height)
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert lines[0].startswith(state.health.word.upper())
        if "when" not in [line.split(" ")[0] for line in lines]:
            assert len(lines) == height and lines[-1].startswith("... ")


def test_of_many_stages_in_a_small_terminal_the_one_that_is_down_is_seen() -> None:
    lines = fitted(crowded(), 100, 30)
    named = [line.split() for line in lines if line.startswith(("extract", "update", "parse"))]
    assert [words[:4] for words in named] == [["extract", "(job", "3)", "gone"]]
    assert sum("  stale  " in line for line in lines) == 5 and "29 stages are up" in lines


def test_rates_name_their_span_and_nothing_done_is_not_the_same_as_not_known() -> None:
    state = recorded()
    rates = {"update": 0.0, "extract": None}
    stages = [
        msgspec.structs.replace(one, rate=rates.get(one.name, one.rate)) for one in state.stages
    ]
    job = msgspec.structs.replace(state.jobs[0], step_rate=None)
    text = shown(msgspec.structs.replace(state, stages=tuple(stages), jobs=(job,)))
    cells = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "last 5 s" in cells["stage"] and "of 10 steps" in text
    assert " 0 steps/s" in cells["update"]
    assert "frames/s" not in cells["extract"] and cells["extract"].rstrip().endswith("-")
    assert "158 kB/s" in cells["capture-0"]


def crowded() -> ChainState:
    """Five jobs with long names, a stage that is down among many."""
    state = recorded("state-lost.json")
    jobs = tuple(
        msgspec.structs.replace(state.jobs[0], number=n, name=f"team-{n}-" * 20)
        for n in range(1, 6)
    )
    stages = tuple(
        msgspec.structs.replace(one, job=n, pid=None if (n, one.name) == (3, "extract") else 1)
        for n in range(1, 6)
        for one in state.stages
    )
    return msgspec.structs.replace(state, jobs=jobs, stages=stages)


def test_names_that_others_gave_command_no_terminal_and_are_no_markup() -> None:
    state = recorded("state-lost.json")
    bad = "\x1b]0;title\x07\x1b[2J[red]x[/]"
    said = earlier_finding(bad)
    job = msgspec.structs.replace(
        state.jobs[0], name=bad, why_not=(said,), tainted=(said,), lost_why=said
    )
    rings = (msgspec.structs.replace(state.rings[0], source=bad),)
    events = (msgspec.structs.replace(state.events[-1], why=said, stage=bad),)
    health = msgspec.structs.replace(state.health, reason=said)
    text = shown(
        msgspec.structs.replace(
            state, run=bad, jobs=(job,), rings=rings, events=events, health=health, problems=(said,)
        ),
        400,
    )
    assert not any(one < " " and one != "\n" for one in text)
    assert text.count("[red]x[/]") >= 8


def test_without_a_terminal_it_is_one_frame(tmp_path: Path) -> None:
    settings = {"source": [{"file": "/c.pcap"}], "ring": {}}
    settings["optimizer"] = {"name": "sgd", "learning_rate": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    words = ["top", "--run", str(tmp_path)]
    done = preloaded.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    assert done.stdout.startswith("STALE") and done.stdout.count("has ended") == 1


def test_a_chain_that_was_never_started_is_told_once(tmp_path: Path) -> None:
    words = ["top", "--run", str(tmp_path / "none")]
    done = preloaded.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert str(NO_CHAIN_STARTED(tmp_path / "none", FOUND_NOTHING())) in done.stderr
    assert done.stderr.count("no chain was started") == 1
    assert f"`flowcheck up JOB.toml --run {tmp_path}/none`" in done.stderr


def test_a_chain_that_was_never_started_is_no_success_for_programs(tmp_path: Path) -> None:
    words = ["top", "--json", "--run", str(tmp_path / "none")]
    done = preloaded.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == "" and json.loads(done.stderr)["finding"]["code"] == NO_CHAIN_STARTED.code


def test_in_a_terminal_it_waits_for_a_chain_that_begins_later_and_leaves_it_as_it_was(
    tmp_path: Path,
) -> None:
    parent, child = pty.openpty()
    words = ["top", "--run", str(tmp_path / "run")]
    process = preloaded.Popen(
        words, stdin=child, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"}
    )
    os.close(child)
    seen = bytearray()

    def until(words: bytes) -> None:
        until_s = time.monotonic() + 60
        while words not in seen and time.monotonic() < until_s:
            if select.select([parent], [], [], 1.0)[0]:
                try:
                    seen.extend(os.read(parent, 65536))
                except OSError:  # it has left
                    break
        assert words in seen, bytes(seen[-2000:])

    try:
        until(b"no chain was")
        run, _ = create_run(CONFIG, tmp_path / "run")
        write_beat(run.heartbeat_file, beat())
        until(b"BEHIND")
        run.remove()
        seen.clear()
        until(b"STALE")
        process.send_signal(signal.SIGINT)
        until(b"\x1b[?1049l")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
