"""What NCCL 2.31 has on the wire beside what older releases have, and NICs whose ports NCCL takes
for one: followed, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cut import gradient_of
from support.netib import Options, generate
from support.netib.fifo import clear_to_send
from support.netib.manners import Manners
from support.staged import Chain, played

from flowcheck.findings.catalog.nccl_transport import MERGED_PORTS, SPEED_UPDATES
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.flows.speed_updates import without_speed_updates
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

WIDE = ((300, 128), (300,), (64, 300), (64,))
NEW = Options(version=(2, 31), shapes=WIDE, ranks=3, channels=2, caps_bytes=(40000, 90000))
ALL_IN_ONE = Manners(merged=True)


def _read(options: Options, folder: Path) -> Reading:
    seen = read_capture_files(generate(options, folder).files)
    return read_stream(seen.flows, seen.messages)


@pytest.mark.parametrize("every", [0, 1, 5])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_speed_updates_are_counted_and_grant_nothing(
    protocol: str, every: int, tmp_path: Path
) -> None:
    made = generate(replace(NEW, protocol=protocol, speed_updates=every), tmp_path)
    seen = read_capture_files(made.files)
    reading = read_stream(seen.flows, seen.messages)
    right = sum(m.wire_bytes == 32 and m.immediate is None for m in seen.messages)
    told = [one for one in reading.formats if one.is_any_of(SPEED_UPDATES)]
    assert told == ([SPEED_UPDATES(right)] if every else [])
    assert bool(right) is bool(every)
    assert reading.job is not None
    sums = [c.sha256 for c in reading.collectives if c.meaning == "gradient bucket"]
    assert sums == [c.sha256 for c in made.truth.gradients]


def test_a_job_with_speed_updates_is_followed(tmp_path: Path, shm: Path) -> None:
    made = generate(replace(NEW, protocol="Simple", speed_updates=2), tmp_path)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    assert found == {step + 1: gradient_of(made.truth, step) for step in range(NEW.steps)}


def _message(va: int, content: bytes) -> ObservedMessage:
    return ObservedMessage(
        flow=FlowKey(source="10.0.0.1", destination="10.0.0.2", dest_qp=7),
        first_psn=1 << 32,
        packets=1,
        number=0,
        psn_counted=True,
        va=va,
        rkey=1,
        immediate=None,
        wire_bytes=len(content),
        payload=np.frombuffer(content, np.uint8),
        first_ns=0,
        order=0,
    )


def test_entries_of_older_releases_are_no_speed_updates() -> None:
    """They are as long, each at the next place."""
    entries = [
        _message(4096 + 256 * n, clear_to_send((2, 19), 1 << 40, 65536, 5, 1, n + 1))
        for n in range(6)
    ]
    assert without_speed_updates(entries) == (entries, ())
    counter = _message(4096, bytes([1]) + bytes(31))
    behind = [*entries[1:], counter, replace(counter, payload=np.full(32, 255, np.uint8))]
    assert without_speed_updates(behind) == (behind, ())


@pytest.mark.parametrize(
    ("ports", "version"), [(2, (2, 30)), (3, (2, 30)), (3, (2, 31)), (4, (2, 31))]
)
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_ports_that_nccl_merges_are_refused_by_name(
    protocol: str, ports: int, version: tuple[int, int], tmp_path: Path
) -> None:
    options = replace(
        NEW, protocol=protocol, version=version, bonded=ports, manners=ALL_IN_ONE, steps=2
    )
    reading = _read(options, tmp_path)
    assert reading.job is None
    assert reading.why_not == (MERGED_PORTS(ports),)
    assert not reading.collectives


@pytest.mark.parametrize("seed", range(3))
def test_lost_clear_to_sends_are_no_merged_ports(seed: int, tmp_path: Path) -> None:
    """Every second one of the first twelve of a connection is lost."""
    options = Options(
        seed=seed, version=(2, 30), shapes=WIDE, grants_lost=tuple(range(1, 24, 2)), steps=2
    )
    reading = _read(options, tmp_path)
    assert not any(why.is_any_of(MERGED_PORTS) for why in reading.why_not)
