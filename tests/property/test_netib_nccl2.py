"""Jobs of torch's nccl2, whose start-up counts parameters by grouped broadcasts: judged by the
generator's truth, and bytes by a generator that shares no line with the schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.netib.broadcasts import fused
from support.netib.manners import Manners

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    wire_bytes,
)
from flowcheck.wire.collectives.ring_schedule import all_gather
from flowcheck.wire.learn import Reading, read, read_stream

ODD = ((67, 101), (67,), (13, 67), (13,), (3, 5, 7))
WIDE = ((300, 311), (311,), (90, 311), (91,))
SCALARS = ((), (67, 101), (67,), (), (13, 67), (1,), (13,))
CAPS = (6000, 17000)
MIXED = ((1024, "LL"), (12000, "LL128"))
NEW = Options(nccl2=True, version=(2, 30), shapes=ODD, caps_bytes=CAPS)
SIMPLE = replace(NEW, protocol="Simple")
JOBS = {
    "ll": replace(NEW, ranks=3),
    "ll128, two channels": replace(NEW, ranks=4, shapes=WIDE, protocol="LL128", channels=2),
    "simple": replace(SIMPLE, shapes=WIDE, channels=2, caps_bytes=(1 << 20, 25 << 20)),
    "simple, five ranks, bfloat16": replace(
        SIMPLE, ranks=5, shapes=WIDE, channels=4, dtype="bfloat16"
    ),
    "2.29": replace(SIMPLE, ranks=4, version=(2, 29), mirrored=(2,)),
    "mixed": replace(SIMPLE, ranks=8, shapes=WIDE, mix=MIXED, channels=2, mirrored=(5,)),
    "scalars": replace(SIMPLE, ranks=3, shapes=SCALARS, steps=9),
    "hook": replace(SIMPLE, ranks=3, compress="bfloat16"),
    "buffers": replace(SIMPLE, ranks=3, buffers=96, counters=2),
    "metrics": replace(SIMPLE, ranks=4, metric_every=2, steps=6),
    "static graph": replace(SIMPLE, ranks=3, static_graph=True),
    "unused parameters": replace(SIMPLE, ranks=3, find_unused=True, caps_bytes=(1 << 20, 25 << 20)),
    "two queue pairs": replace(SIMPLE, ranks=4, qps=2),
    "trees and rings": replace(
        SIMPLE, ranks=3, shapes=WIDE, channels=2, mix=MIXED, tree_below=60000, mirrored=(1,),
        caps_bytes=(40000, 90000),
    ),
    "metrics of a group": replace(SIMPLE, ranks=3, shapes=WIDE, channels=2, metrics_group=True),
    "a tensor-parallel neighbour": replace(SIMPLE, tensor_layers=1, tensor_near=True),
    "one direction": replace(SIMPLE, ranks=4, shapes=WIDE, mirrored=(2,), directions="tx"),
    "a long ring": replace(SIMPLE, ranks=40, mirrored=(5,), steps=2),
    "two ports": replace(SIMPLE, ranks=4, shapes=WIDE, channels=4, rails=2),
    "two nodes of two GPUs": replace(
        SIMPLE, ranks=4, gpus=2, orders=2, shapes=WIDE, channels=2, mirrored=(1,)
    ),
    "two nodes of eight GPUs, four ports": replace(
        SIMPLE, seed=20, ranks=16, gpus=8, orders=2, shapes=WIDE, channels=4, rails=4, buffers=64,
        caps_bytes=(40000, 90000), mirrored=(1,), steps=3,
    ),
    "not fused, ll": replace(NEW, ranks=4, fused=False),
    "not fused, simple": replace(SIMPLE, ranks=4, fused=False),
    "not fused, 2.26": replace(SIMPLE, ranks=3, version=(2, 26)),
}  # fmt: skip


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the search fails."""

    def asked(*args: object) -> None:
        raise AssertionError("the search was asked")

    monkeypatch.setattr(read, "find_communicators", asked)


def _read(options: Options, folder: Path) -> tuple[Reading, Truth]:
    made = generate(options, folder)
    seen = read_capture_files(made.files)
    return read_stream(seen.flows, seen.messages), made.truth


