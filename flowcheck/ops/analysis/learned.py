"""A learned job's rings, for the picture of a running chain."""

from __future__ import annotations

from collections import Counter

from flowcheck.ops.analysis.communicators import Communicator, Connection, Link, Share, place_of
from flowcheck.ops.analysis.coverage import Coverage, Shape, coverage_of
from flowcheck.wire.edge import Communicator as Ring
from flowcheck.wire.edge import Edge
from flowcheck.wire.job import Job, Op, Role
from flowcheck.wire.terms import Kind


def communicators_of_job(job: Job) -> tuple[Communicator, ...]:
    """Every communicator of the job; what it carries is that of one iteration."""
    return tuple(_communicator(job, number) for number in range(len(job.communicators)))


def _communicator(job: Job, number: int) -> Communicator:
    own, edges = job.communicators[number], [e for e in job.edges if e.communicator == number]
    ops = [op for op in job.each if op.communicator == number]
    ring = any(op.kind is not None for op in [*job.first, *ops] if op.communicator == number)
    protocols: dict[str, Share] = {}
    for op in ops:
        have = protocols.get(op.protocol, Share(collectives=0, bytes=0))
        size = op.work_bytes or sum(message.data_bytes for message in op.messages)
        protocols[str(op.protocol)] = Share(
            collectives=have.collectives + 1, bytes=have.bytes + size
        )
    return Communicator(
        number=number,
        ranks=own.ranks,
        ring=ring,
        channels=own.channels,
        rules=(),  # the job goes by one of those that place its bytes alike
        assumed=job.assumed,
        links=tuple(_link(edge, own, ops) for edge in edges),
        gpus=own.gpus,
        trees=sum(op.tree for op in ops),
        protocols=protocols,
        kinds=dict(Counter(str(op.kind or "send_recv") for op in ops)),
        coverage=_coverage(job, number, edges, ops) if ring else None,
    )


def _link(edge: Edge, ring: Ring, ops: list[Op]) -> Link:
    protocols = tuple(dict.fromkeys(str(op.protocol) for op in ops))
    connections = []
    for channel in range(len(edge.flows)):
        flows = edge.turns(channel)
        if flows:
            connections.append(
                Connection(
                    channel=channel,
                    queue_pairs=tuple(flow.dest_qp for flow in flows),
                    source=flows[0].source,
                    destination=flows[0].destination,
                    protocols=protocols,
                )
            )
    place = place_of(edge.writers, ring.gpus)
    after = (place + 1) % (ring.ranks // ring.gpus)
    if edge.receiver is not None:
        after = edge.receiver // ring.gpus
    return Link(
        sender=place,
        receiver=after,
        connections=tuple(connections),
        tree=edge.receiver is not None,
    )


def _coverage(job: Job, number: int, edges: list[Edge], ops: list[Op]) -> Coverage | None:
    buckets = [op for op in ops if op.role is Role.BUCKET and op.kind is Kind.ALL_REDUCE]
    buckets = [op for op in buckets if not op.tree]
    if not buckets:
        return None
    largest, own = max(buckets, key=lambda op: op.work_bytes), job.communicators[number]
    shape = Shape(
        bytes=largest.work_bytes,
        element_bytes=largest.element_bytes,
        extra_sends=own.extra_sends,
        ranks=own.ranks,
        channels=own.channels,
        protocol=largest.protocol,
        rule=job.rule,
        gpus=own.gpus,
    )
    return coverage_of(shape, [edge.writers for edge in edges if edge.receiver is None])
