"""In which type gradients are reduced, as far as sizes tell: the parameters', or a hook's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog.refused_trainers import COMPRESSION_OPEN, GRADIENT_TYPE_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, round_up
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.habits import BUCKET, COMPRESSED_BYTES, SIZES, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.iteration import planned_at
from flowcheck.wire.learn.trainer.widths import as_wide


def is_of(cut: Cut, size: int) -> bool:
    """On the wire it is as large as a tensor of `size` bytes."""
    grain = GRAIN_BYTES[cut.op.protocol]
    return round_up(cut.op.work_bytes, grain) == round_up(size, grain)


def undecided(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> Finding | None:
    """Why nothing tells the type of the gradients; None: it is told, or there are no gradients."""
    if as_wide(habits, cuts, ring):
        return COMPRESSION_OPEN(one=2 * COMPRESSED_BYTES, other=COMPRESSED_BYTES)
    reduced = habits.reduced or habits.each
    planned = next((i for i, cut in enumerate(cuts) if cut.op.meaning == SIZES), len(cuts))
    planned = planned_at(cuts) if habits.mapped else planned
    for each in {habits.each, (COMPRESSED_BYTES,) * habits.parameters} - {reduced, ()}:
        if _beside_all(habits, cuts[planned:], each):
            return GRADIENT_TYPE_OPEN(one=reduced[0], other=each[0])
        if _as_large(habits, cuts, planned, each):
            return COMPRESSION_OPEN(one=reduced[0], other=each[0])
    return None


def _beside_all(habits: Habits, cuts: Sequence[Cut], each: Sequence[int]) -> bool:
    """Beside every bucket of every iteration something is reduced that is as large as the bucket
    would be with elements of `each`."""
    reduces = [cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE]
    others = [cut for cut in reduces if cut.op.meaning != BUCKET]
    iterations = (len(reduces) - len(others)) // max(1, len(habits.buckets))
    # In the first of them, or in the last, it may not have been seen.
    least = max(1, iterations - 1)
    sizes = [habits.bytes_of(bucket, each) for bucket in habits.buckets]
    return bool(sizes) and all(sum(is_of(cut, size) for cut in others) >= least for size in sizes)


def _as_large(habits: Habits, cuts: Sequence[Cut], planned: int, each: Sequence[int]) -> bool:
    """Every bucket seen would be as large with elements of `each`. Of weights in one line nothing
    is told at all, which is said elsewhere."""
    lines = (cut.op.protocol for cut in cuts if cut.op.meaning == WEIGHTS)
    if habits.state_bytes <= max(map(GRAIN_BYTES.__getitem__, lines), default=0):
        return False
    pairs = list(_with_sizes(habits, cuts, planned, each))
    return bool(pairs) and all(is_of(cut, size) for cut, size in pairs)


def _with_sizes(
    habits: Habits, cuts: Sequence[Cut], planned: int, each: Sequence[int]
) -> Iterator[tuple[Cut, int]]:
    """(bucket, its bytes with elements of `each`), of iteration 0 and of those of the plan; with
    find_unused_parameters iteration 0 has those of the plan."""
    planned = 0 if habits.mapped else planned
    first = [cut for cut in cuts[:planned] if cut.op.meaning == BUCKET]
    later = [cut for cut in cuts[planned:] if cut.op.meaning == BUCKET]
    alone = [habits.bytes_of(bucket, each) for bucket in habits.first_buckets]
    yield from zip(first, alone * len(first), strict=False)
    sizes = [habits.bytes_of(bucket, each) for bucket in habits.buckets]
    yield from zip(later, sizes * len(later), strict=False)
