"""What a trainer reduced before its bucket plan held, and which parameters have no gradient.

Sources: torch/csrc/distributed/c10d/reducer.cpp (delay_all_reduce, all_reduce_local_used_map,
should_rebuild_buckets), torch/nn/parallel/distributed.py (_ddp_init_helper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.content import used_of
from flowcheck.wire.learn.trainer.habits import BUCKET, USED, Habits
from flowcheck.wire.training_job import learned_job


@dataclass(frozen=True, slots=True)
class Begun:
    """Both lists of buckets, as `Job` has them."""

    first_buckets: ddp_messages.Buckets
    buckets: ddp_messages.Buckets
    mapped: bool = False
    never_used: tuple[int, ...] = ()
    gradient_element_bytes: int = 0
    plan_unseen: bool = False


def begun(
    habits: Habits, cuts: Sequence[Cut], ring: Ring, parameters: tuple[learned_job.Parameter, ...]
) -> Begun | None:
    """By what was reduced before the plan held, `cuts`; None: it is nothing this release knows."""
    totals = [cut.op.work_bytes for cut in cuts if cut.op.meaning == BUCKET]
    maps = [cut for cut in cuts if cut.op.meaning == USED]
    typed = habits.reduced[0] if habits.compressed else 0
    reduced = learned_job.as_reduced(parameters, typed)
    if habits.mapped:
        if totals != _sizes(reduced, habits.buckets) or len(maps) != 1:
            return None
        whole = (*habits.buckets, (len(parameters),))
        return Begun(whole, whole, mapped=True, gradient_element_bytes=typed)
    for buckets in (
        ddp_messages.first_buckets(parameters),
        ddp_messages.find_unused_buckets(parameters),
    ):
        sizes = _sizes(reduced, buckets)
        if sizes == totals:
            return Begun(buckets, habits.buckets, gradient_element_bytes=typed)
        # A static graph is rebuilt one iteration later: in the first one nothing was in order.
        if habits.static and sizes * 2 == totals:
            never = never_used(cuts, len(parameters), ring)
            return None if never is None else Begun(buckets, habits.buckets, False, never, typed)
    return None


def never_used(cuts: Sequence[Cut], parameters: int, ring: Ring) -> tuple[int, ...] | None:
    """By the map that opens a static graph's first iteration; None where it was not seen whole."""
    maps = (cut for cut in cuts if cut.op.meaning == USED)
    used = next((used_of(cut, parameters, ring) for cut in maps), None)
    return None if used is None else tuple(i for i, ranks in enumerate(used) if not ranks)


def _sizes(parameters: Sequence[learned_job.Parameter], buckets: ddp_messages.Buckets) -> list[int]:
    return [sum(parameters[i].nbytes for i in bucket) for bucket in buckets]
