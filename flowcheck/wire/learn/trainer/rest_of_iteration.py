"""The first iteration under the bucket plan, before all of it came.

DDP's plan names every bucket of an iteration and its size. What it does not name is the protocol of
each: NCCL's tuner chooses it by size. Among all-reduces of one communicator the choice is one of
(algorithm, protocol) for a whole range of sizes, as the times that it compares grow with size
(NCCL src/graph/tuning.cc, ncclTopoGetAlgoTime): what a smaller and a larger one have, those between
have. So the rest is told once the buckets that came hold its sizes between them; iteration 0, which
reduces all gradients at once, is the largest. Should one be sent otherwise, its messages do not
have the sizes of the plan, and it is followed as any deviation is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.trainer.habits import BUFFERS, GRADIENTS, ORDER, SIZES, Habits


def rest_of_iteration(
    cuts: Sequence[Cut], begin: int, start: int, habits: Habits
) -> tuple[list[int], list[Op]] | None:
    """(indices of what came whole of the first iteration under the plan, what it holds behind
    that); None: it is not told yet. Only of a trainer that sends a plan, and nothing but gradients
    and the plan in iteration 0: what else an iteration holds shows at its end alone. begin: index
    of iteration 0's first all-reduce; start: of the first collective under the plan."""
    if habits.mapped or habits.own is not None:
        return None
    clean = all(cut.op.meaning in (*GRADIENTS, ORDER, SIZES) for cut in cuts[begin:start])
    if not clean or any(cut.lost for cut in cuts[begin:start]):
        return None
    came = _whole_so_far(cuts, start)
    if came is None:
        return None
    gradients = [cuts[i].op for i in came if cuts[i].op.meaning in GRADIENTS]
    if not 0 < len(gradients) < len(habits.buckets):
        return None
    seen = [cut.op for cut in cuts[begin:start] if cut.op.meaning in GRADIENTS] + gradients
    rest: list[Op] = []
    for bucket in range(len(gradients), len(habits.buckets)):
        size = habits.bucket_bytes(bucket)
        alike = like_its_neighbours(size, seen)
        if alike is None:
            return None
        rest.append(
            replace(
                gradients[0],
                work_bytes=size,
                type_bytes=habits.bucket_type_bytes(bucket),
                protocol=alike.protocol,
                algorithm=alike.algorithm,
                end=None,
            )
        )
    return came, rest


def buckets_that_tell(habits: Habits, iteration_0: Iterable[int]) -> int:
    """How many buckets of the plan have to come until the rest of them is told, if all have one
    protocol. iteration_0: bytes of its all-reduces."""
    sizes = [habits.bucket_bytes(bucket) for bucket in range(len(habits.buckets))]
    if habits.mapped:
        return len(sizes)
    seen = list(iteration_0)
    for count, size in enumerate(sizes):
        rest = sizes[count:]
        if count and min(seen) <= min(rest) and max(rest) <= max(seen):
            return count
        seen.append(size)
    return len(sizes)


def _whole_so_far(cuts: Sequence[Cut], start: int) -> list[int] | None:
    """Indices behind the plan, up to the first collective that is still on its way, behind which
    nothing may be seen. None: there is more than broadcasts of buffers and then gradients."""
    behind = range(start, len(cuts))
    whole = [i for i in behind if not cuts[i].lost]
    if whole != list(behind)[: len(whole)] or len(behind) > len(whole) + 1:
        return None
    meanings = [cuts[i].op.meaning for i in behind]
    lead = next((n for n, one in enumerate(meanings) if one != BUFFERS), len(meanings))
    return whole if all(one in GRADIENTS for one in meanings[lead:]) else None


def like_its_neighbours(size: int, seen: Sequence[Op]) -> Op | None:
    """One of what was seen, if the next smaller and the next larger of it went the same way."""
    smaller = max((op for op in seen if op.work_bytes <= size), key=_bytes, default=None)
    larger = min((op for op in seen if op.work_bytes >= size), key=_bytes, default=None)
    if smaller is None or larger is None or _way(smaller) != _way(larger):
        return None
    return smaller


def _bytes(op: Op) -> int:
    return op.work_bytes


def _way(op: Op) -> tuple[Algorithm, Protocol]:
    return op.algorithm, op.protocol
