"""How large gathers are where the model is known: a last line or group may hold less than fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.periods import Period


def exact(
    cuts: Sequence[Cut], ring: Ring, period: Period, blocks: Sequence[int]
) -> tuple[list[Cut], bool]:
    """(with the sizes of the model's units where these have the same sends, whether only the order
    tells them apart)."""
    sized, left, by_order = list(cuts), Counter(blocks), False
    for unit in period.units:
        first = cuts[period.start + unit[0]]
        fits = [size for size in dict.fromkeys(blocks) if left[size] and _fits(first, ring, size)]
        if not fits:
            continue
        by_order |= len(fits) > 1
        left[fits[0]] -= 1
        for i in (period.at(n).start + place for n in range(period.windows) for place in unit):
            sized[i] = cuts[i].as_op(replace(cuts[i].op, work_bytes=fits[0]), ring)
    return sized, by_order


def _fits(cut: Cut, ring: Ring, size: int) -> bool:
    slack = cut.op.work_bytes - size
    same = 0 <= slack < GRAIN_BYTES[cut.op.protocol]
    return same and cut.reread(replace(cut.op, work_bytes=size), ring) is not None
