"""kill -9 inside the extractor: the same bytes, the same counters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from support.extraction import LL, SIMPLE, Bench, Send, bench, packets_of, plan_of

from flowcheck.plane.extractor import Extractor
from flowcheck.wire.plan import SendKind

GRADIENT_BYTES = 1 << 17
MESSAGE_BYTES = 2048
KILLS = 50


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
        int(run.staging.handle.header.data_held),
    )


def prepare(run: Bench) -> None:
    sends = job()
    packets = packets_of(sends)
    run.shard.begin(0, 1)
    run.run(packets[:1])
    run.extractor.install(plan_of(sends))
    tail = [p.frame for p in packets[1:]]
    # Late starts: some messages are staged, some packets held.
    for at in range(40, len(tail) - 40, 37):
        tail[at], tail[at + 20] = tail[at + 20], tail[at]
    run.feed(tail)


def in_child(run: Bench, entries: int | None, *, place: bool) -> None:
    """Extracts in a process of its own, which is killed once its journal holds `entries`."""
    header = run.staging.handle.header
    child = os.fork()
    if child == 0:
        try:
            with Extractor(run.ring, run.flows, run.staging, run.shard) as extractor:
                extractor.extract(1 << 20)
                if place:
                    extractor.place_staged()
        finally:
            os._exit(0)
    before = int(header.journal_used)
    while entries is not None and os.waitpid(child, os.WNOHANG)[0] == 0:
        for _ in range(200):
            # What the killed one before it left stands there until it was taken back.
            used = int(header.journal_used)
            if used >= entries and used != before:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
    if entries is None:
        os.waitpid(child, 0)


def test_fifty_kills_inside_spans_change_no_byte_and_no_count(shm: Path) -> None:
    (shm / "whole").mkdir()
    with bench(shm / "whole", gradient_bytes=GRADIENT_BYTES, unit_bytes=2) as run:
        prepare(run)
        run.extractor.extract(1 << 20)
        run.extractor.place_staged()
        right = outcome(run)
    rng = np.random.default_rng(5)
    inside = 0
    (shm / "killed").mkdir()
    with bench(shm / "killed", gradient_bytes=GRADIENT_BYTES, unit_bytes=2) as run:
        prepare(run)
        header = run.staging.handle.header
        for kill in range(KILLS):
            in_child(run, int(rng.integers(1, 12000)), place=kill % 5 == 4)
            inside += header.journal_used != 0 and header.journal_base == run.ring.tail
        in_child(run, None, place=True)
        assert outcome(run) == right
    print(f"{inside} of {KILLS} kills hit an open span")
    assert inside > KILLS // 3
    assert right[1] == GRADIENT_BYTES
