"""Failure domains (rack, power, switch): an order of the nodes that keeps parts of a shard apart.

Group, ring and mixed put a shard on neighbours in an order of the nodes. With D = floor(N / m)
rows, nodes sorted by domain, the largest first, are dealt to the rows in turn, and the rows read
one after the other: a domain of at most D nodes comes no two times in m neighbours, also around the
circle. A larger one must: N nodes have no more than D places that are m apart.

Where nodes have several kinds of domain, the same is tried with those of all kinds joined, with
fewer kinds, and with each kind first; the order that repeats least is taken.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from flowcheck.fleet.copy_placement import Placement, Redundancy, Strategy, place

Labels = Mapping[str, Sequence[str]]
"""{kind of domain: [node] its domain of that kind}."""


class KindSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How the parts of shards lie in the domains of one kind."""

    kind: str
    domains: int
    largest: str
    """The domain with most nodes."""
    largest_nodes: int
    room: int
    """Most nodes of one domain with which all shards can have their parts in several:
    floor(N / m)."""
    shards_sharing: int
    """Shards with two parts or more in one domain."""
    most_parts: int
    """Parts of one shard in one domain, at most."""
    survived: int
    """Domains which can be lost as a whole, with every shard surviving."""

    @property
    def unavoidable(self) -> bool:
        """Whether no placement of the nodes keeps all shards' parts apart, by counting alone."""
        return self.largest_nodes > self.room


def spread(placement: Placement, labels: Labels) -> tuple[KindSpread, ...]:
    """[kind] how its domains hold the parts of the shards."""
    return tuple(_spread(placement, kind, of_node) for kind, of_node in labels.items())


def _spread(placement: Placement, kind: str, of_node: Sequence[str]) -> KindSpread:
    sizes = Counter(of_node)
    largest = min(sizes, key=lambda name: (-sizes[name], name))
    most, sharing, fatal = 0, 0, set[str]()
    for holders in placement.shards:
        parts = Counter(of_node[node] for node in holders)
        most = max(most, *parts.values())
        sharing += max(parts.values()) > 1
        fatal |= {name for name, count in parts.items() if count > placement.redundancy.spare}
    return KindSpread(
        kind=kind,
        domains=len(sizes),
        largest=largest,
        largest_nodes=sizes[largest],
        room=placement.nodes // placement.redundancy.parts,
        shards_sharing=sharing,
        most_parts=most,
        survived=len(sizes) - len(fatal),
    )


def spread_placement(
    labels: Labels, nodes: int, strategy: Strategy, redundancy: Redundancy, jump: int | None
) -> Placement:
    """The placement in which fewest domains hold several parts of one shard, of those tried. Jump
    keeps the order stated. Raises ConfigError as place()."""
    stated = place(range(nodes), strategy, redundancy, jump)
    if strategy is Strategy.JUMP or not labels:
        return stated
    tried = [stated]
    for keys in _sorting_keys(labels, nodes):
        order = _dealt(keys, nodes, strategy, redundancy.parts)
        tried.append(place(order, strategy, redundancy))
        if not _cost(tried[-1], labels)[1]:
            break
    return min(tried, key=lambda one: _cost(one, labels))


def _cost(placement: Placement, labels: Labels) -> tuple[int, int, int]:
    """(domains whose loss loses a shard, shards with parts in one domain, most parts in one)."""
    found = spread(placement, labels)
    return (
        sum(one.domains - one.survived for one in found),
        sum(one.shards_sharing for one in found),
        sum(one.most_parts for one in found),
    )


def _sorting_keys(labels: Labels, nodes: int) -> Iterator[list[Sequence[str]]]:
    """Keys by which nodes are sorted, most kinds joined first."""
    kinds = list(labels)
    for count in range(len(kinds), 0, -1):
        for some in itertools.combinations(kinds, count):
            joined = _joined([labels[kind] for kind in some], nodes)
            rest = [kind for kind in kinds if kind not in some]
            yield [joined, *(labels[kind] for kind in rest)]
            yield [*(labels[kind] for kind in rest), joined]


def _joined(kinds: Sequence[Sequence[str]], nodes: int) -> list[str]:
    """[node] the name of its cluster: nodes that share a domain of any of these kinds, directly or
    by others, are of one cluster."""
    cluster = list(range(nodes))

    def root(node: int) -> int:
        while cluster[node] != node:
            cluster[node] = cluster[cluster[node]]
            node = cluster[node]
        return node

    for of_node in kinds:
        first: dict[str, int] = {}
        for node, name in enumerate(of_node):
            cluster[root(node)] = root(first.setdefault(name, node))
    return [str(root(node)) for node in range(nodes)]


def _dealt(keys: list[Sequence[str]], nodes: int, strategy: Strategy, parts: int) -> list[int]:
    """The order of the nodes: sorted by these keys, and dealt to rows. Of a mixed placement the
    ring at its end takes one node each of the largest domains, as it has fewer than two places m
    apart."""
    rest = _sorted(keys, list(range(nodes)))
    tail: list[int] = []
    if strategy is Strategy.MIXED:
        size = parts + nodes % parts
        taken = dict[str, int]()
        for node in rest:
            taken.setdefault(keys[0][node], node)
        tail = list(taken.values())[:size]
        tail += [node for node in rest if node not in tail][: size - len(tail)]
        rest = _sorted(keys, [node for node in rest if node not in tail])
    rows = len(rest) // parts
    return [node for row in range(rows) for node in rest[row::rows]] + tail


def _sorted(keys: list[Sequence[str]], nodes: list[int]) -> list[int]:
    """By domain, of each key in turn, the larger domain first; nodes of one domain stay in their
    order."""
    sizes = [Counter(of_node[node] for node in nodes) for of_node in keys]
    return sorted(
        nodes,
        key=lambda node: [
            (-size[of_node[node]], of_node[node]) for size, of_node in zip(sizes, keys, strict=True)
        ],
    )