def _all_is_true(reading: Reading, truth: Truth) -> None:
    job, options = reading.job, truth.options
    assert job is not None, reading.why_not
    assert [parameter.sizes for parameter in job.parameters] == list(options.shapes)
    assert job.communicators[0].ranks == options.ranks
    assert job.communicators[0].channels == options.channels
    plan = [list(bucket) for bucket in job.buckets]
    assert plan[: len(plan) - job.has_usage_map] == truth.buckets
    assert reading.weights is not None
    assert reading.weights.data is not None
    assert reading.weights.data.tobytes() == truth.weights
    gradients = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert len(gradients) == len(truth.gradients)
    if options.directions == "both":
        assert [c.sha256 for c in gradients] == [c.sha256 for c in truth.gradients]


@pytest.mark.parametrize("name", JOBS)
def test_jobs_of_nccl2_are_foretold(name: str, tmp_path: Path, no_search: None) -> None:
    _all_is_true(*_read(JOBS[name], tmp_path))


@pytest.mark.parametrize("nccl2", [True, False])
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_how_parameters_were_counted_is_told_where_it_shows(
    protocol: str, nccl2: bool, tmp_path: Path
) -> None:
    """In LL both are the same sends; in Simple a gather's chunk is two, the second one empty."""
    options = replace(NEW, ranks=4, channels=2, protocol=protocol, nccl2=nccl2)
    reading, _ = _read(options, tmp_path)
    told = CollectiveKind.ALL_GATHER_V if nccl2 and protocol == "Simple" else "all_gather"
    assert reading.collectives[0].kind == told


@pytest.mark.parametrize("looks", [6, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["simple", "not fused, simple", "two nodes of two GPUs"])
def test_at_any_count_of_messages_it_is_the_true_job_or_none(
    name: str, looks: int, tmp_path: Path
) -> None:
    made = generate(JOBS[name], tmp_path)
    seen = read_capture_files(made.files)
    messages = sorted(seen.messages, key=lambda message: message.order)
    known = 0
    for count in range(8, len(messages), max(1, len(messages) // looks)):
        reading = read_stream(seen.flows, messages[:count], ended=False, hasty=True, results=False)
        if reading.job is not None:
            assert [p.sizes for p in reading.job.parameters] == list(JOBS[name].shapes)
            known += 1
    assert known


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_objects_gathered_before_ddp_begins_are_passed_over(protocol: str, tmp_path: Path) -> None:
    """A barrier of one float, all_gather_object, a seed: the search finds DDP behind them."""
    options = replace(NEW, ranks=4, shapes=WIDE, channels=2, protocol=protocol, habit="early")
    reading, truth = _read(options, tmp_path)
    _all_is_true(reading, truth)
    early = [c for c in truth.collectives if c.kind == "all_gather"][:2]
    held = {c.sha256 for c in reading.collectives if c.kind.startswith("all_gather")}
    assert {c.sha256 for c in early} <= held


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_a_start_up_that_counts_nothing_is_the_same_with_both(
    protocol: str, tmp_path: Path
) -> None:
    """Gradients that a script sums itself: weights, then sums, whatever the backend."""
    told = []
    for nccl2 in (True, False):
        options = replace(
            NEW, ranks=3, protocol=protocol, nccl2=nccl2, manners=Manners(startup="weights")
        )
        folder = tmp_path / str(nccl2)
        folder.mkdir()
        reading, _ = _read(options, folder)
        told.append([(c.kind, c.bytes, c.sha256) for c in reading.collectives])
    assert told[0] == told[1]
    assert len(told[0]) > NEW.steps


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize(
    ("ranks", "channels", "size"),
    [(2, 1, 8), (3, 4, 8), (4, 3, 1000), (5, 4, 70_001), (2, 8, 1_500_003), (3, 2, 4_000_001)],
)
def test_bytes_of_grouped_broadcasts_are_where_nccl_has_them(
    protocol: Protocol, ranks: int, channels: int, size: int
) -> None:
    options = Options(
        nccl2=True, version=(2, 30), ranks=ranks, channels=channels, protocol=protocol.value
    )
    blocks = [bytes((17 * rank + 3 * n) % 251 for n in range(size)) for rank in range(ranks)]
    made, whole = fused(options, blocks), b"".join(blocks)
    for sender in range(ranks):
        schedule = all_gather(
            size, sender=sender, kind=CollectiveKind.ALL_GATHER_V, ranks=ranks, channels=channels,
            protocol=protocol, era=NcclEra.V2_29,
        )  # fmt: skip
        for channel, sends in enumerate(schedule):
            due = made.loads.get((sender, channel), [])
            told = [whole[s.start_byte : s.start_byte + s.data_bytes] for s in sends]
            assert told == due
            assert [s.wire_bytes for s in sends] == [wire_bytes(protocol, len(d)) for d in due]
            assert [s.fifo_step for s in sends] == list(range(len(due)))
