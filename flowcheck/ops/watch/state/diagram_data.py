"""The data of the page's ring diagram, computed from a learned job."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from flowcheck.config import MirrorConfig
from flowcheck.ops.analysis.communicator_summary import CommunicatorSummary
from flowcheck.ops.analysis.communicator_summary import MirroredLink as Mirrored
from flowcheck.ops.analysis.communicator_text import facts_of, lines_of
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.analysis.mirror_coverage import MirrorCoverage
from flowcheck.ops.watch.state.chain_state import DiagramLink, RingDiagram
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.training_job.learned_job import LearnedJob

HOSTS_MAX = 4096
"""Most nodes whose addresses a diagram lists: the largest number of ranks that `plan` supports
(ops/planning/wire_traffic.py, MOST_RANKS)."""


def diagrams(job: LearnedJob, mirrors: Sequence[MirrorConfig] = ()) -> tuple[RingDiagram, ...]:
    """The diagrams of a job, one per communicator. mirrors: the mirrored switch ports of the job
    file."""
    return tuple(_diagram(one, mirrors) for one in summarize_learned_job(job))


def _diagram(one: CommunicatorSummary, mirrors: Sequence[MirrorConfig]) -> RingDiagram:
    named = one.ring and one.nodes <= HOSTS_MAX
    return RingDiagram(
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
        facts=tuple(fact for _, fact in facts_of(one)),
    )


def _chunk_links(coverage: MirrorCoverage) -> tuple[int, ...]:
    lacking = set(coverage.missing_chunks)
    each = enumerate(coverage.chunk_links)
    return tuple(-1 if not links and chunk not in lacking else links for chunk, links in each)


def _link(link: Mirrored, mirrors: Sequence[MirrorConfig]) -> DiagramLink:
    each = link.connections

    def ports(direction: str, hosts: Sequence[str]) -> tuple[str, ...]:
        ends = {ip_address(host) for host in hosts if host}
        return tuple(
            mirror.port
            for mirror in mirrors
            if mirror.direction in (direction, "both") and ip_address(mirror.host) in ends
        )

    return DiagramLink(
        sender=link.sender,
        receiver=link.receiver,
        sources=link.sources,
        destinations=link.destinations,
        channels=tuple(sorted({one.channel for one in each if one.channel is not None})),
        queue_pairs=tuple(number for one in each for number in one.queue_pairs),
        protocols=tuple(dict.fromkeys(name for one in each for name in one.protocols)),
        rx=ports("rx", link.sources),
        tx=ports("tx", link.destinations),
        of_trees=link.algorithm is Algorithm.TREE,
        algorithm=link.algorithm,
    )
