"""Cut the sends of one communicator into collectives: a search that the sizes steer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.learn.cuts.candidates import Channels, Op, Positions, generated
from flowcheck.wire.learn.cuts.match import Cut, State, apply, beyond_end, settled
from flowcheck.wire.learn.cuts.purse import Purse, goes_on, pays
from flowcheck.wire.learn.cuts.sounding import everyone
from flowcheck.wire.learn.flows.rings import Ring, earliest

__all__ = [
    "HASTY",
    "THOROUGH",
    "Cut",
    "Cuts",
    "Expect",
    "Purse",
    "State",
    "cut_stream",
    "unread_sends",
]

LOOK_BACK = 256
"""Collectives remembered when guessing what comes next."""
HASTY, THOROUGH = (50, 2), (500, 6)
"""Guesses tried at most for one ring: so many, and so many for each send seen. A stream that
fits none of them is left unread from there on."""
COST = {
    CollectiveKind.ALL_REDUCE: 1.0,
    CollectiveKind.ALL_GATHER: 2.0,
    CollectiveKind.ALL_GATHER_V: 2.0,
    CollectiveKind.BROADCAST: 2.0,
    CollectiveKind.REDUCE_SCATTER: 3.0,
}
"""How much a guess from sizes alone needs believing; what was expected costs nothing."""
OTHER_ROOT_COST = 0.5
"""For a broadcast that is not rank 0's: DDP's own are all of rank 0."""
REPEAT_COST = 0.3
UNSEEN_COST = 0.5
"""For a collective of which not one send was seen."""
OPEN_COST = 2.0
"""For a collective that may come at this point, of any size."""
CUT_OFF_COST = 1.0
"""For each send that a reading puts after the end of what was captured."""
MOST_CUT_OFF = 2
"""Sends of one collective that count so where the stream goes on: the last one of many megabytes
has hundreds still to come, and what has fewer of them is no likelier for it."""


class Expect(Protocol):
    """What the trainer's habits let us expect."""

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Iterable[Op]:
        """Collectives likely after `path`, most likely first; those without a licence only where
        all of their sends were seen."""

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        """False if what was seen of `cut` contradicts the name it was expected by."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The best reading of one ring."""

    ring: Ring
    found: tuple[Cut, ...]
    state: State
    unread: int
    cost: float
    skipped: int = 0
    """Sends seen before the first collective that was there whole."""


def cut_stream(
    ring: Ring,
    expect: Expect,
    *,
    effort: tuple[int, int] = THOROUGH,
    start: Positions | None = None,
    channels: Channels | None = None,
    known: Sequence[Op] = (),
    limit: float = float("inf"),
    purse: Purse | None = None,
    in_order: bool = False,
) -> Cuts:
    """Collectives from `start` on (default: where the ring begins). `channels`: of the streams,
    where what was read before tells them: a connection keeps its own. `known`: collectives found
    elsewhere in the stream. `limit`: no reading that costs more is wanted. `in_order`: each one
    holds the first send that was not read before, as all ranks make them one after the other. The
    search goes depth first, backs up where nothing fits, and keeps the reading that left the
    fewest unread."""
    state = State(
        start or ring.begin or tuple(tuple(0 for _ in e.streams) for e in ring.edges),
        channels or tuple(tuple(None for _ in e.streams) for e in ring.edges),
        ring.rules,
        tuple(tuple(everyone(ring.ranks) for _ in e.streams) for e in ring.edges)
        if ring.sounding
        else (),
    )
    budget = effort[0] + effort[1] * sum(len(s.sends) for e in ring.edges for s in e.streams)
    best = Cuts(ring, (), state, unread_sends(ring, state.positions), 0.0)
    path: list[Cut] = []
    ways = [_successors(ring, state, path, expect, known, purse)]
    costs, unread = [0.0], [best.unread]
    most_cut_off = MOST_CUT_OFF if goes_on(purse) else None
    failed: set[tuple[Positions, Channels, tuple[NcclEra, ...]]] = set()
    while ways and budget > 0 and (purse is None or purse.left > 0):
        budget -= 1
        if purse is not None:
            purse.pays()
        step = next(ways[-1], None)
        if step is None:
            for stack in (ways, costs, unread):
                stack.pop()
            if path:
                path.pop()
            continue
        state, cut = step
        key = (state.positions, state.channels, state.rules)
        cost = costs[-1] + _cost(ring, path, cut, most_cut_off)
        if key in failed or cost > limit or (in_order and _out_of_order(ring, state, cut)):
            continue
        if not expect.accepts(ring, path, cut):
            continue
        failed.add(key)
        path.append(cut)
        costs.append(cost)
        unread.append(unread[-1] - cut.matched)
        if unread[-1] < best.unread:
            best = Cuts(ring, tuple(path), state, unread[-1], cost)
        if not unread[-1]:
            break
        ways.append(_successors(ring, state, path, expect, known, purse))
    rules = best.state.rules
    return replace(best, found=tuple(settled(ring, cut, rules) for cut in best.found))


