"""What drawings of a learned job are made of."""

from __future__ import annotations

from flowcheck.ops.analysis.communicators import Communicator
from flowcheck.ops.analysis.communicators import Link as Mirrored
from flowcheck.ops.analysis.explain import lines_of
from flowcheck.ops.analysis.learned import communicators_of_job
from flowcheck.ops.watch.drawn import Diagram, Link
from flowcheck.wire.job import Job

HOSTS_MAX = 4096
"""Nodes whose addresses are told."""


def diagrams(job: Job) -> tuple[Diagram, ...]:
    return tuple(_diagram(one) for one in communicators_of_job(job))


def _diagram(one: Communicator) -> Diagram:
    named = one.ring and one.nodes <= HOSTS_MAX
    return Diagram(
        number=one.number,
        ranks=one.ranks,
        nodes=one.nodes,
        gpus=one.gpus,
        channels=one.channels,
        ring=one.ring,
        hosts=tuple(one.host(index) for index in range(one.nodes)) if named else (),
        links=tuple(map(_link, one.links)),
        chunk_links=one.coverage.chunk_links if one.coverage is not None else (),
        summary=tuple(lines_of(one)),
    )


def _link(link: Mirrored) -> Link:
    each = link.connections
    return Link(
        sender=link.sender,
        receiver=link.receiver,
        sources=link.sources,
        destinations=link.destinations,
        channels=tuple(sorted({one.channel for one in each if one.channel is not None})),
        queue_pairs=tuple(number for one in each for number in one.queue_pairs),
        protocols=tuple(dict.fromkeys(name for one in each for name in one.protocols)),
        tree=link.tree,
    )
