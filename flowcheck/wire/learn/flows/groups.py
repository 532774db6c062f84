"""Which connections may make up one communicator, by the hosts that they run between.

Guesses, coarsest first: the sizes on the wire decide (cuts/cut.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.flows.channels import in_order
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream

Host = str
Link = tuple[Host, Host]


@dataclass(frozen=True, slots=True)
class Group:
    """Streams taken as one communicator, with the host of every address."""

    links: dict[Link, tuple[Stream, ...]]
    tags: dict[Link, int]
    ghosts: frozenset[Link]
    """Links known from clear-to-send messages alone: their data was not mirrored."""
    penalty: int
    order: Finding
    """What the order of the connections of a link rests on (channels.py)."""
    mixed: dict[Link, frozenset[int]] = field(default_factory=dict)
    """The ranks that clear-to-send messages of a ghost name, where these are several: which channel
    has which is open."""

    @property
    def guessed(self) -> bool:
        """Which addresses are ports of one host is a guess that nothing bears out."""
        ends = ((link[0], s.key.source) for link, of in self.links.items() for s in of)
        return self.penalty > 0 and any(host != address for host, address in ends)


def groupings(streams: Sequence[Stream], grants: Sequence[Grants]) -> Iterator[tuple[Group, ...]]:
    """Ways to split ring connections into communicators, coarsest first: two NIC ports of one
    host may carry channels of one ring."""
    unseen = [g for g in grants if g.rings]
    arrows = [(s.key.source, s.key.destination) for s in streams]
    arrows += [(g.flow.key.destination, g.flow.key.source) for g in unseen]
    parts = _components(streams, arrows)
    sides = _two_sides(streams, arrows)
    own = {a: a for arrow in arrows for a in arrow}
    apart = tuple(grouped(part, grants, own, 0) for part in parts)
    for nodes in _nodes(streams, unseen):
        of_nodes = grouped(streams, grants, nodes, 0)
        if len(path_of(of_nodes) or ()) > 1:
            yield (of_nodes,)
            break
    if (ports := _ports(apart)) is not None:
        yield (grouped(streams, grants, ports, 0),)
    if sides is None:
        yield apart
    elif len(sides) > 2 and any((b, a) not in arrows for a, b in arrows):
        # Addresses that only send or only receive: rather neighbours than ports of one host.
        yield apart
        yield (grouped(streams, grants, sides, 1),)
    else:
        yield (grouped(streams, grants, sides, 0),)
        yield apart
    pairs: dict[frozenset[str], list[Stream]] = {}
    for stream in streams:
        pairs.setdefault(frozenset((stream.key.source, stream.key.destination)), []).append(stream)
    if len(pairs) > len(parts):
        yield tuple(grouped(part, grants, own, 1) for part in pairs.values())
    if len(streams) > 1:
        yield tuple(grouped([s], grants, own, 2) for s in streams)


def alone(streams: Sequence[Stream], grants: Sequence[Grants]) -> Group:
    """These as one communicator, each address a host of its own."""
    ends = [(s.key.source, s.key.destination) for s in streams]
    ends += [(g.flow.key.source, g.flow.key.destination) for g in grants]
    return grouped(streams, grants, {end: end for pair in ends for end in pair}, 0)


def _ports(apart: Sequence[Group]) -> dict[str, Host] | None:
    """Address -> host, if groups that hang together nowhere are of the same ranks: as many links
    from end to end, written by the same ranks by what clear-to-send messages say. They are
    channels on other NIC ports of these hosts."""
    paths = [path_of(group) for group in apart]
    if len(paths) < 2 or any(path is None or is_circle(path) for path in paths):
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


def _nodes(streams: Sequence[Stream], unseen: Sequence[Grants]) -> Iterator[dict[str, Host]]:
    """Address -> host, by the ranks that clear-to-send messages name as writers, where nodes hold
    several of them one after the other and all leave by the same GPUs: each may have a port of its
    own."""
    named = [(s.key.source, s.key.destination, s.tag) for s in streams]
    named += [(g.flow.key.destination, g.flow.key.source, g.tag) for g in unseen]
    writers = [tag for _, _, tag in named if tag is not None]
    if len(writers) < len(named):
        return
    for ranks in ranks_counted(streams):
        for gpus in range(2, ranks // 2 + 1):
            if ranks % gpus or max(writers) >= ranks:
                continue
            ends = [(a, b, tag // gpus) for a, b, tag in named if tag is not None]
            found = {(a, node) for a, _, node in ends}
            found |= {(b, (node + 1) % (ranks // gpus)) for _, b, node in ends}
            exits: dict[int, set[int]] = {}
            for tag in writers:
                exits.setdefault(tag // gpus, set()).add(tag % gpus)
            alike = all(of == exits[writers[0] // gpus] for of in exits.values())
            if alike and len({address for address, _ in found}) == len(found):
                yield {address: f"host {node}" for address, node in found}


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


def grouped(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    hosts: dict[str, Host],
    penalty: int,
    *,
    by_number: bool = True,
) -> Group:
    """These as one communicator. hosts: address -> its host; penalty: of taking them as these;
    by_number: as of `in_order`."""
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
    named: dict[Link, set[int]] = {}
    for grant in grants:
        key = grant.flow.key
        ends = (hosts.get(key.destination, key.destination), hosts.get(key.source, key.source))
        if key in paired or ends in links or not here & set(ends) or not grant.rings:
            continue
        ghosts.add(ends)
        if grant.tag is not None:
            tags[ends] = grant.tag
            named.setdefault(ends, set()).add(grant.tag)
    ordered, order = in_order(links, by_number=by_number)
    mixed = {link: frozenset(ranks) for link, ranks in named.items() if len(ranks) > 1}
    return Group(ordered, tags, frozenset(ghosts), penalty, order, mixed)


def path_of(group: Group) -> list[Link] | None:
    """The links in ring order, each starting where the one before ends; None: no ring."""
    links = [*group.links, *group.ghosts]
    after, behind = {a: (a, b) for a, b in links}, {b for _, b in links}
    if any(a == b for a, b in links) or min(len(after), len(behind)) < len(links):
        return None
    heads = [link for link in links if link[0] not in behind]
    link: Link | None = (heads or links)[0]
    path: list[Link] = []
    while link is not None and link not in path:
        path.append(link)
        link = after.get(link[1])
    return path if len(path) == len(links) else None


def is_circle(path: Sequence[Link]) -> bool:
    """The links lead back to where the first one starts."""
    return path[-1][1] == path[0][0]
