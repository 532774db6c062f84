"""What a reading costs: bytes looked at, guesses tried, and that its limits are counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.mirror_merge.mirror_point_merge import MergedView
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.cuts.purse import Purse, SendBudget
from flowcheck.wire.training_job.learned_job import encode_job

LARGE = ((700, 400), (400,), (400, 500), (500,))
"""1.9 MB: most results are compared where sends begin."""
JOBS = {
    "ll": Options(ranks=3, shapes=LARGE, caps_bytes=(1 << 18, 1 << 20)),
    "ll128 and buffers": Options(
        ranks=3,
        shapes=LARGE,
        protocol="LL128",
        version=(2, 23),
        buffers=64,
        counters=2,
        caps_bytes=(1 << 18, 1 << 20),
        channels=2,
    ),
    "simple": Options(
        ranks=4, shapes=LARGE, protocol="Simple", version=(2, 26), caps_bytes=(1 << 18, 1 << 20)
    ),
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MergedView]:
    folder = tmp_path_factory.mktemp("captured")
    made = {}
    for number, (name, options) in enumerate(JOBS.items()):
        own = folder / str(number)
        own.mkdir()
        made[name] = read_capture_files(generate(options, own).files)
    return made


@pytest.mark.parametrize("name", JOBS)
def test_without_results_the_job_and_its_weights_are_the_same(
    captured: dict[str, MergedView], name: str
) -> None:
    seen = captured[name]
    whole = read_stream(seen.flows, seen.messages)
    quick = read_stream(seen.flows, seen.messages, results=False)
    assert whole.job is not None and quick.job is not None
    assert encode_job(quick.job) == encode_job(whole.job)
    assert whole.weights is not None and quick.weights is not None
    assert whole.weights.sha256 == quick.weights.sha256 is not None
    gradients = [c for c in quick.collectives if c.meaning == "gradient bucket"]
    assert any(not c.result.size for c in gradients)
    assert not any(c.complete for c in gradients if not c.result.size)
    assert [c.placements for c in quick.collectives] == [c.placements for c in whole.collectives]


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Data bytes of each call that unpacks some."""
    sizes: list[int] = []
    plain = nccl_wire_format.unpack

    def counting(protocol, payload, data_bytes, *, linear=False):  # type: ignore[no-untyped-def]
        sizes.append(len(payload))
        return plain(protocol, payload, data_bytes, linear=linear)

    monkeypatch.setattr(nccl_wire_format, "unpack", counting)
    yield sizes


@pytest.mark.parametrize("name", JOBS)
def test_gradients_are_not_looked_at_to_learn_a_job(
    captured: dict[str, MergedView], unpacked: list[int], name: str
) -> None:
    """The weights once, and of each send of a gradient its first few kilobytes, some times."""
    seen = captured[name]
    sent = sum(message.wire_bytes for message in seen.messages)
    assert read_stream(seen.flows, seen.messages, results=False).job is not None
    assert sum(unpacked) < sent / 2


def test_guesses_that_a_start_up_rules_out_are_not_tried(tmp_path: Path) -> None:
    """More ranks than any guess without a start-up has: their number is read from it."""
    options = Options(ranks=40, shapes=((96, 40), (96,)), mirrored=(3,), version=(2, 23), steps=3)
    seen = read_capture_files(generate(options, tmp_path).files)
    reading = read_stream(seen.flows, seen.messages)
    assert reading.job is not None, reading.why_not
    assert reading.job.communicator_ranks == (40,)


def test_a_search_is_over_when_its_budget_is_spent() -> None:
    """Hundreds of guesses have a purse of their own each: none of them pays for anything then."""
    budget = SendBudget(10)
    first, second = Purse(1 << 30, budget), Purse(1 << 30, budget)
    assert first.pays() and second.pays()
    first.lays(10)
    for purse in (first, second):
        purse.pays()  # what was begun is ended
        assert not purse.pays()
    assert not Purse(1 << 30, budget).pays()


READ = """
import hashlib, json, sys
from pathlib import Path
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.learned_job import encode_job
seen = read_capture_files([Path(name) for name in sys.argv[1:]])
print("began", flush=True)
reading = read_stream(seen.flows, seen.messages)
job = None if reading.job is None else encode_job(reading.job).decode()
found = [(c.kind, c.bytes, c.sha256, list(map(str, c.assumed))) for c in reading.collectives]
print(json.dumps([job, list(map(str, reading.why_not)), found]))
"""
HELD_S, RUNS_S = 0.05, 0.005
"""Of each turn the reader has no processor, and has it: a tenth of one."""


@pytest.mark.parametrize("lose", [0, 6])
def test_a_reading_is_the_same_on_a_slow_processor(tmp_path: Path, lose: int) -> None:
    """Also where so much is open that the search is limited."""
    options = Options(
        ranks=4, shapes=((96, 40), (96,), (30, 96)), channels=2, lose=lose, metric_every=2, seed=5
    )
    files = list(map(str, generate(options, tmp_path).files))
    told = []
    for slow in (False, True):
        with subprocess.Popen(
            [sys.executable, "-c", READ, *files], stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "began\n"
            until_s = time.monotonic() + 3.0
            while slow and reader.poll() is None and time.monotonic() < until_s:
                os.kill(reader.pid, signal.SIGSTOP)
                time.sleep(HELD_S)
                os.kill(reader.pid, signal.SIGCONT)
                time.sleep(RUNS_S)
            told.append(json.loads(reader.communicate(timeout=60)[0]))
    assert told[0] == told[1]


def test_a_large_bucket_that_is_on_its_way_is_no_riddle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has hundreds of sends still to come; before, ever more rings and several jobs were tried
    in its place."""
    options = Options(
        ranks=4,
        channels=4,
        shapes=((2000, 1200), (1200, 2000)),
        protocol="LL128",
        version=(2, 23),
        steps=1,
        caps_bytes=(1 << 23, 1 << 24),
    )
    seen = read_capture_files(generate(options, tmp_path).files)
    whole = read_stream(seen.flows, seen.messages)
    bucket = next(c for c in whole.collectives if c.meaning == "gradient bucket")
    laid = 0

    def lays(purse: Purse, sends: int) -> None:
        nonlocal laid
        laid += sends

    monkeypatch.setattr(Purse, "lays", lays)
    own = {(p.flow, p.first_psn) for p in bucket.placements}
    times = sorted(m.first_ns for m in seen.messages if (m.flow, m.first_psn) in own)
    for share in (0.02, 0.3, 0.7):
        last = times[int(share * len(times))]
        messages = [message for message in seen.messages if message.first_ns <= last]
        laid = 0
        reading = read_stream(seen.flows, messages, ended=False, hasty=True, results=False)
        assert reading.awaited is not None
        assert 0 < laid < 200 * len(messages)
