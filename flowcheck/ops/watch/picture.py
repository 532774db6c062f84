"""What drawings of a learned job are made of."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from flowcheck.config import MirrorConfig
from flowcheck.ops.analysis.communicators import Communicator
from flowcheck.ops.analysis.communicators import Link as Mirrored
from flowcheck.ops.analysis.coverage import Coverage
from flowcheck.ops.analysis.explain import lines_of
from flowcheck.ops.analysis.learned import communicators_of_job
from flowcheck.ops.watch.parts.diagram import Diagram, Link
from flowcheck.wire.job import Job

HOSTS_MAX = 4096
"""Nodes whose addresses are told."""


def diagrams(job: Job, mirrors: Sequence[MirrorConfig] = ()) -> tuple[Diagram, ...]:
    """mirrors: the switch ports that are stated to be mirrored."""
    return tuple(_diagram(one, mirrors) for one in communicators_of_job(job))


def _diagram(one: Communicator, mirrors: Sequence[MirrorConfig]) -> Diagram:
    named = one.ring and one.nodes <= HOSTS_MAX
    return Diagram(
        number=one.number,
        ranks=one.ranks,
        nodes=one.nodes,
        gpus=one.gpus,
        channels=one.channels,
        ring=one.ring,
        hosts=tuple(one.host(index) for index in range(one.nodes)) if named else (),
        links=tuple(_link(link, mirrors) for link in one.links),
        chunk_links=_chunk_links(one.coverage) if one.coverage is not None else (),
        summary=tuple(lines_of(one)),
    )


def _chunk_links(coverage: Coverage) -> tuple[int, ...]:
    lacking = set(coverage.missing_chunks)
    each = enumerate(coverage.chunk_links)
    return tuple(-1 if not links and chunk not in lacking else links for chunk, links in each)


def _link(link: Mirrored, mirrors: Sequence[MirrorConfig]) -> Link:
    each = link.connections

    def ports(direction: str, hosts: Sequence[str]) -> tuple[str, ...]:
        ends = {ip_address(host) for host in hosts if host}
        return tuple(
            mirror.port
            for mirror in mirrors
            if mirror.direction in (direction, "both") and ip_address(mirror.host) in ends
        )

    return Link(
        sender=link.sender,
        receiver=link.receiver,
        sources=link.sources,
        destinations=link.destinations,
        channels=tuple(sorted({one.channel for one in each if one.channel is not None})),
        queue_pairs=tuple(number for one in each for number in one.queue_pairs),
        protocols=tuple(dict.fromkeys(name for one in each for name in one.protocols)),
        rx=ports("rx", link.sources),
        tx=ports("tx", link.destinations),
        tree=link.tree,
    )
