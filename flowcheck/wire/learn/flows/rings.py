"""Which connections make up one communicator, and what ring they may form: guesses, best first.

A guess is only where the search starts: the sizes on the wire decide (cut.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream
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
    closed: bool = False
    """The hosts seen form a circle: they tell how many ranks there are."""
    gathers: bool = False
    """It is known to gather and reduce-scatter: other kinds come after these."""
    roots: bool = False
    """Other ranks than rank 0 may broadcast too."""

    def protocols_at(self, positions: Sequence[Sequence[int]]) -> tuple[Protocol, ...]:
        """Of the sends that come next on each connection, those of the earliest first. positions:
        [edge][stream] number of its next send."""
        found: list[tuple[int, Protocol]] = []
        for edge, at in zip(self.edges, positions, strict=True):
            for stream, number in zip(edge.streams, at, strict=True):
                send = stream.sends.get(number)
                if send is not None and send.protocol is not None:
                    found.append((send.message.first_ns, send.protocol))
        usual = self.edges[0].streams[0].protocol
        return tuple(dict.fromkeys(protocol for _, protocol in sorted(found))) or (usual,)


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
    unseen = [g for g in grants if g.rings]
    arrows = [(s.key.source, s.key.destination) for s in streams]
    arrows += [(g.flow.key.destination, g.flow.key.source) for g in unseen]
    parts = _components(streams, arrows)
    sides = _two_sides(streams, arrows)
    own = {a: a for arrow in arrows for a in arrow}
    apart = tuple(_group(part, grants, own, 0) for part in parts)
    if (ports := _ports(apart)) is not None:
        yield (_group(streams, grants, ports, 0),)
    if sides is None:
        yield apart
    elif len(sides) > 2 and any((b, a) not in arrows for a, b in arrows):
        # Addresses that only send or only receive: rather neighbours than ports of one host.
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


def alone(streams: Sequence[Stream], grants: Sequence[Grants]) -> Group:
    """These as one communicator, each address a host of its own."""
    ends = [(s.key.source, s.key.destination) for s in streams]
    ends += [(g.flow.key.source, g.flow.key.destination) for g in grants]
    return _group(streams, grants, {end: end for pair in ends for end in pair}, 0)


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
            closed=path[-1][1] == path[0][0],
        )


def _ports(apart: Sequence[Group]) -> dict[str, Host] | None:
    """Address -> host, if groups that hang together nowhere are of the same ranks: as many links
    from end to end, written by the same ranks by what clear-to-send messages say. They are
    channels on other NIC ports of these hosts."""
    paths = [_path(group) for group in apart]
    if len(paths) < 2 or any(path is None or path[-1][1] == path[0][0] for path in paths):
        return None
    told = [
        tuple(group.tags.get(link) for link in path or ())
        for group, path in zip(apart, paths, strict=True)
    ]
    if len(set(told)) > 1 or None in told[0] or len(told[0]) < 2:
        return None
    hosts: dict[str, Host] = {}
    for path in paths:
        for place, link in enumerate(path or ()):
            hosts[link[0]], hosts[link[1]] = f"host {place}", f"host {place + 1}"
    return hosts


def _components(streams: Sequence[Stream], arrows: Sequence[Link]) -> list[list[Stream]]:
    """Streams whose addresses hang together."""
    parts: list[set[str]] = []
    for arrow in arrows:
        ends = set(arrow).union(*(part for part in parts if part & set(arrow)))
        parts = [*(part for part in parts if not part & ends), ends]
    found = [[s for s in streams if s.key.source in part] for part in parts]
    return [part for part in found if part]


def _two_sides(streams: Sequence[Stream], arrows: Sequence[Link]) -> dict[str, Host] | None:
    """Address -> one of two hosts, if the connections can be those of a ring of two hosts."""
    side: dict[str, int] = {}
    for stream in sorted(streams, key=lambda s: (s.tag is None, s.tag or 0, s.flow.first_ns)):
        if stream.key.source in side:
            continue
        todo = [(stream.key.source, 0 if stream.tag is None else stream.tag % 2)]
        while todo:
            address, number = todo.pop()
            if side.setdefault(address, number) != number:
                return None
            near = {b if a == address else a for a, b in arrows if address in (a, b)}
            todo += [(other, 1 - number) for other in near if other not in side]
    if any(side.get(a, 0) == side.get(b, 1) for a, b in arrows if a in side and b in side):
        return None
    return {address: f"host {number}" for address, number in side.items()}


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
    ghosts: set[Link] = set()
    for grant in grants:
        key = grant.flow.key
        ends = (hosts.get(key.destination, key.destination), hosts.get(key.source, key.source))
        if key in paired or ends in links or not here & set(ends) or not grant.rings:
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
