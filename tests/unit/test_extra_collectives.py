"""Collectives that are in no plan, told by the sizes of their messages, in every protocol."""

from __future__ import annotations

import pytest

from flowcheck.wire.algorithms import extra_ring_collectives
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import collective
from flowcheck.wire.traffic.observed_messages import NOT_ARRIVED, FlowKey
from flowcheck.wire.training_job.learned_job import Communicator, Edge, LearnedJob
from flowcheck.wire.unplanned_collectives.extra_collectives import (
    ExtraCollectives,
    LaneSizes,
    MessageSizeAt,
)


def job_of(ranks: int, channels: int, rule: NcclEra) -> LearnedJob:
    """A job whose first host is mirrored, both ways; of its plan nothing is needed here."""
    edges = tuple(
        Edge(
            communicator=0,
            sender=sender,
            flows=tuple(
                FlowKey(source=str(sender), destination="next", dest_qp=channel)
                for channel in range(channels)
            ),
            first_numbers=(0,) * channels,
        )
        for sender in (0, ranks - 1)
    )
    return LearnedJob(
        era=rule,
        communicators=(Communicator(ranks=ranks, channels=channels),),
        edges=edges,
        parameters=(),
        first_buckets=(),
        buckets=(),
        first=(),
        each=(),
    )


def sent(job: LearnedJob, kind: CollectiveKind, size: int, protocol: Protocol) -> LaneSizes:
    own = job.communicators[0]
    schedules = [
        collective(
            kind,
            size,
            sender=edge.sender,
            element_bytes=1,
            ranks=own.ranks,
            channels=own.channels,
            protocol=protocol,
            era=job.era,
        )
        for edge in job.edges
    ]
    return tuple(tuple(s.wire_bytes for s in sends) for one in schedules for sends in one)


def seen(due: LaneSizes) -> MessageSizeAt:
    """A stream that brought these messages, and no more yet."""
    return lambda lane, number: due[lane][number] if number < len(due[lane]) else NOT_ARRIVED


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("rule", list(NcclEra))
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (CollectiveKind.ALL_REDUCE, 1),
        (CollectiveKind.ALL_REDUCE, 4),
        (CollectiveKind.ALL_REDUCE, 2800),
        (CollectiveKind.BROADCAST, 1025),
    ],
)
def test_collective_of_any_protocol_is_told_by_its_sizes(
    protocol: Protocol, rule: NcclEra, ranks: int, channels: int, kind: CollectiveKind, size: int
) -> None:
    job = job_of(ranks, channels, rule)
    lanes = [(edge, channel) for edge in range(2) for channel in range(channels)]
    due = sent(job, kind, size, protocol)
    extras = ExtraCollectives(job, 0, lanes, (), guess=True)

    assert due in list(extras.at((0,) * len(lanes), seen(due)))


def test_a_search_that_was_cut_short_is_no_answer_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(2, 1, NcclEra.V2_23)
    sizes = sent(job, CollectiveKind.ALL_REDUCE, 4096, Protocol.SIMPLE)
    own = [(edge, 0) for edge in range(len(job.edges))]
    many = ExtraCollectives(job, 0, own, (), guess=True)

    monkeypatch.setattr(extra_ring_collectives, "SENDS_MAX", 0)
    many.begin()
    assert sizes not in list(many.at((0, 0), seen(sizes)))
    monkeypatch.setattr(extra_ring_collectives, "SENDS_MAX", 1 << 20)
    many.begin()
    assert sizes in list(many.at((0, 0), seen(sizes)))


def test_a_size_nobody_knows_costs_the_search_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many tensors fit, none is laid out."""
    job = job_of(2, 1, NcclEra.V2_23)
    sizes = sent(job, CollectiveKind.ALL_REDUCE, 4096, Protocol.SIMPLE)
    own = [(edge, 0) for edge in range(len(job.edges))]
    many = ExtraCollectives(job, 0, own, (), guess=True)
    monkeypatch.setattr(extra_ring_collectives, "SENDS_MAX", 1 << 14)
    many.begin()
    list(many.at((0, 0), lambda lane, number: None if number < 2 else NOT_ARRIVED))

    assert sizes in list(many.at((0, 0), seen(sizes)))


def test_channels_that_no_mirror_sees_bound_no_size() -> None:
    """Of two channels one comes back: what a broadcast sends on the other may be anything."""
    job = job_of(2, 2, NcclEra.V2_29)
    lanes = [(0, 0), (0, 1), (1, 0)]
    extras = ExtraCollectives(job, 0, lanes, (), guess=True)
    barrier = seen(((0, 16), (), (16, 0)))
    assert list(extras.at((0, 0, 0), barrier)) == [((0, 16), (), (16, 0))]
