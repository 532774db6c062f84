"""Connections of NCCL's parallel aggregated trees (PAT), by which ranks they join.

An all-gather by PAT, of ranks that are alone on their nodes, goes from each rank to those 1, 2, 4,
... before it, and comes from those as far behind it (NCCL src/proxy.cc, ncclPatternPatDown;
src/transport/generic.cc, ncclTransportPatConnect), in Simple, a step a message (src/enqueue.cc). A
ring goes one way round, and a tree both ways between two ranks. So of five ranks, and from seven
on, some hosts only send to a rank, or only receive from it, and the ranks that clear-to-send
messages name are so far from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import SLOT_BYTES, Protocol
from flowcheck.wire.learn.flows.streams import Stream

LEAST_RANKS = 5
"""Of fewer, and of six, every rank that sends to another one receives from it, as in a tree."""
MOST_RANKS = 1 << 12
"""A choice that bounds time."""


@dataclass(frozen=True, slots=True)
class _Host:
    """A host, as a rank of one communicator."""

    rank: int
    before: dict[str, int]
    """{host that sends to it: its rank}."""
    behind: frozenset[str]
    """Hosts that it sends to."""


def without_aggregated(streams: list[Stream]) -> tuple[list[Stream], int]:
    """(streams of other algorithms, how many connections of PAT are left out); all of them where
    nothing tells."""
    for name in dict.fromkeys(stream.key.source for stream in streams):
        host = _host(name, streams)
        if host is None:
            continue
        for ranks in _sizes(host):
            own = [stream for stream in streams if _is_aggregated(stream, name, host, ranks)]
            if _is_borne_out(host, ranks) and _in_single_steps(own):
                left = [stream for stream in streams if stream not in own]
                return left, len(own)
    return streams, 0


def _host(name: str, streams: Iterable[Stream]) -> _Host | None:
    """None where hosts have several ranks, or no rank is told."""
    own: set[int | None] = set()
    before: dict[str, set[int | None]] = {}
    behind: set[str] = set()
    for stream in streams:
        if stream.key.source == name:
            own.add(stream.tag)
            behind.add(stream.key.destination)
        elif stream.key.destination == name:
            before.setdefault(stream.key.source, set()).add(stream.tag)
    ranks = {host: told.pop() for host, told in before.items() if len(told) == 1}
    known = {host: rank for host, rank in ranks.items() if rank is not None}
    rank = own.pop() if len(own) == 1 else None
    if rank is None or len(known) < len(before) or len(set(known.values())) < len(known):
        return None
    return _Host(rank, known, frozenset(behind))


def _sizes(host: _Host) -> range:
    """Numbers of ranks that may be."""
    least = max(host.rank, *host.before.values(), LEAST_RANKS - 1) + 1 if host.before else 1
    return range(least, min(2 ** len(host.before), MOST_RANKS) + 1)


def _distances(ranks: int) -> tuple[int, ...]:
    return tuple(1 << n for n in range((ranks - 1).bit_length()))


def _is_borne_out(host: _Host, ranks: int) -> bool:
    """Who sends to it, and whom it sends to, are as of PAT and a ring by rank; and not all of them
    do both."""
    own = host.rank
    sending = {(own + distance) % ranks for distance in (*_distances(ranks), -1)}
    taking = {(own - distance) % ranks for distance in (*_distances(ranks), -1)}
    both = {rank for name, rank in host.before.items() if name in host.behind}
    return (
        set(host.before.values()) == sending
        and len(host.behind) == len(taking)
        and both == sending & taking
        and both != sending
    )


def _is_aggregated(stream: Stream, name: str, host: _Host, ranks: int) -> bool:
    """It is of PAT and not of the ring too."""
    source, target = stream.key.source, stream.key.destination
    if target == name:
        distance = (host.before[source] - host.rank) % ranks
    elif source == name and target in host.before:
        distance = (host.rank - host.before[target]) % ranks
    else:
        return source == name
    return distance in _distances(ranks) and distance != ranks - 1


def _in_single_steps(streams: Sequence[Stream]) -> bool:
    """All were granted steps of Simple's buffer."""
    sizes = {size for stream in streams for size in stream.capacities_bytes}
    return sizes == {SLOT_BYTES[Protocol.SIMPLE]}