def cut_again(ring: Ring, expect: Expect, purse: Purse) -> Cuts:
    """What a ring carried that was read before, by other expectations. Trees have connections of
    their own: when sends came tells the order beside the ring's."""
    return cut_stream(ring, expect, purse=purse, in_order=bool(ring.branches))


def _out_of_order(ring: Ring, after: State, cut: Cut) -> bool:
    """Another send came before all of its own. Ranks that a broadcast has passed may begin a tree's
    all-reduce; what all ranks have a part in has begun everywhere before one of them ends it."""
    first = earliest(
        ring, cut.starts, trees=False if cut.op.kind is CollectiveKind.BROADCAST else None
    )
    return (
        first is not None and cut.starts[first[0]][first[1]] == after.positions[first[0]][first[1]]
    )


def unread_sends(ring: Ring, positions: Positions) -> int:
    """Sends seen that lie at or after the positions."""
    return sum(
        stream.columns.seen_from(n)
        for edge, at in zip(ring.edges, positions, strict=True)
        for stream, n in zip(edge.streams, at, strict=True)
        if stream.stop > n
    )


def _cost(ring: Ring, path: Sequence[Cut], cut: Cut, most_cut_off: int | None) -> float:
    """How much believing `cut` takes after `path`. most_cut_off: sends of it that may count as put
    after the end; None: all."""
    beyond = beyond_end(ring, cut)
    cost = CUT_OFF_COST * (beyond if most_cut_off is None else min(beyond, most_cut_off))
    if not cut.matched:
        return cost + UNSEEN_COST
    if cut.op.licensed and not cut.op.open_size:
        return cost
    first = (
        OPEN_COST if cut.op.licensed else COST[cut.op.kind] + OTHER_ROOT_COST * (cut.op.root > 0)
    )
    if cut.op.licensed or cut.op.root or cut.op.kind is CollectiveKind.ALL_REDUCE or ring.gathers:
        return cost + (REPEAT_COST if any(b.op == cut.op for b in path[-LOOK_BACK:]) else first)
    return cost + first


def _successors(
    ring: Ring,
    state: State,
    path: list[Cut],
    expect: Expect,
    known: Sequence[Op],
    purse: Purse | None,
) -> Iterator[tuple[State, Cut]]:
    tried: set[tuple[object, ...]] = set()
    meant: set[tuple[object, ...]] = set()
    for op in expect(ring, path, state):
        # Two things of one size are told apart by their content.
        name = (*_name(op), op.meaning)
        if name in meant or not pays(purse):
            continue
        if op.licensed:
            meant.add(name)
            tried.add(_name(op))
            yield from apply(ring, state, op, purse, may_be_unseen=not op.open_size)
        else:
            yield from (step for step in apply(ring, state, op, purse) if not step[1].lost)
    lately = path[-LOOK_BACK:]
    reduces = (c.op for c in reversed(lately) if c.op.kind is CollectiveKind.ALL_REDUCE)
    repeats = list(dict.fromkeys(reduces))[:8]
    # What follows is often what followed the same collective last time.
    followed = [b.op for a, b in pairwise(lately) if a.op == path[-1].op]
    for op in [*followed[-1:], *repeats, *known]:
        if _name(op) not in tried and pays(purse):
            tried.add(_name(op))
            yield from apply(ring, state, op, purse, may_be_unseen=not op.open_size)
    steps: list[tuple[State, Cut]] = []
    for op in generated(ring, state.positions, state.channels):
        if _name(op) not in tried and pays(purse):
            tried.add(_name(op))
            if ring.gathers:
                steps += apply(ring, state, op, purse)
            else:
                yield from apply(ring, state, op, purse)
    # Many sizes fit where any channel may be the first: what was sent first comes first.
    yield from sorted(steps, key=lambda step: _began(ring, step[1]))


def _name(op: Op) -> tuple[object, ...]:
    """What makes two guesses one."""
    return op.kind, op.work_bytes, op.protocol, op.root, op.algorithm


def _began(ring: Ring, cut: Cut) -> int:
    """When the first send of a collective was seen."""
    return min(cut.times(ring), default=0)
