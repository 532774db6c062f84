"""Which NCCL releases the final copies of a tensor leave: under another partition they differ."""

from __future__ import annotations

from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.collectives.send_table import same_sizes
from flowcheck.wire.learn.cuts.candidates import schedules_of
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.cuts.place import copies_differ
from flowcheck.wire.learn.flows.rings import Ring

LOOKED_AT = 4
"""All-reduces compared, smallest first: one that differs decides."""


def rules_left(cuts: Cuts) -> tuple[NcclEra, ...]:
    """Of the rules its ring may have, those under which no two copies differ; all of them where
    every one has some that do: then it is not the partition that is wrong."""
    ring = cuts.ring
    found = sorted(cuts.found, key=lambda cut: cut.op.work_bytes)
    by_op = {cut.op: cut for cut in found if cut.op.kind is CollectiveKind.ALL_REDUCE}
    reduces = [cut for cut in by_op.values() if _seen_twice(cut, ring)][:LOOKED_AT]
    if len(ring.rules) < 2 or not reduces:
        return ring.rules
    left = tuple(
        rule for rule in ring.rules if not any(_differ(cut, ring, rule) for cut in reduces)
    )
    return left or ring.rules


def _differ(cut: Cut, ring: Ring, rule: NcclEra) -> bool:
    """Sizes allow the rule, and two copies of a byte are then not equal."""
    schedules = schedules_of(cut.op, rule, ring)
    if not same_sizes(schedules, cut.schedules):
        return False
    return copies_differ(replace(cut, schedules=schedules), ring)


def _seen_twice(cut: Cut, ring: Ring) -> bool:
    """More final bytes were mirrored than the tensor has."""
    return sum(s.data_bytes for _, _, s in cut.sends(ring) if s.final) > cut.op.work_bytes
