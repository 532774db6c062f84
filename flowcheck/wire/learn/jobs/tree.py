"""All-reduces by NCCL's trees: what keeps a job of them from being followed.

NCCL src/device/all_reduce.h, runTreeUpDown: a rank sends its parent all it has of a chunk, and the
root sends the sum down, each in one message. Of two ranks each is the root of every second channel,
and a tree has the sizes of gathers and broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from flowcheck.findings.catalog.refused_trainers import (
    MAY_BE_BESIDE_TREES,
    MAY_BE_TWO_TREES,
    NVLS_PORTS_MISSING,
    RING_PORTS_MISSING,
    TREES_BESIDE,
    TREES_COPIES_DIFFER,
    TREES_UNREAD,
    TREES_UPSIDE_DOWN,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, round_up
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.echo import upside_down
from flowcheck.wire.learn.flows.counted import counts_first, ranks_counted
from flowcheck.wire.learn.flows.nvls import heads_seen
from flowcheck.wire.learn.flows.rings import Ring, seen_whole
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import forks, may_have_trees, nodes_named
from flowcheck.wire.learn.jobs.types import is_of
from flowcheck.wire.learn.reading import Collective
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import WEIGHTS, Habits

REDUCES = CollectiveKind.ALL_REDUCE.value


def contradicted(communicator: Communicator, gradients: Sequence[Collective]) -> Finding | None:
    """Why a reading of trees must not be followed; None: nothing speaks against it."""
    ring, cuts = communicator.ring, communicator.cuts
    if not ring.branches:
        return None
    if any(one.conflicts for one in gradients):
        return TREES_COPIES_DIFFER()
    if upside_down(cuts.found, ring):
        return TREES_UPSIDE_DOWN()
    return TREES_UNREAD() if cuts.unread and seen_whole(ring) else None


def by_tree(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> tuple[int, int] | None:
    """(how often, bytes) of buckets that went by a tree; None: none did, or nothing tells."""
    begin = next((i for i, cut in enumerate(cuts) if cut.op.meaning == WEIGHTS), len(cuts))
    if not habits.each:
        return None
    buckets = [habits.bucket_bytes(i) for i in range(len(habits.buckets))]
    # Iteration 0 reduces all parameters at once, and only it.
    for size, enough in ((habits.state_bytes, 1), *((size, 2) for size in buckets)):
        found = _whole if ring.ranks == 2 else _passing
        times = sum(found(cuts[begin + 1 :], size))
        # Of two ranks two trees behind each other are as large as a ring's all-reduce.
        around = ring.ranks > 2 and _around(cuts[begin + 1 :], size)
        if times >= enough and not around:
            return times, size
    return None


def _around(cuts: Sequence[Cut], size: int) -> bool:
    """A bucket as large went round the ring: what is passed on beside it are buffers."""
    due = (
        c
        for c in cuts
        if c.op.kind is CollectiveKind.ALL_REDUCE and c.op.licensed and not c.op.tree
    )
    return any(cut.matched and not cut.lost and is_of(cut, size) for cut in due)


def beside(
    streams: Sequence[Stream],
    communicators: Sequence[Communicator],
    collectives: Sequence[Collective],
) -> tuple[tuple[Collective, ...], Finding | None]:
    """(the collectives, complete only where no tree explains them; why, or None) of what is no
    job: trees may be beside a ring and were not read as such."""
    collectives = in_doubt(communicators, collectives)
    read = any(cut.op.tree for one in communicators for cut in one.cuts.found)
    if read:
        return tuple(_unless_unread(c, communicators) for c in collectives), None
    why = TREES_BESIDE() if next(forks(streams), None) else _ports_missing(streams)
    if why is None and not any(c.kind == REDUCES for c in collectives):
        why = _heads_missing(streams)
    if why is None and may_have_trees(streams):
        why = TREES_BESIDE()
    if why is None:
        return tuple(collectives), None
    doubted = (
        c
        if c.ring is None
        else replace(c, doubtful=True, assumed=(*c.assumed, MAY_BE_BESIDE_TREES()))
        for c in collectives
    )
    return tuple(doubted), why


def _ports_missing(streams: Sequence[Stream]) -> Finding | None:
    """Over two nodes a ring passes both ways. Where both ways were seen and its start-up one way
    alone, the other way's port is not in the capture; None: nothing tells that. A port that is idle
    is no such: the first channel passes from node to node and back in any ring."""
    for ranks in ranks_counted(streams):
        gpus, rest = divmod(ranks, 2)
        node_of = None if rest or gpus < 2 else nodes_named(streams, ranks, gpus)
        if node_of is None or {*node_of.values()} != {0, 1}:
            continue
        counts = {0: 0, 1: 0}
        for stream in streams:
            node = node_of[stream.key.source]
            counts[node] = max(counts[node], counts_first(stream))
        seen = tuple(sorted({(stream.tag or 0) % gpus for stream in streams}))
        others = tuple(gpu for gpu in range(gpus) if gpu not in seen)
        whole = all(stream.from_start for stream in streams)
        if whole and others and not min(counts.values()) and max(counts.values()) > 1:
            return RING_PORTS_MISSING(seen=seen, others=others)
    return None


def _heads_missing(streams: Sequence[Stream]) -> Finding | None:
    """Heads of NVLS trees were seen, and not all GPUs of a node are; None: they were not."""
    if (told := heads_seen(streams)) is None:
        return None
    gpus, seen = told
    missing = tuple(gpu for gpu in range(gpus) if gpu not in seen)
    return NVLS_PORTS_MISSING(gpus=gpus, seen=seen, missing=missing) if missing else None


def _unless_unread(one: Collective, communicators: Sequence[Communicator]) -> Collective:
    """Complete only where its communicator's trees explain every send."""
    known = one.ring is not None and one.communicator < len(communicators)
    of = communicators[one.communicator] if known else None
    if of is None or not of.ring.branches or not of.cuts.unread:
        return one
    return replace(one, doubtful=True, assumed=(*one.assumed, TREES_UNREAD()))


