"""Each communicator in a few lines of text: ranks in the ring, traffic, what the mirrors see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog import communicators as catalogue
from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis.communicator_summary import (
    CommunicatorSummary,
    Connection,
    MirroredLink,
)
from flowcheck.ops.analysis.mirror_coverage import CoverageGain, MirrorCoverage
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import spec_of

MOST_HOPS = 9
"""Nodes of a ring that a line lists; in a longer ring those without mirrored links are only
counted. A choice of layout."""
MOST_RANKS = 4096
"""Nodes whose addresses a fact lists: as many ranks as `plan` supports (wire_traffic.py)."""
LABEL = 8
"""Width of a line's label in characters. A choice of layout."""


def communicator_lines(communicators: Sequence[CommunicatorSummary]) -> list[str]:
    """Lines of text about all communicators; [] if there are none."""
    return [line for one in communicators for line in lines_of(one)]


def lines_of(one: CommunicatorSummary) -> Iterator[str]:
    """Lines of text about one communicator; all but the first are indented."""
    for label, fact in facts_of(one):
        yield _labelled(label, str(fact)) if label else str(fact)


def facts_of(one: CommunicatorSummary) -> Iterator[tuple[str, Finding]]:
    """(label of its line, fact) of all that is known of a communicator; the first has no label."""
    yield "", _headline(one)
    if one.ring:
        yield "ring", ring_order(one)
    yield "carries", _carries(one)
    for name, count in one.algorithms.items():
        spec = spec_of(Algorithm(name))
        if spec.sums is not None:
            yield (
                spec.plural,
                catalogue.ALGORITHM_USED(collectives=count, sums=spec.sums, algorithm=name),
            )
    for link in one.links:
        for connection in link.connections:
            yield "sees", _sees(one, link, connection)
    if one.coverage is not None:
        yield "covers", coverage_finding(one, one.coverage)
        for fact in coverage_gain_findings(one, one.coverage):
            yield "more", fact
    for told in one.assumed:
        yield "assumed", told


def _headline(one: CommunicatorSummary) -> Finding:
    return catalogue.COMMUNICATOR(
        number=one.number,
        parts=_ring_parts(one) if one.ring else (catalogue.POINT_TO_POINT(),),
        ring=one.ring,
        ranks=one.ranks,
        nodes=one.nodes,
        gpus=one.gpus,
        channels=one.channels,
        nccl=one.eras,
    )


def _ring_parts(one: CommunicatorSummary) -> tuple[Finding, ...]:
    if one.gpus > 1:
        ranks = catalogue.RING_OF_NODES(ranks=one.ranks, nodes=one.nodes, gpus=one.gpus)
    else:
        ranks = catalogue.RING_OF_RANKS(one.ranks)
    one_channel = one.channels == 1
    channels = catalogue.ONE_CHANNEL() if one_channel else catalogue.CHANNELS(one.channels)
    nccl = (catalogue.NCCL_RELEASES(one.eras),) if 0 < len(one.eras) < 3 else ()
    return ranks, channels, *nccl


def _carries(one: CommunicatorSummary) -> Finding:
    counted = any(c.messages is not None for link in one.links for c in link.connections)
    traffic = catalogue.TRAFFIC if counted else catalogue.TRAFFIC_EACH_ITERATION
    shares = [
        catalogue.PROTOCOL_SHARE(protocol=name, collectives=share.collectives, bytes=share.bytes)
        for name, share in one.protocols.items()
    ]
    return catalogue.CARRIES(
        traffic=traffic(shares),
        protocols=tuple(one.protocols),
        collectives=[share.collectives for share in one.protocols.values()],
        bytes=[share.bytes for share in one.protocols.values()],
        per_iteration=not counted,
    )


def _sees(one: CommunicatorSummary, link: MirroredLink, connection: Connection) -> Finding:
    return catalogue.SEES(
        way=_way(one, link, connection),
        carried=_carried(connection),
        sender=link.sender if one.ring else connection.source,
        receiver=link.receiver if one.ring else connection.destination,
        channel=connection.channel,
        queue_pairs=connection.queue_pairs,
        protocols=connection.protocols,
        messages=connection.messages,
        bytes=connection.bytes,
    )


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def ring_order(one: CommunicatorSummary) -> Finding:
    """The order of the ring: `0 10.77.0.1 -> 1 10.77.0.2 -> 2 ? -> 0`. A question mark is a node of
    unknown address."""
    known = {index for link in one.links for index in (link.sender, link.receiver)}
    hops: list[Finding] = []
    silent = 0
    for index in range(one.nodes):
        if index in known or one.nodes <= MOST_HOPS:
            hops += [catalogue.HOPS_UNSEEN(silent)] * bool(silent)
            host = one.host(index)
            hops.append(
                catalogue.HOP(node=index, host=host) if host else catalogue.HOP_UNKNOWN(index)
            )
            silent = 0
        else:
            silent += 1
    hops += [catalogue.HOPS_UNSEEN(silent)] * bool(silent)
    hosts = tuple(map(one.host, range(one.nodes if one.nodes <= MOST_RANKS else 0)))
    return catalogue.RING_ORDER(hops=hops, hosts=hosts)


