"""The exact probability that every shard survives when any f nodes are lost together.

How many of the C(N, f) sets of f nodes leave enough parts of each shard is the coefficient of x^f
in a polynomial. Parts of the fleet that share no shard multiply theirs. Within one part nodes are
taken one after the other, lost or not; what must be remembered is, for each shard with some
holders behind and some ahead, how many parts it lost, and nothing once enough of them are kept. In
a ring of copies that is the run of lost nodes at either end, whatever N is.

A polynomial is one whole number with its coefficients side by side, each in a field of bits that
no coefficient (at most C(N, f) < 2^N) fills: sums and products of polynomials are those of numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import comb

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_plan import TOO_MANY_STATES
from flowcheck.fleet.copy_placement import Placement

MOST_STATES = 4_096
MOST_STATE_NODES = 1 << 18
"""A choice: states at a time, and states times nodes of a part. Within them a fleet is counted in
half a minute: a ring of an erasure code 4 + 2 on 1,024 nodes has 256 states or fewer."""

Holders = frozenset[int]
State = tuple[tuple[int, int], ...]
"""(shard, parts lost) of each shard that may still be lost, by shard."""


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is to a shard of which it holds a part."""

    shard: int
    seen: int
    """Its holders up to this node."""
    needed: int


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """[f] sets of f nodes out of N that can be lost with no shard lost."""

    nodes: int
    surviving_sets: tuple[int, ...]

    def probability(self, lost: int) -> Fraction:
        """Of all shards, when `lost` nodes are lost, each set of them as likely as another."""
        return Fraction(self.surviving_sets[lost], comb(self.nodes, lost))

    @property
    def always(self) -> int:
        """Most nodes of which any may be lost together."""
        whole = (f for f, count in enumerate(self.surviving_sets) if count < comb(self.nodes, f))
        return next(whole, self.nodes + 1) - 1

    @property
    def never(self) -> int:
        """Fewest nodes of which none may be lost together without a shard; all nodes, if that is
        not so of any number."""
        sets = self.surviving_sets
        return next((f for f, count in enumerate(sets) if not count), self.nodes)


def survival(placement: Placement) -> Survival:
    """Raises ConfigError where a part of the fleet is too entangled to count."""
    width, spare = placement.nodes + 1, placement.redundancy.spare
    whole = 1
    for sets, times in _alike(components(placement.holder_sets)):
        own = _polynomial(sets, spare, width)
        if own is None:
            raise ConfigError("nodes", placement.nodes, TOO_MANY_STATES(_most_states(sets)))
        whole *= own**times
    idle = placement.nodes - _nodes(placement.holder_sets)
    whole *= (1 + (1 << width)) ** idle
    field = (1 << width) - 1
    counts = tuple(whole >> (f * width) & field for f in range(placement.nodes + 1))
    return Survival(nodes=placement.nodes, surviving_sets=counts)


def components(sets: Iterable[Holders]) -> list[list[Holders]]:
    """The holder sets in parts that share no node."""
    parts: list[tuple[set[int], list[Holders]]] = []
    of_node: dict[int, int] = {}
    for one in sorted(sets, key=sorted):
        touched = sorted({of_node[node] for node in one if node in of_node})
        at = touched[0] if touched else len(parts)
        if not touched:
            parts.append((set(), []))
        nodes, held = parts[at]
        nodes |= one
        held.append(one)
        for other in touched[1:]:
            nodes |= parts[other][0]
            held += parts[other][1]
            parts[other] = (set(), [])
        of_node.update(dict.fromkeys(nodes, at))
    return [held for _, held in parts if held]


def _alike(parts: Iterable[list[Holders]]) -> list[tuple[list[Holders], int]]:
    """(part, how often): parts that differ only in the numbers of their nodes are counted once."""
    found: dict[frozenset[Holders], int] = defaultdict(int)
    for sets in parts:
        new = {old: at for at, old in enumerate(_walk(sets))}
        found[frozenset(frozenset(new[node] for node in one) for one in sets)] += 1
    return [(list(sets), times) for sets, times in found.items()]


def _walk(sets: Iterable[Holders]) -> list[int]:
    """Its nodes in an order in which few shards are open at a time: breadth first, of the nodes
    beside one those first that share most shards with it."""
    beside: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for one in sets:
        for node in one:
            for other in one:
                beside[node][other] += 1
    first = min(beside)
    order, seen = [first], {first}
    for node in order:
        near = [other for other in beside[node] if other not in seen]
        order += sorted(near, key=lambda other: (-beside[node][other], other))
        seen.update(near)
    return order


def _nodes(sets: Iterable[Holders]) -> int:
    return len(frozenset[int]().union(*sets))


def _most_states(sets: Iterable[Holders]) -> int:
    return min(MOST_STATES, MOST_STATE_NODES // _nodes(sets))


def _polynomial(sets: list[Holders], spare: int, width: int) -> int | None:
    """Of a part whose nodes are 0, 1, and so on; None: it has too many states to count."""
    nodes, most_states = _nodes(sets), _most_states(sets)
    steps: list[list[_Step]] = [[] for _ in range(nodes)]
    for shard, one in enumerate(sets):
        for seen, node in enumerate(sorted(one), 1):
            steps[node].append(_Step(shard=shard, seen=seen, needed=len(one) - spare))
    states: dict[State, int] = {(): 1}
    for held in steps:
        after: dict[State, int] = defaultdict(int)
        for state, ways in states.items():
            for gone in (0, 1):
                moved = _after(state, held, gone, spare)
                if moved is not None:
                    after[moved] += ways << (gone * width)
        states = after
        if len(states) > most_states:
            return None
    return states[()]


def _after(state: State, held: list[_Step], gone: int, spare: int) -> State | None:
    """The state once a node that holds parts of these shards is lost (gone 1) or kept (0); None: a
    shard is lost."""
    still_open = dict(state)
    for one in held:
        if one.seen > 1 and one.shard not in still_open:
            continue  # enough of it is kept already
        lost = still_open.pop(one.shard, 0) + gone
        if lost > spare:
            return None
        if one.seen - lost < one.needed:
            still_open[one.shard] = lost
    return tuple(sorted(still_open.items()))
