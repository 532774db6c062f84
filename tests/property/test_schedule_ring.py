"""The schedule against rings that are executed: bytes carry the set of ranks they sum up."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, wire_bytes
from flowcheck.wire.collectives.ring_schedule import (
    Schedule,
    all_gather,
    all_reduce,
    broadcast,
    reduce_scatter,
)
from flowcheck.wire.collectives.tensor_size_fit import CollectiveSetting, EdgeSizes, totals_fitting

UNIT = 4
"""Bytes that stand for one element; every range of the schedule is cut in these."""


@st.composite
def rings(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "ranks": draw(st.integers(2, 16)),
        "channels": draw(st.integers(1, 8)),
        "protocol": draw(st.sampled_from(Protocol)),
        "era": draw(st.sampled_from(NcclEra)),
    }


counts = st.one_of(st.integers(1, 3000), st.integers(1, 400_000))


def run_all_reduce(
    schedules: list[Schedule], ring: dict[str, Any], channel: int, total: int
) -> list[Any]:
    """Every rank runs NCCL's kernel order: send, (receive, reduce or copy, send)*, receive.
    A receive is stored where the rank's own next send of that chunk reads it: at hop t the
    chunk (r - t - 2) mod R, so sender and receiver must agree on every range."""
    ranks = ring["ranks"]
    outputs = [np.full(total // UNIT, 1 << rank, np.uint32) for rank in range(ranks)]
    wires: list[deque[Any]] = [deque() for _ in range(ranks)]
    per_loop = 2 * ranks - 2
    slices = 2 if any(s.fifo_step > s.send for s in schedules[0][channel]) else 1
    sends = len(schedules[0][channel])
    for base in range(0, sends, per_loop * slices):
        for hop in range(per_loop + 1):
            for part in range(slices):
                arrived = (
                    [wires[(rank - 1) % ranks].popleft() for rank in range(ranks)] if hop else []
                )
                for rank in range(ranks):
                    if hop:
                        keep(
                            outputs[rank],
                            arrived[rank],
                            ring["protocol"],
                            (rank - hop - 1) % ranks,
                            ranks,
                        )
                    if hop < per_loop:
                        send = schedules[rank][channel][base + hop * slices + part]
                        view = slice(
                            send.start_byte // UNIT, (send.start_byte + send.data_bytes) // UNIT
                        )
                        wires[rank].append((send, outputs[rank][view].copy()))
    assert not any(wires)
    return outputs


def keep(output: Any, message: Any, protocol: Protocol, chunk: int, ranks: int) -> None:
    send, values = message
    assert send.chunk == chunk
    assert send.wire_bytes == wire_bytes(protocol, values.nbytes)
    complete = bool((values == (1 << ranks) - 1).all())
    assert send.final == complete or not values.size
    view = slice(send.start_byte // UNIT, (send.start_byte + send.data_bytes) // UNIT)
    if send.final:
        output[view] = values
    else:
        assert not (output[view] & values).any(), "a contribution was added twice"
        output[view] |= values


@settings(max_examples=150, deadline=None)
@given(rings(), counts)
def test_every_rank_ends_with_every_contribution_everywhere(
    ring: dict[str, Any], count: int
) -> None:
    total = count * UNIT
    schedules = [all_reduce(total, sender=r, **ring) for r in range(ring["ranks"])]
    done = np.zeros((ring["ranks"], count), bool)
    for channel in range(ring["channels"]):
        outputs = run_all_reduce(schedules, ring, channel, total)
        for rank, output in enumerate(outputs):
            full = output == (1 << ring["ranks"]) - 1
            assert not (full & done[rank]).any(), "two channels carry the same bytes"
            done[rank] |= full
    assert done.all()


@settings(max_examples=150, deadline=None)
@given(rings(), counts, st.integers(0, 15), st.sampled_from([1, 2, 4, 8]))
def test_both_directions_of_a_rank_or_one_patched_one_show_every_byte_once_or_twice(
    ring: dict[str, Any], count: int, rank: int, element_bytes: int
) -> None:
    rank %= ring["ranks"]
    total = count * element_bytes
    before = (rank - 1) % ring["ranks"]
    inbound = all_reduce(total, sender=before, element_bytes=element_bytes, **ring)
    outbound = all_reduce(total, sender=rank, element_bytes=element_bytes, **ring)
    patched = all_reduce(total, sender=rank, element_bytes=element_bytes, extra_sends=1, **ring)
    assert set(np.unique(final_copies([inbound, outbound], total))) <= {1, 2}
    assert set(np.unique(final_copies([patched], total))) == {1}


def final_copies(schedules: list[Schedule], total: int) -> Any:
    copies = np.zeros(total, np.uint8)
    for schedule in schedules:
        for sends in schedule:
            assert [send.send for send in sends] == list(range(len(sends)))
            for send in sends:
                assert 0 <= send.start_byte <= send.start_byte + send.data_bytes
                assert not send.data_bytes or send.start_byte + send.data_bytes <= total
                if send.final:
                    copies[send.start_byte : send.start_byte + send.data_bytes] += 1
    return copies


@settings(max_examples=100, deadline=None)
@given(rings(), st.integers(1, 200_000), st.integers(0, 15))
def test_gather_and_broadcast_bring_every_byte_to_every_rank_once(
    ring: dict[str, Any], count: int, root: int
) -> None:
    ranks, total = ring["ranks"], count * 8
    root %= ranks
    for rank in range(ranks):
        source = (rank - 1) % ranks
        received = broadcast(total, sender=source, root=root, **ring)
        assert (final_copies([received], total) == (rank != root)).all()
        gathered = final_copies([all_gather(total, sender=source, **ring)], total * ranks)
        due = np.ones(total * ranks, bool)
        due[rank * total : (rank + 1) * total] = False
        assert (gathered == due).all()
        scattered = reduce_scatter(total, sender=source, **ring)
        blocks = {send.chunk for sends in scattered for send in sends}
        assert blocks == set(range(ranks)) - {source}


@settings(max_examples=60, deadline=None)
@given(rings(), st.integers(1, 60_000), st.data())
def test_the_total_is_found_again_from_shuffled_sizes(
    ring: dict[str, Any], count: int, data: st.DataObject
) -> None:
    if ring["protocol"] is Protocol.LL128:
        ring["protocol"] = Protocol.LL
    era = ring.pop("era")
    total, sender = count * 8, data.draw(st.integers(0, ring["ranks"] - 1))
    schedule = all_reduce(total, sender=sender, element_bytes=8, era=era, **ring)
    sizes = data.draw(st.permutations([tuple(s.wire_bytes for s in c) for c in schedule]))
    setting = CollectiveSetting(**ring, element_bytes=8)
    fits = totals_fitting([EdgeSizes(sender=sender, flows=tuple(sizes))], setting)
    assert any(fit.total_bytes == total and era in fit.eras for fit in fits)
    for fit in fits:
        for flow, channels in zip(sizes, fit.choices[0], strict=True):
            for channel in channels:
                assert tuple(s.wire_bytes for s in fit.schedules[0][channel]) == flow