def in_doubt(
    communicators: Sequence[Communicator], collectives: Sequence[Collective]
) -> tuple[Collective, ...]:
    """Two trees behind each other have the sizes of one ring, of two ranks; of more, what passes
    to the next one up a tree has those of a broadcast: where there are any, none is complete."""
    trees = {
        number: c.ring.ranks
        for number, c in enumerate(communicators)
        if by_tree(c.habits, c.cuts.found, c.ring) is not None
    }
    told: list[Collective] = []
    started = set[int]()
    for c in collectives:
        alike = c.kind == REDUCES or (
            trees.get(c.communicator, 2) > 2 and c.communicator in started
        )
        if c.communicator in trees and alike:
            two = trees[c.communicator] == 2
            why = (MAY_BE_TWO_TREES if two else MAY_BE_BESIDE_TREES)()
            told.append(replace(c, doubtful=True, assumed=(*c.assumed, why)))
        else:
            told.append(c)
        if c.meaning == WEIGHTS:
            started.add(c.communicator)
    return tuple(told)


def _passing(cuts: Sequence[Cut], size: int) -> Iterator[int]:
    """What passes from a rank to the next one as a whole, where gradients are reduced."""
    yield from (1 for cut in cuts if cut.op.kind is CollectiveKind.BROADCAST and is_of(cut, size))


def _whole(cuts: Sequence[Cut], size: int) -> Iterator[int]:
    """How many tree all-reduces of `size` bytes each of them, or each two of them, may be."""
    for cut in cuts:
        if cut.op.kind.is_gather and is_of(cut, size):
            yield 1
        elif cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.op.meaning and _twice(cut, size):
            yield 2  # one behind the other
    for one, two in pairwise(cuts):
        both = one.op.kind is two.op.kind is CollectiveKind.BROADCAST and one.op.root != two.op.root
        if both and is_of(one, size) and is_of(two, size):
            yield 1


def _twice(cut: Cut, size: int) -> bool:
    grain = GRAIN_BYTES[cut.op.protocol]
    return round_up(cut.op.work_bytes, grain) == 2 * round_up(size, grain)
