"""Each communicator in a few lines of text: ranks in the ring, traffic, what the mirrors see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog.communicators import (
    ALGORITHM_USED,
    CARRIES,
    COMMUNICATOR,
    COVERS,
    MORE,
    RING_ORDER,
    SEES,
)
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
    yield (
        "",
        COMMUNICATOR(
            text=_headline(one),
            number=one.number,
            ring=one.ring,
            ranks=one.ranks,
            nodes=one.nodes,
            gpus=one.gpus,
            channels=one.channels,
            nccl=one.eras,
        ),
    )
    if one.ring:
        hosts = tuple(map(one.host, range(one.nodes if one.nodes <= MOST_RANKS else 0)))
        yield "ring", RING_ORDER(text=ring_order(one), hosts=hosts)
    yield "carries", _carries(one)
    for name, count in one.algorithms.items():
        spec = spec_of(Algorithm(name))
        if spec.sum_words:
            text = f"{count} all-reduces: {spec.sum_words}"
            yield spec.plural, ALGORITHM_USED(text=text, algorithm=name, collectives=count)
    for link in one.links:
        for connection in link.connections:
            yield "sees", _sees(one, link, connection)
    if one.coverage is not None:
        yield "covers", coverage_finding(one, one.coverage)
        for fact in coverage_gain_findings(one, one.coverage):
            yield "more", fact
    for told in one.assumed:
        yield "assumed", told


def _headline(one: CommunicatorSummary) -> str:
    if not one.ring:
        return f"Communicator {one.number}: point-to-point sends"
    eras = f", NCCL {' or '.join(one.eras)}" if 0 < len(one.eras) < 3 else ""
    channels = f"{one.channels} channel{'s' * (one.channels > 1)}"
    return f"Communicator {one.number}: a ring of {ranks_of(one)}, {channels}{eras}"


def _carries(one: CommunicatorSummary) -> Finding:
    mix = (
        f"{name} {share.collectives} collectives, {share.bytes:,} bytes"
        for name, share in one.protocols.items()
    )
    counted = any(c.messages is not None for link in one.links for c in link.connections)
    return CARRIES(
        text="; ".join(mix) + ("" if counted else ", in each iteration"),
        protocols=tuple(one.protocols),
        collectives=[share.collectives for share in one.protocols.values()],
        bytes=[share.bytes for share in one.protocols.values()],
        per_iteration=not counted,
    )


def _sees(one: CommunicatorSummary, link: MirroredLink, connection: Connection) -> Finding:
    return SEES(
        text=f"{_way(one, link, connection)}: {_carried(connection)}",
        sender=link.sender if one.ring else connection.source,
        receiver=link.receiver if one.ring else connection.destination,
        channel=connection.channel,
        queue_pairs=connection.queue_pairs,
        protocols=connection.protocols,
        messages=connection.messages,
        bytes=connection.bytes,
    )


def ranks_of(one: CommunicatorSummary) -> str:
    """Number of ranks as text, and of nodes if a node has several GPUs."""
    nodes = f" on {one.nodes} nodes of {one.gpus} GPUs" if one.gpus > 1 else ""
    return f"{one.ranks} ranks{nodes}"


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def ring_order(one: CommunicatorSummary) -> str:
    """The ring as text: `0 10.77.0.1 -> 1 10.77.0.2 -> 2 ? -> 0`. A question mark is a node of
    unknown address."""
    known = {index for link in one.links for index in (link.sender, link.receiver)}
    hops: list[str] = []
    silent = 0
    for index in range(one.nodes):
        if index in known or one.nodes <= MOST_HOPS:
            hops += [f"({silent} not seen)"] * bool(silent)
            hops.append(f"{index} {one.host(index) or '?'}")
            silent = 0
        else:
            silent += 1
    hops += [f"({silent} not seen)"] * bool(silent)
    return " -> ".join([*hops, "0"])


def _way(one: CommunicatorSummary, link: MirroredLink, connection: Connection) -> str:
    pairs = "/".join(f"{number:x}" for number in connection.queue_pairs)
    if not one.ring:
        return f"{connection.source} -> {connection.destination}, QP {pairs}"
    channel = "?" if connection.channel is None else connection.channel
    return f"{link.sender} -> {link.receiver}, channel {channel}, QP {pairs}"


def _carried(connection: Connection) -> str:
    told = "/".join(connection.protocols) or "nothing read"
    if connection.messages is None:
        return told
    return f"{told}, {connection.messages:,} messages, {connection.bytes:,} bytes"


def coverage_finding(one: CommunicatorSummary, coverage: MirrorCoverage) -> Finding:
    """Share of the result that the mirrored links carry if no frame is lost."""
    return COVERS(
        text=_covered(one, coverage),
        bytes=coverage.bytes,
        once_bytes=coverage.once_bytes,
        twice_bytes=coverage.twice_bytes,
        missing_chunks=coverage.missing_chunks,
        weights=coverage.weights,
    )


def _covered(one: CommunicatorSummary, coverage: MirrorCoverage) -> str:
    around = (link for link in one.links if link.algorithm is Algorithm.RING)
    links = ", ".join(f"{link.sender} -> {link.receiver}" for link in around)
    whole = f"of a sum of {coverage.bytes:,} bytes the mirrored links ({links})"
    if coverage.once_bytes == coverage.bytes:
        once = coverage.bytes - coverage.twice_bytes
        share = "each byte" if once == coverage.bytes else f"{_percent(once, coverage)} of it"
        copies = f"{share} in one copy only" if once else "each byte in two copies or more"
        told = f"{whole} carry everything, {copies}"
    else:
        chunks = ", ".join(map(str, coverage.missing_chunks))
        lacks = f"chunk{'s' * (len(coverage.missing_chunks) > 1)} {chunks} of {one.ranks}"
        if one.gpus > 1:
            lacks += " on some channels"
        missing = coverage.bytes - coverage.once_bytes
        told = f"{whole} do not carry {lacks}, {_percent(missing, coverage)}"
    if not coverage.weights:
        told += "; a broadcast from rank 0 (the initial weights) passes none of these links"
    return told


def coverage_gain_findings(one: CommunicatorSummary, coverage: MirrorCoverage) -> Iterator[Finding]:
    """What mirroring a further link would add, one fact per group of equivalent links."""
    for gain in coverage.gains:
        yield MORE(
            text=f"{_links(one, gain)}: {_gain(gain, coverage)}",
            links=gain.links,
            adds_bytes=gain.adds_bytes,
            twice_bytes=gain.twice_bytes,
        )


def _gain(gain: CoverageGain, coverage: MirrorCoverage) -> str:
    once = coverage.once_bytes + gain.adds_bytes
    told: list[str] = []
    if gain.adds_bytes:
        whole = " and nothing is missing" if once == coverage.bytes else ""
        told.append(f"{_percent(gain.adds_bytes, coverage)} more{whole}")
    elif once < coverage.bytes:
        told.append("nothing that is missing")
    if gain.twice_bytes == coverage.bytes:
        told.append("everything is seen twice, so that any one link may fail")
    elif gain.twice_bytes > coverage.twice_bytes:
        told.append(f"{_percent(gain.twice_bytes, coverage)} is seen twice")
    return ", ".join(told) or "nothing"


def _links(one: CommunicatorSummary, gain: CoverageGain) -> str:
    named = [_named(one, sender) for sender in gain.links[:MOST_HOPS]]
    more = f" or {len(gain.links) - MOST_HOPS} others" if len(gain.links) > MOST_HOPS else ""
    return " or ".join(named) + more


def _named(one: CommunicatorSummary, sender: int) -> str:
    """A link by the ports that carry it: a direction of a port that is mirrored already, or not."""
    receiver = (sender + 1) % one.nodes
    ports = [f"out of {one.host(sender)}"] if one.host(sender) else []
    ports += [f"into {one.host(receiver)}"] if one.host(receiver) else []
    told = f" ({', '.join(ports)})" if ports else ""
    return f"{sender} -> {receiver}{told}"


def _percent(size: int, coverage: MirrorCoverage) -> str:
    return f"{100 * size / coverage.bytes:.3g} %"
