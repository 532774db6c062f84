"""What every iteration of a trainer holds, and which all-reduce is which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    LL_LINE_DATA_BYTES,
    CollectiveKind,
    round_up,
)
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.habits import (
    BUCKET,
    BUFFERS,
    GRADIENTS,
    ORDER,
    OWN,
    PART,
    SIZES,
    USED,
    WEIGHTS,
    Habits,
)
from flowcheck.wire.learn.trainer.parts import resized


def named(cuts: Sequence[Cut], habits: Habits, ring: Ring) -> tuple[Cut, ...]:
    """What might have been buckets before the plan is now known to be, or to be the trainer's own
    affair."""

    buckets = {id(cut): number for number, cut in enumerate(habits.parts * habits.mapped)}

    def of(cut: Cut) -> Cut:
        if id(cut) not in buckets:
            return replace(cut, op=replace(cut.op, licensed="", meaning="", type_bytes=0))
        bucket = buckets[id(cut)]
        size, type_bytes = habits.bucket_bytes(bucket), habits.bucket_type_bytes(bucket)
        sized = resized(cut, size, ring, type_bytes) or cut
        return replace(sized, op=replace(sized.op, meaning=BUCKET))

    return tuple(of(cut) if cut.op.meaning == PART or id(cut) in buckets else cut for cut in cuts)


def begun_at(cuts: Sequence[Cut]) -> int:
    """Index of the first all-reduce behind the initial weights; none was seen: len(cuts). What
    comes before is the trainer's own."""
    weights = next((i for i, cut in enumerate(cuts) if cut.op.meaning == WEIGHTS), 0)
    behind = range(weights, len(cuts))
    return next((i for i in behind if cuts[i].op.kind is CollectiveKind.ALL_REDUCE), len(cuts))


def planned_at(cuts: Sequence[Cut]) -> int:
    """Index of the first collective under the bucket plan: behind the broadcast of its sizes, or,
    with find_unused_parameters, behind the map that follows the first buckets; the first gradient
    of a trainer without DDP, which sends no plan; none was seen: len(cuts)."""
    sizes = next((i for i, cut in enumerate(cuts) if cut.op.meaning == SIZES), None)
    if sizes is not None:
        return sizes + 1
    first = next((i for i, cut in enumerate(cuts) if cut.op.meaning in GRADIENTS), len(cuts))
    if first < len(cuts) and cuts[first].op.licensed == OWN:
        return first
    maps = (i for i, cut in enumerate(cuts) if i > first and cut.op.meaning == USED)
    begun = first < len(cuts) and cuts[first].op.meaning == BUCKET
    return next(maps, len(cuts) - 1) + 1 if begun else len(cuts)


def disputed(cuts: Sequence[Cut], buckets: int) -> set[int]:
    """Indices of the all-reduces of all iterations of the bucket plan in which something else was
    reduced that is as large on the wire as one of the buckets: which is the bucket, nothing but
    their order tells. Where every all-reduce is of one size, an iteration is only counted.

    buckets: all-reduces of an iteration.
    """
    start, reduces, extras = _beside(cuts)
    gradients = [i for i in reduces if cuts[i].op.meaning in GRADIENTS]
    firsts = gradients[:: max(1, buckets)]
    found: set[int] = set()
    for extra in extras:
        # It lies in an iteration or behind one: the first all-reduce of that and of the next.
        begin = max((i for i in firsts if i < extra), default=start)
        after = [i for i in firsts if i > extra]
        stop = after[1] if len(after) > 1 else len(cuts)
        found |= {i for i in reduces if begin <= i < stop}
    return found


def extras_as_large(cuts: Sequence[Cut], buckets: int) -> tuple[int, int]:
    """(all-reduces beside the gradients that are as large as a bucket, iterations of the plan)."""
    _, reduces, extras = _beside(cuts)
    gradients = sum(cuts[i].op.meaning in GRADIENTS for i in reduces)
    return len(extras), gradients // max(1, buckets)


def _beside(cuts: Sequence[Cut]) -> tuple[int, list[int], list[int]]:
    """(where the plan begins, its all-reduces, those of them that are as large as a bucket and are
    none)."""
    start = planned_at(cuts)
    reduces = [i for i in range(start, len(cuts)) if cuts[i].op.kind is CollectiveKind.ALL_REDUCE]
    sizes = {_on_wire(cuts[i].op) for i in reduces if cuts[i].op.meaning in GRADIENTS}
    others = (i for i in reduces if cuts[i].op.meaning not in GRADIENTS)
    return start, reduces, [i for i in others if _on_wire(cuts[i].op) in sizes]


def _on_wire(op: Op) -> int:
    """Data bytes of its lines or groups. Of a Simple tensor too the size of a line is as good as
    its own: one that differs by less is better doubted."""
    return round_up(op.work_bytes, max(GRAIN_BYTES[op.protocol], LL_LINE_DATA_BYTES))


def foretold(cuts: Sequence[Cut], begin: int, start: int, buckets: int) -> bool:
    """The first iteration under the plan was seen whole and is what each later one will be, before
    the next begins: before its gradients came nothing but broadcasts of buffers, and iteration 0
    had nothing behind its gradients either. Where it had, what else a step holds is told by the
    next one alone. Of a last bucket that is not whole a smaller one, or one of another ring, may
    be the beginning. begin: index of iteration 0's first all-reduce; start: of the first collective
    under the plan.
    """
    gradients = [i for i in range(start, len(cuts)) if cuts[i].op.meaning in GRADIENTS]
    if len(gradients) != buckets or gradients[-1] != len(cuts) - 1:
        return False
    if any(cut.op.meaning not in (*GRADIENTS, ORDER, SIZES) for cut in cuts[begin:start]):
        return False
    lead = cuts[start : gradients[0]]
    alone = len(cuts) - start == len(lead) + buckets
    # What was lost, or has not come yet, may hide something, or be of another size.
    whole = not any(cut.lost for cut in cuts[begin:])
    return alone and whole and all(cut.op.meaning == BUFFERS for cut in lead)


def iteration(cuts: Sequence[Cut], start: int, buckets: int, ended: bool) -> list[int] | None:
    """Indices of what every iteration holds, by the first one that was seen whole; None if none
    was seen yet. What comes only now and then, like a metric, is no part of an iteration."""
    gradients = [i for i in range(start, len(cuts)) if cuts[i].op.meaning in GRADIENTS]
    lead = gradients[0] - start if gradients else 0
    begins = [i - lead for i in gradients[::buckets]]
    spans = [list(range(a, b)) for a, b in pairwise(begins)]
    if not spans:
        whole = ended and len(gradients) == buckets
        return list(range(start, gradients[-1] + 1)) if whole else None
    common = spans[0]
    for other in dict.fromkeys(tuple(cuts[i].op for i in span) for span in spans[1:]):
        common = [common[i] for i in _in_both([cuts[i].op for i in common], other)]
    return common


def _in_both(one: Sequence[Op], other: Sequence[Op]) -> list[int]:
    """Indices into `one` of a longest common subsequence."""
    longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in reversed(range(len(one))):
        for j in reversed(range(len(other))):
            longest[i][j] = (
                longest[i + 1][j + 1] + 1
                if one[i] == other[j]
                else max(longest[i + 1][j], longest[i][j + 1])
            )
    found: list[int] = []
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            found.append(i)
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