def _way(one: CommunicatorSummary, link: MirroredLink, connection: Connection) -> Finding:
    pairs = [f"{number:x}" for number in connection.queue_pairs]
    if not one.ring:
        return catalogue.WAY_POINT_TO_POINT(
            source=connection.source, destination=connection.destination, pairs=pairs
        )
    ends = {"sender": link.sender, "receiver": link.receiver}
    if connection.channel is None:
        return catalogue.WAY_CHANNEL_UNKNOWN(pairs=pairs, **ends)
    return catalogue.WAY(channel=connection.channel, pairs=pairs, **ends)


def _carried(connection: Connection) -> Finding:
    nothing = (catalogue.NOTHING_READ(),)
    protocols = connection.protocols or nothing
    if connection.messages is None:
        return catalogue.CARRIED(protocols)
    return catalogue.CARRIED_COUNTED(
        protocols=protocols, messages=connection.messages, bytes=connection.bytes
    )


def coverage_finding(one: CommunicatorSummary, coverage: MirrorCoverage) -> Finding:
    """Share of the result that the mirrored links carry if no frame is lost."""
    around = (link for link in one.links if link.algorithm is Algorithm.RING)
    no_weights = () if coverage.weights else (catalogue.NO_WEIGHTS(),)
    return catalogue.COVERS(
        bytes=coverage.bytes,
        links=[f"{link.sender} -> {link.receiver}" for link in around],
        carry=(_carry(one, coverage), *no_weights),
        once_bytes=coverage.once_bytes,
        twice_bytes=coverage.twice_bytes,
        missing_chunks=coverage.missing_chunks,
        weights=coverage.weights,
    )


def _carry(one: CommunicatorSummary, coverage: MirrorCoverage) -> Finding:
    if coverage.once_bytes == coverage.bytes:
        once = coverage.bytes - coverage.twice_bytes
        if not once:
            return catalogue.CARRY_ALL_TWICE()
        if once == coverage.bytes:
            return catalogue.CARRY_ALL_ONCE()
        return catalogue.CARRY_ALL_PART_ONCE(_percent(once, coverage))
    missing = coverage.missing_chunks
    if len(missing) > 1:
        chunks = catalogue.CHUNKS(chunks=missing, ranks=one.ranks)
    else:
        chunks = catalogue.ONE_CHUNK(chunk=next(iter(missing), None), ranks=one.ranks)
    lacks = catalogue.CARRY_NOT_SOMEWHERE if one.gpus > 1 else catalogue.CARRY_NOT
    percent = _percent(coverage.bytes - coverage.once_bytes, coverage)
    return lacks(chunks=chunks, percent=percent)


def coverage_gain_findings(one: CommunicatorSummary, coverage: MirrorCoverage) -> Iterator[Finding]:
    """What mirroring a further link would add, one fact per group of equivalent links."""
    for gain in coverage.gains:
        yield catalogue.MORE(
            named=_links(one, gain),
            gain=catalogue.GAIN(_gain(gain, coverage)),
            links=gain.links,
            adds_bytes=gain.adds_bytes,
            twice_bytes=gain.twice_bytes,
        )


def _gain(gain: CoverageGain, coverage: MirrorCoverage) -> list[Finding]:
    once = coverage.once_bytes + gain.adds_bytes
    told: list[Finding] = []
    if gain.adds_bytes:
        adds = catalogue.GAIN_REST if once == coverage.bytes else catalogue.GAIN_PART
        told.append(adds(_percent(gain.adds_bytes, coverage)))
    elif once < coverage.bytes:
        told.append(catalogue.GAIN_NOTHING_MISSING())
    if gain.twice_bytes == coverage.bytes:
        told.append(catalogue.GAIN_ALL_TWICE())
    elif gain.twice_bytes > coverage.twice_bytes:
        told.append(catalogue.GAIN_PART_TWICE(_percent(gain.twice_bytes, coverage)))
    return told or [catalogue.GAIN_NOTHING()]


def _links(one: CommunicatorSummary, gain: CoverageGain) -> list[Finding]:
    more = len(gain.links) - MOST_HOPS
    named = [_named(one, sender) for sender in gain.links[:MOST_HOPS]]
    return [*named, catalogue.OTHER_LINKS(more)] if more > 0 else named


def _named(one: CommunicatorSummary, sender: int) -> Finding:
    """A link by the ports that carry it: a direction of a port that is mirrored already, or not."""
    receiver = (sender + 1) % one.nodes
    ports = [catalogue.OUT_OF_HOST(one.host(sender))] if one.host(sender) else []
    ports += [catalogue.INTO_HOST(one.host(receiver))] if one.host(receiver) else []
    if not ports:
        return catalogue.LINK(sender=sender, receiver=receiver)
    return catalogue.LINK_AT_PORTS(sender=sender, receiver=receiver, ports=ports)


def _percent(size: int, coverage: MirrorCoverage) -> float:
    """Rounded to three digits, as the sentence shows it."""
    return float(f"{100 * size / coverage.bytes:.3g}")
