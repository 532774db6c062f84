"""Any order, loss or repetition of packets: right bytes where they came, exact gaps elsewhere."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.extraction import (
    LL,
    PMTU_BYTES,
    SIMPLE,
    Bench,
    Send,
    bench,
    expected,
    packets_of,
    plan_of,
)

from flowcheck.wire.training_job.connection_messages import SendKind

GRADIENT_BYTES = 4096


@contextmanager
def fresh(unit_bytes: int) -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-", dir="/dev/shm"))
    try:
        with bench(
            folder,
            gradient_bytes=GRADIENT_BYTES,
            unit_bytes=unit_bytes,
            slots=512,
            records=64,
            data_bytes=1 << 20,
        ) as made:
            made.shard.begin(0, 1)
            yield made
    finally:
        shutil.rmtree(folder)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[Send]]:
    """Messages whose segments cut the gradient into pieces, each with one home, shuffled."""
    unit = draw(st.sampled_from([2, 4, 8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cuts = draw(st.lists(st.integers(1, GRADIENT_BYTES // unit - 1), max_size=12, unique=True))
    edges = [0, *sorted(cut * unit for cut in cuts), GRADIENT_BYTES]
    pieces = list(pairwise(edges))
    rng.shuffle(pieces)
    sends: list[Send] = []
    while pieces:
        kind = draw(st.sampled_from([SendKind.FINAL] * 4 + [SendKind.PARTIAL, SendKind.IGNORED]))
        taken = [pieces.pop() for _ in range(min(len(pieces), draw(st.integers(1, 4))))]
        segments, size = [], 0
        for start, stop in taken:
            segments.append((size, stop - start, start))
            size += stop - start
        data = rng.integers(0, 256, size, np.uint8).tobytes()
        protocol = draw(st.sampled_from([LL, SIMPLE]))
        if kind is not SendKind.FINAL:
            pieces += taken if draw(st.booleans()) else []
        sends.append(Send(data, protocol, kind, tuple(segments)))
    return unit, sends


@settings(max_examples=120, deadline=None)
@given(
    job=jobs(),
    seed=st.integers(0, 2**32),
    lost=st.floats(0, 0.5),
    again=st.floats(0, 1),
    near=st.integers(0, 40),
    proved=st.booleans(),
)
def test_bytes_lie_where_the_plan_says_and_gaps_are_exact(
    job: tuple[int, list[Send]], seed: int, lost: float, again: float, near: int, proved: bool
) -> None:
    unit, sends = job
    rng = np.random.default_rng(seed)
    packets = packets_of(sends)
    # The start of a message names it: without, its packets are orphans, tested elsewhere.
    kept = [p for p in packets if p.offset == 0 or rng.random() >= lost]
    arriving = kept + [p for p in kept if rng.random() < again]
    order = np.argsort(
        np.arange(len(arriving)) % len(kept) + rng.integers(0, near + 1, len(arriving))
    )
    with fresh(unit) as run:
        if proved:
            run.run(arriving[i] for i in order[:1])
            run.extractor.install_plan(plan_of(sends))
            run.run(arriving[i] for i in order[1:])
        else:
            run.run(arriving[i] for i in order)
            run.extractor.install_plan(plan_of(sends))
        run.extractor.assign_staged()
        gradient, covered = expected(sends, kept, GRADIENT_BYTES)
        counters = run.counters()
        assert np.array_equal(run.covered(), covered)
        assert np.array_equal(run.shard.gradient(0)[covered], gradient[covered])
        assert run.shard.covered_bytes(0) == covered.sum() == counters["placed_bytes"]
        assert counters["seen_frames"] == len(arriving)
        assert counters["conflict_bytes"] == counters["orphan_dropped_packets"] == 0
        assert counters["flag_mismatch_lines"] == counters["deviating_messages"] == 0
        assert run.staging.orphan_count == 0
        assert run.staging.handle.header.records_in_use == 0
        assert run.staging.handle.header.data_in_use == 0
        assert run.shard.finish(0) == covered.all()


@settings(max_examples=120, deadline=None)
@given(
    job=jobs(),
    seed=st.integers(0, 2**32),
    lost=st.floats(0, 0.6),
    near=st.integers(0, 40),
    proved=st.booleans(),
)
def test_whatever_is_lost_no_byte_lies_where_it_does_not_belong(
    job: tuple[int, list[Send]], seed: int, lost: float, near: int, proved: bool
) -> None:
    """Starts of messages too: then some bytes that came cannot be placed, and none goes astray."""
    unit, sends = job
    rng = np.random.default_rng(seed)
    packets = packets_of(sends)
    kept = [packets[0], *(p for p in packets[1:] if rng.random() >= lost)]
    order = np.argsort(np.arange(len(kept)) + rng.integers(0, near + 1, len(kept)))
    with fresh(unit) as run:
        if proved:
            run.run([packets[0]])
            run.extractor.install_plan(plan_of(sends))
        run.run(kept[i] for i in order)
        run.extractor.install_plan(plan_of(sends))
        run.extractor.assign_staged()
        gradient, arrived = expected(sends, kept, GRADIENT_BYTES)
        covered = run.covered()
        counters = run.counters()
        assert not (covered & ~arrived).any()
        assert np.array_equal(run.shard.gradient(0)[covered], gradient[covered])
        assert run.shard.covered_bytes(0) == covered.sum() == counters["placed_bytes"]
        assert counters["conflict_bytes"] == counters["flag_mismatch_lines"] == 0


@settings(max_examples=80, deadline=None)
@given(
    job=jobs(),
    seed=st.integers(0, 2**32),
    lost=st.floats(0, 0.6),
    changed=st.floats(0, 0.05),
)
def test_copies_behind_a_partial_step_are_compared_and_add_nothing(
    job: tuple[int, list[Send]], seed: int, lost: float, changed: float
) -> None:
    unit, sends = job
    rng = np.random.default_rng(seed)
    packets = packets_of(sends)
    kept = [p for p in packets if p.offset == 0 or rng.random() >= lost]
    others = [replace(send, data=flipped(send.data, changed, rng)) for send in sends]
    with fresh(unit) as run:
        run.run(kept[:1])
        run.extractor.install_plan(plan_of(sends))
        run.run(kept[1:])
        run.extractor.assign_staged()
        run.shard.mark_partial(0)
        gradient, covered = expected(sends, kept, GRADIENT_BYTES)
        conflicts = 0
        for copies in (sends, others):
            late = packets_of(copies)
            run.run(late)
            run.extractor.assign_staged()
            brought, there = expected(copies, late, GRADIENT_BYTES)
            differ = covered & there & (brought != gradient)
            conflicts += unit * int(differ.reshape(-1, unit).any(1).sum())
            assert np.array_equal(run.covered(), covered)
            assert np.array_equal(run.shard.gradient(0), gradient)
            assert run.shard.covered_bytes(0) == covered.sum()
            assert run.shard.conflict_bytes(0) == run.counters()["conflict_bytes"] == conflicts
        assert run.staging.handle.header.records_in_use == run.staging.orphan_count == 0


def flipped(data: bytes, share: float, rng: np.random.Generator) -> bytes:
    """One bit is another in this share of the bytes, but for those of the first packet: other ones
    there make another message of it (test_alternative_messages.py)."""
    changed = rng.random(len(data)) < share
    changed[:PMTU_BYTES] = False
    bits = np.left_shift(1, rng.integers(0, 8, len(data))).astype(np.uint8)
    return bytes(np.frombuffer(data, np.uint8) ^ np.where(changed, bits, 0).astype(np.uint8))
