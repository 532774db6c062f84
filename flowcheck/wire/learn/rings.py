"""Which connections make up one communicator, and what ring they may form: guesses, best first.

A guess is only where the search starts: the sizes on the wire decide (cut.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.learn.roles import Grants
from flowcheck.wire.learn.streams import Stream
from flowcheck.wire.terms import Protocol, Rule

MOST_RANKS = 16
"""Ring sizes tried where the hosts seen do not tell; a longer ring is then not recognised."""

Host = str
Link = tuple[Host, Host]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The mirrored connections from one rank to the next, by ascending QP number."""

    sender: int
    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One guess about one communicator."""

    ranks: int
    edges: tuple[Edge, ...]
    channels: int
    extra_sends: int
    rules: tuple[Rule, ...]
    penalty: int
    """How much of what the hosts and tags suggest this guess leaves aside."""

    @property
    def protocol(self) -> Protocol:
        return self.edges[0].streams[0].protocol


@dataclass(frozen=True, slots=True)
class Group:
    """Streams taken as one communicator, with the host of every address."""

    links: dict[Link, tuple[Stream, ...]]
    tags: dict[Link, int]
    ghosts: frozenset[Link]
    """Links known from clear-to-send messages alone: their data was not mirrored."""
    penalty: int


def groupings(streams: Sequence[Stream], grants: Sequence[Grants]) -> Iterator[tuple[Group, ...]]:
    """Ways to split ring connections into communicators, coarsest first: two NIC ports of one
    host may carry channels of one ring."""
    parts = _components(streams)
    sides = _two_sides(parts)
    own = {a: a for s in streams for a in (s.key.source, s.key.destination)}
    apart = tuple(_group(part, grants, own, 0) for part in parts)
    if sides is None:
        yield apart
    elif _only_one_way(streams, grants, sides):
        yield apart
        yield (_group(streams, grants, sides, 1),)
    else:
        yield (_group(streams, grants, sides, 0),)
        yield apart
    pairs: dict[frozenset[str], list[Stream]] = {}
    for stream in streams:
        pairs.setdefault(frozenset((stream.key.source, stream.key.destination)), []).append(stream)
    if len(pairs) > len(parts):
        yield tuple(_group(part, grants, own, 1) for part in pairs.values())
    if len(streams) > 1:
        yield tuple(_group([s], grants, own, 2) for s in streams)


def rings(group: Group, rules: tuple[Rule, ...]) -> Iterator[Ring]:
    """Rings this group may be, most plausible first."""
    path = _path(group)
    if path is None:
        return
    channels = max(len(s) for s in group.links.values())
    guesses: list[tuple[int, int, int, int]] = []
    for ranks, size_penalty in _sizes(group, path):
        for first in range(ranks):
            penalty = size_penalty + _tag_penalty(group, path, first, ranks)
            guesses.extend((penalty + extra, ranks, first, extra) for extra in (0, 1))
    for penalty, ranks, first, extra in sorted(guesses):
        edges = tuple(
            Edge(sender=(first + i) % ranks, streams=group.links[link])
            for i, link in enumerate(path)
            if link in group.links
        )
        yield Ring(
            ranks=ranks,
            edges=edges,
            channels=channels,
            extra_sends=extra,
            rules=rules,
            penalty=penalty + group.penalty,
        )


def _components(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Streams whose addresses hang together."""
    parts: list[tuple[set[str], list[Stream]]] = []
    for stream in streams:
        ends = {stream.key.source, stream.key.destination}
        touching = [p for p in parts if p[0] & ends]
        parts = [p for p in parts if not p[0] & ends]
        for addresses, _ in touching:
            ends |= addresses
        parts.append((ends, [s for _, part in touching for s in part] + [stream]))
    return [part for _, part in parts]


