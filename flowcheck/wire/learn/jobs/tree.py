"""All-reduces by NCCL's trees, told apart from gathers and broadcasts of two ranks.

NCCL src/device/all_reduce.h, runTreeUpDown: a rank sends its parent all it has of a chunk, and the
root sends the sum down, each in one message. Of two ranks each is the root of every second channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.types import is_of
from flowcheck.wire.learn.reading import Collective
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import WEIGHTS, Habits
from flowcheck.wire.terms import GRAIN_BYTES, Kind, round_up

REDUCES = Kind.ALL_REDUCE.value
MAY_BE_TREES = "it is one all-reduce by a ring: two by trees have the same sizes, and some are here"
TREE = (
    "{} times both ranks sent each other {:,} bytes, a whole bucket, where a ring parts it in "
    "chunks: all-reduces by a tree (NCCL_ALGO=Tree, or NCCL's own choice for few bytes), of which "
    "no gradient is placed; NCCL_ALGO=Ring is followed"
)


def by_tree(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> tuple[int, int] | None:
    """(how often, bytes) of buckets that went by a tree; None: none did, or nothing tells."""
    begin = next((i for i, cut in enumerate(cuts) if cut.op.meaning == WEIGHTS), len(cuts))
    if ring.ranks != 2 or not habits.each:
        return None
    buckets = [habits.bucket_bytes(i) for i in range(len(habits.buckets))]
    # Iteration 0 reduces all parameters at once, and only it.
    for size, enough in ((habits.state_bytes, 1), *((size, 2) for size in buckets)):
        times = sum(_whole(cuts[begin + 1 :], size))
        if times >= enough:
            return times, size
    return None


def in_doubt(
    communicators: Sequence[Communicator], collectives: Sequence[Collective]
) -> tuple[Collective, ...]:
    """Two trees behind each other have the sizes of one ring: where there are any, no all-reduce is
    complete."""
    trees = {
        number
        for number, c in enumerate(communicators)
        if by_tree(c.habits, c.cuts.found, c.ring) is not None
    }
    return tuple(
        replace(c, doubtful=True, assumed=(*c.assumed, MAY_BE_TREES))
        if c.communicator in trees and c.kind == REDUCES
        else c
        for c in collectives
    )


def _whole(cuts: Sequence[Cut], size: int) -> Iterator[int]:
    """How many tree all-reduces of `size` bytes each of them, or each two of them, may be."""
    for cut in cuts:
        if cut.op.kind is Kind.ALL_GATHER and is_of(cut, size):
            yield 1
        elif cut.op.kind is Kind.ALL_REDUCE and not cut.op.meaning and _twice(cut, size):
            yield 2  # one behind the other
    for one, two in pairwise(cuts):
        both = one.op.kind is two.op.kind is Kind.BROADCAST and one.op.root != two.op.root
        if both and is_of(one, size) and is_of(two, size):
            yield 1


def _twice(cut: Cut, size: int) -> bool:
    grain = GRAIN_BYTES[cut.op.protocol]
    return round_up(cut.op.work_bytes, grain) == 2 * round_up(size, grain)
