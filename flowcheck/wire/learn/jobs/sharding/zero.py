"""A reduce-scatter and the gather behind it, of one buffer, look like an all-reduce of it.

Megatron-LM's distributed optimizer and ZeRO-1 make the two: what is gathered are the parameters
that each rank stepped. Sizes, steps and copies are those of an all-reduce; only that parameters
change little from one step to the next speaks for it, which is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.distributed_optimizers import (
    MAY_BE_SHARDED,
    MAY_BE_ZERO,
    ONE_ALL_REDUCE,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.reading import Collective
from flowcheck.wire.learn.trainer.habits import GRADIENTS, Habits

OFTEN = 3
"""Of one size, before what they hold is compared."""
LITTLE = 0.25
"""Of its norm, that parameters change by in a step at most; gradients of other data change more."""
LEAST_BYTES = 256
PADS_BYTES = 256
"""That the parts of a group of parameters are filled up by at most."""
MAY_BE = {"all_reduce": MAY_BE_ZERO, "all_gather": MAY_BE_SHARDED}
"""By kind."""


def maybe_zero(
    collectives: Sequence[Collective],
) -> tuple[tuple[Finding, ...], tuple[Collective, ...]]:
    """(a finding on each size of what may be gathered parameters, all collectives with what that
    puts in doubt)."""
    by_size: dict[tuple[str, int], list[NDArray[np.uint8]]] = {}
    for c in collectives:
        if c.kind in MAY_BE and c.complete and c.bytes >= LEAST_BYTES:
            by_size.setdefault((c.kind, c.bytes), []).append(c.result)
    slow = {name for name, held in by_size.items() if len(held) >= OFTEN and _slow(held)}
    told = tuple(MAY_BE[kind](size) for kind, size in by_size if (kind, size) in slow)
    return told, tuple(
        replace(c, assumed=(*c.assumed, ONE_ALL_REDUCE()))
        if c.kind == "all_reduce" and (c.kind, c.bytes) in slow
        else c
        for c in collectives
    )


def steps_its_own(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """Parameters of two bytes are gathered in every iteration behind their gradients: the optimizer
    is parted, and keeps float32 ones of its own, which it steps."""
    sums = [i for i, cut in enumerate(cuts) if cut.op.meaning in GRADIENTS]
    if set(habits.each) != {2} or not habits.reduces or not habits.state_bytes:
        return False
    ends = sums[habits.reduces - 1 :: habits.reduces]
    behind = [cuts[end + 1 : begin] for end, begin in pairwise([*ends, len(cuts)])]
    return sum(_all_of(habits, own, ring) for own in behind) > len(behind) // 2


def _all_of(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """They gather as much as all parameters with what fills parts up. Of two ranks, several loops
    of a gather look like all-reduces."""
    held = slack = 0
    for cut in cuts:
        kinds = (
            (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
            if ring.ranks == 2
            else (CollectiveKind.ALL_GATHER,)
        )
        size = cut.op.work_bytes * ring.ranks
        if cut.op.kind in kinds and cut.op.meaning not in GRADIENTS and size >= LEAST_BYTES:
            held += size
            slack += PADS_BYTES + ring.ranks * GRAIN_BYTES[cut.op.protocol]
    return 0 <= held - habits.state_bytes < slack


def _slow(held: Sequence[NDArray[np.uint8]]) -> bool:
    return any(
        all(_near(one, other) for one, other in pairwise(values)) for values in _as_types(held)
    )


def _as_types(held: Sequence[NDArray[np.uint8]]) -> Iterator[list[NDArray[np.float32]]]:
    """As float32, and as bfloat16, whose bits are the upper ones of a float32."""
    if held[0].size % 4 == 0:
        yield [data.view("<f4") for data in held]
    if held[0].size % 2 == 0:
        yield [(data.view("<u2").astype("<u4") << 16).view("<f4") for data in held]


def _near(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Different, and by little."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    a, b = one.astype(np.float64), other.astype(np.float64)
    norm = float(np.linalg.norm(a))
    return 0 < float(np.linalg.norm(b - a)) < LITTLE * norm