def _two_sides(parts: Sequence[Sequence[Stream]]) -> dict[str, Host] | None:
    """Address -> one of two hosts, if the connections can be those of a ring of two hosts."""
    side: dict[str, int] = {}
    for part in parts:
        anchor = min(part, key=lambda s: (s.tag is None, s.tag or 0, s.flow.first_ns))
        side[anchor.key.source] = 0 if anchor.tag is None else anchor.tag % 2
        todo = True
        while todo:
            todo = False
            for stream in part:
                ends = (stream.key.source, stream.key.destination)
                for here, there in (ends, ends[::-1]):
                    if here in side and there not in side:
                        side[there], todo = 1 - side[here], True
    if any(side[s.key.source] == side[s.key.destination] for part in parts for s in part):
        return None
    return {address: f"host {number}" for address, number in side.items()}


def _only_one_way(
    streams: Sequence[Stream], grants: Sequence[Grants], hosts: dict[str, Host]
) -> bool:
    """Addresses to merge only send or only receive: rather two neighbours than one host."""
    arrows = {(s.key.source, s.key.destination) for s in streams}
    arrows |= {(g.flow.key.destination, g.flow.key.source) for g in grants}
    merged = len(hosts) > 2
    known = [(a, b) for a, b in arrows if a in hosts and b in hosts]
    return merged and any((b, a) not in arrows for a, b in known)


def _group(
    streams: Sequence[Stream], grants: Sequence[Grants], hosts: dict[str, Host], penalty: int
) -> Group:
    links: dict[Link, list[Stream]] = {}
    tags: dict[Link, int] = {}
    for stream in sorted(streams, key=lambda s: s.key.dest_qp):
        link = (hosts[stream.key.source], hosts[stream.key.destination])
        links.setdefault(link, []).append(stream)
        if stream.tag is not None:
            tags[link] = stream.tag
    here = {end for link in links for end in link}
    paired = {s.peer for s in streams}
    protocol = streams[0].protocol
    ghosts: set[Link] = set()
    for grant in grants:
        key = grant.flow.key
        ends = (hosts.get(key.destination, key.destination), hosts.get(key.source, key.source))
        if key in paired or ends in links or not here & set(ends) or not grant.rings(protocol):
            continue
        ghosts.add(ends)
        if grant.tag is not None:
            tags[ends] = grant.tag
    return Group(
        {link: tuple(found) for link, found in links.items()}, tags, frozenset(ghosts), penalty
    )


def _path(group: Group) -> list[Link] | None:
    """The links in ring order, each starting where the one before ends; None: no ring."""
    links = [*group.links, *group.ghosts]
    if any(a == b for a, b in links) or len({a for a, _ in links}) < len(links):
        return None
    if len({b for _, b in links}) < len(links):
        return None
    after = {a: (a, b) for a, b in links}
    heads = [link for link in links if not any(b == link[0] for _, b in links)]
    if len(heads) > 1:
        return None
    link: Link | None = heads[0] if heads else links[0]
    path: list[Link] = []
    while link is not None and link not in path:
        path.append(link)
        link = after.get(link[1])
    return path if len(path) == len(links) else None


def _sizes(group: Group, path: Sequence[Link]) -> list[tuple[int, int]]:
    """(ranks, penalty): the hosts seen tell the least; a closed circle of hosts tells more."""
    closed = path[-1][1] == path[0][0]
    hosts = len(path) if closed else len(path) + 1
    least = max([hosts, *(tag + 1 for tag in group.tags.values())])
    if closed:
        return [(r, 0 if r == hosts else 4) for r in range(least, MOST_RANKS + 1, 1)]
    return [(r, 0 if r > 2 or len(path) == 1 else 1) for r in range(least, MOST_RANKS + 1)]


def _tag_penalty(group: Group, path: Sequence[Link], first: int, ranks: int) -> int:
    """A clear-to-send names the rank that may send; ring order mostly is rank order."""
    return 2 * sum(
        link in group.tags and group.tags[link] != (first + i) % ranks
        for i, link in enumerate(path)
    )
