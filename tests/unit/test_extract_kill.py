"""kill -9 inside the extractor: the same bytes, the same counters."""

from __future__ import annotations

import os
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from support.extraction import LL, SIMPLE, Bench, Send, bench, packets_of, plan_of

from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.wire.training_job.connection_messages import SendKind

GRADIENT_BYTES = 1 << 17
MESSAGE_BYTES = 2048


def job() -> list[Send]:
    """Two copies of each piece; every other element alone in its segment, so that work is slow."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 256, GRADIENT_BYTES, np.uint8)
    sends = []
    for at in range(0, GRADIENT_BYTES, MESSAGE_BYTES):
        segments = tuple((2 * i, 2, at + 2 * (i ^ 1)) for i in range(MESSAGE_BYTES // 2))
        data = values[at : at + MESSAGE_BYTES].reshape(-1, 2, 2)[:, ::-1].tobytes()
        for protocol in (LL, SIMPLE):
            sends.append(Send(data, protocol, SendKind.FINAL, segments))
    return sends


def outcome(run: Bench) -> tuple[bytes, int, dict[str, int], int]:
    return (
        run.shard.gradient(0).tobytes(),
        run.shard.covered_bytes(0),
        run.counters(),
        int(run.staging.handle.header.data_in_use),
    )


def prepare(run: Bench) -> None:
    sends = job()
    packets = packets_of(sends)
    run.shard.begin(0, 1)
    run.run(packets[:1])
    run.extractor.install_plan(plan_of(sends))
    tail = [p.frame for p in packets[1:]]
    # Late starts: some messages are staged, some packets held.
    for at in range(40, len(tail) - 40, 37):
        tail[at], tail[at + 20] = tail[at + 20], tail[at]
    run.feed(tail)


def in_child(run: Bench, seconds: float | None, *, opened: bool = False) -> None:
    """Extracts in a process of its own, dead after `seconds` without a chance to act. opened: from
    then on, else from the fork: on a busy machine the extractor may not be open so soon."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # A timer of the process itself: it hits wherever the scheduler lets it run.
            if seconds is not None and not opened:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            with Extractor(run.ring, run.flows, run.staging, run.shard) as extractor:
                if seconds is not None and opened:
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                extractor.extract(1 << 20)
                extractor.assign_staged()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def inside_a_span(run: Bench) -> bool:
    header = run.staging.handle.header
    return bool(header.journal_used) and header.journal_base == run.ring.tail


@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=pytest.mark.nightly)])
def test_kills_inside_spans_change_no_byte_and_no_count(shm: Path, kills: int) -> None:
    def fresh(name: str) -> AbstractContextManager[Bench]:
        (shm / name).mkdir()
        return bench(shm / name, gradient_bytes=GRADIENT_BYTES, unit_bytes=2)

    with fresh("whole") as run:
        prepare(run)
        began = time.perf_counter()
        run.extractor.extract(1 << 20)
        run.extractor.assign_staged()
        whole_s = time.perf_counter() - began
        right = outcome(run)
    assert right[1] == GRADIENT_BYTES
    rng = np.random.default_rng(5)
    hits = attempts = 0
    while hits < kills and attempts < 20 * kills:
        with fresh(str(attempts)) as run:
            prepare(run)
            while run.ring.tail < run.ring.parsed and hits < kills and attempts < 20 * kills:
                soon = float(rng.uniform(1e-5, max(1e-3, whole_s / 3)))
                in_child(run, soon, opened=attempts % 2 == 1)
                hits += inside_a_span(run)
                attempts += 1
            in_child(run, None)
            assert outcome(run) == right
    assert hits == kills, f"{hits} of {attempts} kills hit an open span"
