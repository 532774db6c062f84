"""Collectives that are not those of one plain DDP wrapper, by what they hold or how large they are.

Sources: torch/nn/parallel/distributed.py (_register_delay_all_reduce_hook,
_register_accum_grad_hook).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, product, takewhile
from math import prod

import numpy as np

from flowcheck.findings.catalog.refused_trainers import REDUCED_ONE_BY_ONE
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.types import is_of
from flowcheck.wire.learn.trainer.content import content_of
from flowcheck.wire.learn.trainer.habits import (
    COUNT,
    COUNT_BYTES,
    GRADIENTS,
    ORDER,
    SHAPES,
    WEIGHTS,
    Habits,
)
from flowcheck.wire.learn.trainer.iteration import begun_at

FLOAT_BYTES = 4
RANKS, RATES = range(1, 33), (1, 2, 4)
"""matrix_approximation_rank and min_compression_rate that are tried."""
ALIGNED = 0.95
"""Cosine of the angle between both; that of a gradient, or of anything else, is far from it."""
SMALL_BYTES = 16
"""What scripts tell their ranks, like a seed, and reduce as often, like a metric."""


def second_count(cuts: Sequence[Cut], ring: Ring) -> int:
    """The number of parameters that another wrapper told; 0: there is none."""
    first = next((i for i, cut in enumerate(cuts) if cut.op.meaning == SHAPES), len(cuts))
    for one, two in pairwise(cuts[first:]):
        if not one.op.kind.is_gather or one.op.work_bytes != COUNT_BYTES:
            continue
        count, shapes = content_of(one, ring), content_of(two, ring)
        if two.op.kind is not CollectiveKind.BROADCAST or count is None or shapes is None:
            continue
        number = ddp_messages.parse_parameter_count(count)
        values = ddp_messages.parse_shape_values(shapes)
        if number and values and ddp_messages.parse_shapes(values, number, most=1):
            return number
    return 0


def delayed(cuts: Sequence[Cut]) -> int:
    """Bytes of parameters that DDP leaves to a hook of its own; 0: there are none.

    torch/nn/parallel/distributed.py, _register_delay_all_reduce_hook: broadcast before all others,
    reduced in one piece in every iteration, the first one too.
    """
    count = next((i for i, cut in enumerate(cuts) if cut.op.meaning == COUNT), 0)
    before = list(
        takewhile(lambda cut: cut.op.kind is CollectiveKind.BROADCAST, cuts[count - 1 :: -1])
    )
    sizes = list(accumulate(cut.op.work_bytes for cut in before)) if count else []
    behind = cuts[begun_at(cuts) :]
    reduces = [cut for cut in behind if cut.op.kind is CollectiveKind.ALL_REDUCE]
    others = [cut for cut in reduces if cut.op.meaning not in GRADIENTS]
    planned = next((i for i, cut in enumerate(behind) if cut.op.meaning == ORDER), 0)
    first = [cut for cut in behind[:planned] if cut in others]
    fits = (n for n in sizes if n > SMALL_BYTES and any(is_of(cut, n) for cut in first))
    return next((n for n in fits if sum(is_of(cut, n) for cut in others) > 1), 0)


def averages(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """Models are averaged beside the gradients: all parameters, of four bytes an element each, in
    registration order."""
    size = habits.state_bytes
    sent = [cut for cut in cuts if cut.op.meaning == WEIGHTS]
    if set(habits.each) != {FLOAT_BYTES} or not sent:
        return False
    alike = [
        cut
        for cut in cuts[begun_at(cuts) :]
        if cut.op.kind is CollectiveKind.ALL_REDUCE and cut.op.meaning not in GRADIENTS
        if is_of(cut, size) and cut.op.work_bytes >= size
    ]
    if not alike:
        return False
    first = paint(sent[0], ring)[0].result[:size].view("<f4").astype(np.float64)
    for cut in alike:
        canvas = paint(cut, ring)[0]
        held = canvas.result[: len(first) * FLOAT_BYTES].view("<f4").astype(np.float64)
        lengths = float(np.linalg.norm(first) * np.linalg.norm(held))
        if canvas.covered[:size].all() and lengths and first @ held > ALIGNED * lengths:
            return True
    return False


def low_rank(habits: Habits, cuts: Sequence[Cut]) -> tuple[int, int, int] | None:
    """(rank, bytes of both factors) where buckets are reduced as PowerSGD's factors of their
    matrices; None: they are not.

    torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py: P and Q of all tensors of a bucket
    that are worth it, each kind in one all-reduce; a bucket that was once reduced so is never
    again reduced as it is.
    """
    reduces = [cut for cut in cuts[begun_at(cuts) :] if cut.op.kind is CollectiveKind.ALL_REDUCE]
    if set(habits.each) != {FLOAT_BYTES}:
        return None
    pairs = [
        (number, one, two)
        for number, (one, two) in enumerate(pairwise(reduces))
        if one.op.meaning not in GRADIENTS and two.op.meaning not in GRADIENTS
    ]
    sizes = [sizes for sizes, _ in habits.shapes[0].shapes]
    for number, bucket in enumerate(habits.buckets):
        matrices = [(sizes[i][0], prod(sizes[i][1:])) for i in bucket if len(sizes[i]) > 1]
        for rank, rate in product(RANKS, RATES):
            worth = [(n, m) for n, m in matrices if (n + m) * rank * rate < n * m]
            one = sum(n for n, _ in worth) * rank * FLOAT_BYTES
            two = sum(m for _, m in worth) * rank * FLOAT_BYTES
            found = [at for at, a, b in pairs if is_of(a, one) and is_of(b, two)]
            if one in (0, two) or len(found) < 2:
                continue
            behind = (cut for cut in reduces[found[0] :] if cut.op.meaning in GRADIENTS)
            whole = (cut for cut in behind if is_of(cut, habits.bucket_bytes(number)))
            if all(is_of(cut, one) or is_of(cut, two) for cut in whole):
                return rank, one, two
    return None


def each_alone(habits: Habits, reduces: Sequence[Cut], *, planned: bool) -> Finding | None:
    """By the sizes of the first all-reduces: those of the parameters, one each."""
    sizes = sorted(habits.bytes_of((i,), habits.each) for i in range(len(habits.each)))
    first = sorted(reduces[: len(sizes)], key=lambda cut: cut.op.work_bytes)
    if planned or len(sizes) < 2 or len(first) < len(sizes):
        return None
    alike = all(is_of(cut, size) for cut, size in zip(first, sizes, strict=True))
    return REDUCED_ONE_BY_ONE(all_reduces=len(first), parameters=len(sizes)) if alike else None
