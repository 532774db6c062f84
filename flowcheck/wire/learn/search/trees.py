"""A communicator whose all-reduces go by trees: guesses, and the likeliest of them read.

Of nodes of several GPUs one link of the ring is read first, beside the trees, for who writes on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby, islice, takewhile

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import HASTY, Purse, cut_stream
from flowcheck.wire.learn.cuts.purse import SendBudget
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.rings import Ring, seen_whole
from flowcheck.wire.learn.flows.rows import Row, parts, rows, used_together
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import forks, rings_with_trees
from flowcheck.wire.learn.search.communicators import Communicator, read_guesses
from flowcheck.wire.learn.search.scores import contradicted
from flowcheck.wire.learn.search.sounding import sounded
from flowcheck.wire.learn.trainer.grammar import Trainer
from flowcheck.wire.learn.trainer.habits import BUCKET, WEIGHTS

LEAD_PURSE = (1_000, 10)
"""Steps of the search in one link of the ring and all of the trees, and for each send."""
QUICK_PURSE = (400, 2)
"""The same, of a guess before any is worked on: what is right mostly fits at once."""
PURSE = (2_000, 10)
"""The same, of all guesses together."""
MOST_ROWS, MOST_PARTINGS = 7, 3
"""Of connections, of which some are a trainer's; and ways to part the one that starts it up."""


def read_trees(
    streams: Sequence[Stream],
    rules: tuple[NcclEra, ...],
    purse: Purse,
    logged: Sequence[RingOrder] = (),
    *,
    whole: bool = False,
) -> Communicator | None:
    """All of these as a ring and the trees beside it; None: they form none, or nothing that was
    read went by a tree. logged: ring orders as NCCL's log has them; whole: only if all of it fits
    at once."""
    guesses = list(rings_with_trees(streams, rules)) or _forked_rings(
        streams, rules, logged, purse.budget
    )
    if not guesses:
        return None
    sends = sum(len(stream.sends) for stream in streams)
    own = Purse.of(PURSE, sends, purse.budget)
    fitting = _fitting(guesses, sends, purse)
    if whole and not fitting:
        return None
    found = read_guesses(fitting or sorted(guesses, key=lambda ring: ring.penalty), own)
    # Who stands where depends on how many ranks there are: only a start-up that fits tells it.
    if found is None or not found.habits.shapes:
        return None
    return found if any(cut.op.tree for cut in found.cuts.found) else None


def trees_beside_others(
    streams: Sequence[Stream],
    rules: tuple[NcclEra, ...],
    purse: Purse,
    logged: Sequence[RingOrder] = (),
) -> tuple[Communicator, list[Stream]] | None:
    """(a ring and its trees of which nothing is unread, what is of others); None: no
    choice of rows, or of what is used together, is that."""
    tried: set[frozenset[int]] = set()
    ways = (rows(streams), *used_together(streams))
    for own in (own for made in ways for own in _choices(made)):
        names = frozenset(map(id, own))
        if len(names) == len(streams) or names in tried:
            continue
        tried.add(names)
        found = read_trees(own, rules, purse, logged, whole=True)
        if found is not None and _is_trainer(found):
            return found, [stream for stream in streams if id(stream) not in names]
    return None


def _is_trainer(found: Communicator) -> bool:
    """Nothing is unread or lacks a connection, it begins with a start-up and nothing else, and
    buckets are as large as the shapes told say: a part of its connections may be read as those of
    fewer ranks."""
    cuts = found.cuts
    meant = {cut.op.meaning for cut in cuts.found if cut.op.licensed and cut.matched}
    begun = list(takewhile(lambda cut: cut.op.meaning != BUCKET, cuts.found))
    there = all(cut.op.licensed for cut in begun)
    there &= all(
        {c for c, sends in enumerate(schedule) if sends} <= set(names)
        for cut in cuts.found
        for names, schedule in zip(cut.channels, cut.schedules, strict=True)
    )
    return there and {WEIGHTS, BUCKET} <= meant and not cuts.unread and not contradicted(cuts)


def _choices(made: Sequence[Row]) -> Iterator[Row]:
    """Rows that may be of one trainer, most of them first: one that starts it up, or a part of it,
    and any others."""
    if len(made) > MOST_ROWS:
        return
    for start in (row for row in made if ranks_counted(row)):
        others = [row for row in made if row is not start]
        for way in ((start,), *islice(parts(start), MOST_PARTINGS)):
            for first in way:
                beside = [*others, *(row for row in way if row is not first)]
                for count in range(len(beside), -1, -1):
                    for more in combinations(beside, count):
                        yield tuple(s for row in (first, *more) for s in row)


def _fitting(guesses: Sequence[Ring], sends: int, purse: Purse) -> list[Ring]:
    """The likeliest that leave nothing unread, all that are as likely."""
    ordered = sorted(guesses, key=lambda ring: ring.penalty)
    for _, alike in groupby(ordered, key=lambda ring: ring.penalty):
        whole = []
        for ring in alike:
            quick = Purse.of(QUICK_PURSE, sends, purse.budget)
            in_order = seen_whole(ring)
            if not cut_stream(ring, Trainer(), effort=HASTY, purse=quick, in_order=in_order).unread:
                whole.append(ring)
        if whole:
            return whole
    return []


def _forked_rings(
    streams: Sequence[Stream],
    rules: tuple[NcclEra, ...],
    logged: Sequence[RingOrder],
    budget: SendBudget | None,
) -> list[Ring]:
    """Rings and trees that these connections may be of, most plausible first."""
    found: list[Ring] = []
    ways = list(forks(streams))
    for fork in ways:
        sends = sum(len(stream.sends) for stream in streams)
        purse = Purse.of(LEAD_PURSE, sends, budget)
        for ring in sounded(fork.ring, rules, purse, logged, fork):
            if (ring.ranks, ring.gpus) == (fork.ranks, fork.gpus):
                # Of several ways to share the trees out all are compared.
                told = replace(ring, borne_out=ring.borne_out and len(ways) == 1)
                found += fork.rings(told)
    return sorted(found, key=lambda ring: ring.penalty)
