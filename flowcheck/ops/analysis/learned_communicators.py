"""Communicator summaries for a job that a chain has learned."""

from __future__ import annotations

from collections import Counter

from flowcheck.ops.analysis.communicator_summary import (
    CommunicatorSummary,
    Connection,
    MirroredLink,
    ProtocolTraffic,
    place_of,
)
from flowcheck.ops.analysis.mirror_coverage import AllReduceShape, MirrorCoverage, coverage_of
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.training_job.learned_job import CollectiveOp, Edge, LearnedJob, Role
from flowcheck.wire.training_job.learned_job import Communicator as Ring


def summarize_learned_job(job: LearnedJob) -> tuple[CommunicatorSummary, ...]:
    """One summary per communicator of the job; traffic is that of one iteration."""
    return tuple(_communicator(job, number) for number in range(len(job.communicators)))


def _communicator(job: LearnedJob, number: int) -> CommunicatorSummary:
    own, edges = job.communicators[number], [e for e in job.edges if e.communicator == number]
    ops = [op for op in job.each if op.communicator == number]
    all_ops = [op for op in [*job.first, *ops] if op.communicator == number]
    ring = any(op.kind is not None for op in all_ops)
    used = frozenset(op.algorithm for op in all_ops if op.kind is not None)
    protocols: dict[str, ProtocolTraffic] = {}
    for op in ops:
        have = protocols.get(op.protocol, ProtocolTraffic(collectives=0, bytes=0))
        size = op.work_bytes or sum(message.data_bytes for message in op.messages)
        protocols[str(op.protocol)] = ProtocolTraffic(
            collectives=have.collectives + 1, bytes=have.bytes + size
        )
    return CommunicatorSummary(
        number=number,
        ranks=own.ranks,
        ring=ring,
        channels=own.channels,
        eras=(),  # the job goes by one of those that place its bytes alike
        assumed=job.assumed,
        links=tuple(_link(edge, own, ops, used) for edge in edges),
        gpus=own.gpus,
        algorithms=dict(Counter(str(op.algorithm) for op in ops if op.kind is not None)),
        protocols=protocols,
        kinds=dict(Counter(str(op.kind or "send_recv") for op in ops)),
        coverage=_coverage(job, number, edges, ops) if ring else None,
    )


def _link(
    edge: Edge, ring: Ring, ops: list[CollectiveOp], used: frozenset[Algorithm]
) -> MirroredLink:
    """used: algorithms of the communicator's collectives."""
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
    return MirroredLink(
        sender=place,
        receiver=after,
        connections=tuple(connections),
        algorithm=edge.algorithm_among(used),
    )


def _coverage(
    job: LearnedJob, number: int, edges: list[Edge], ops: list[CollectiveOp]
) -> MirrorCoverage | None:
    buckets = [op for op in ops if op.role is Role.BUCKET and op.kind is CollectiveKind.ALL_REDUCE]
    buckets = [op for op in buckets if op.algorithm is Algorithm.RING]
    if not buckets:
        return None
    largest, own = max(buckets, key=lambda op: op.work_bytes), job.communicators[number]
    shape = AllReduceShape(
        bytes=largest.work_bytes,
        element_bytes=largest.element_bytes,
        extra_sends=own.extra_sends,
        ranks=own.ranks,
        channels=own.channels,
        protocol=largest.protocol,
        nccl_era=job.era,
        gpus=own.gpus,
    )
    around = [edge.writers for edge in edges if edge.receiver is None]
    return coverage_of(shape, around)
