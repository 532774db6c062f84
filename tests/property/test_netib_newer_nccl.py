"""What NCCL 2.31 has on the wire beside what older releases have, and NICs whose ports NCCL takes
for one: followed, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cut import gradient_of
from support.netib import Options, generate, noise
from support.netib.fabric import Emitted
from support.netib.fifo import clear_to_send
from support.netib.manners import Manners
from support.netib.packets import Port
from support.netib.written import write
from support.staged import Chain, played

from flowcheck.findings.catalog.job_learning import SENDS_UNREAD
from flowcheck.findings.catalog.nccl_transport import (
    GATHERED_BY_PAT,
    MERGED_PORTS,
    NOT_NCCL,
    SPEED_UPDATES,
)
from flowcheck.findings.catalog.non_nccl_frames import PUTS
from flowcheck.messages import Drained
from flowcheck.ops.analysis import analyze_command
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.flows.aggregated_trees import without_aggregated
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.flows.speed_updates import without_speed_updates
from flowcheck.wire.traffic.non_nccl_traffic import non_nccl_reasons
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

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


SHARDED = Options(
    shapes=((64, 100), (64,), (300, 300), (300,)), protocol="Simple", version=(2, 27),
    sharded=True, steps=2, mirrored=(2,),
)  # fmt: skip


@pytest.mark.parametrize(("ranks", "channels"), [(5, 1), (7, 1), (8, 2), (12, 1)])
def test_gathers_by_pat_are_refused_by_name(ranks: int, channels: int, tmp_path: Path) -> None:
    options = replace(SHARDED, ranks=ranks, channels=channels, pat=True)
    reading = _read(options, tmp_path)
    assert reading.job is None
    why, *others = reading.why_not
    assert why.is_any_of(GATHERED_BY_PAT) and "NCCL_PAT_ENABLE=0" in (why.remedy or "")
    assert all(one.is_any_of(SENDS_UNREAD) for one in others)


@pytest.mark.parametrize(
    "options",
    [
        replace(SHARDED, ranks=8),
        Options(ranks=8, shapes=WIDE, protocol="Simple", version=(2, 27), tree_below=1 << 30),
        Options(
            ranks=9, shapes=WIDE, protocol="Simple", version=(2, 30), channels=2, mirrored=(4,),
            tree_below=60000, pipeline_bytes=40000, metrics_group=True,
        ),
    ],
)  # fmt: skip
def test_rings_trees_and_pipelines_are_no_pat(options: Options, tmp_path: Path) -> None:
    reading = _read(replace(options, steps=2), tmp_path)
    assert not any(why.is_any_of(GATHERED_BY_PAT) for why in reading.why_not)
    streams = sort_flows(*_seen(options, tmp_path)).streams
    assert without_aggregated(list(streams)) == (list(streams), 0)


def _seen(options: Options, folder: Path) -> tuple[list[ObservedFlow], list[ObservedMessage]]:
    seen = read_capture_files(generate(options, folder).files)
    return seen.flows, seen.messages


def test_of_puts_alone_it_is_said_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their frames alone: of a port that carries NCCL's GIN and nothing else of the job."""
    rng = np.random.default_rng(3)
    ports = [Port(bytes([2, 0, 0, 0, 0, n]), bytes([10, 0, 0, n])) for n in (1, 2)]
    options = Options(puts=40)
    made = noise.puts(options, rng, *ports)
    frames = [Emitted(n, src, dst, frame) for n, (src, dst, frame) in enumerate(made)]
    path = tmp_path / "puts.pcap"
    write(path, options, frames)
    seen = read_capture_files([path])
    told = (*read_stream(seen.flows, seen.messages).why_not, *non_nccl_reasons(seen.frames))
    assert [one.code for one in told] == [NOT_NCCL.code, PUTS.code]
    assert told[1].arguments["frames"] >= options.puts
    analyze_command.run([path])
    assert "GIN" in " ".join(capsys.readouterr().out.split())
    chain = Chain(tmp_path, tmp_path / "memory", [path], 512)
    assert not played(chain, 32)
    chain.close()
    [end] = chain.heard.of(Drained)
    assert {NOT_NCCL.code, PUTS.code} <= {why.code for why in end.why.arguments["reasons"]}


def test_a_job_beside_puts_is_followed(tmp_path: Path) -> None:
    """Expert-parallel traffic on the data-parallel port."""
    options = Options(ranks=3, shapes=WIDE, version=(2, 30), puts=60)
    reading = _read(options, tmp_path)
    assert reading.job is not None
