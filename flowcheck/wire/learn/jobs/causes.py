"""Settings of a trainer that keep its job from being followed, by what they do on the wire.

Each finding names what was seen, the setting that does it, and what to do about it.

Sources: torch/csrc/distributed/c10d/reducer.cpp (all_reduce_local_used_map, delay_all_reduce),
torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py (fp16_compress_hook).
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.findings.catalog import refused_trainers as refused
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    LL_LINE_DATA_BYTES,
    CollectiveKind,
)
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.zero import steps_its_own
from flowcheck.wire.learn.jobs.tree import by_tree
from flowcheck.wire.learn.jobs.types import is_of, undecided
from flowcheck.wire.learn.jobs.wrappers import averages, delayed, each_alone, low_rank, second_count
from flowcheck.wire.learn.trainer.content import used_of
from flowcheck.wire.learn.trainer.habits import (
    BUCKET,
    ELEMENT_BYTES,
    GRADIENTS,
    ORDER,
    WEIGHTS,
    Habits,
)
from flowcheck.wire.learn.trainer.iteration import begun_at, extras_as_large, planned_at
from flowcheck.wire.training_job.learned_job import MAP_BYTES


def forbidding(
    habits: Habits, cuts: Sequence[Cut], ring: Ring, *, masters: bool = False
) -> Finding | None:
    """Why a job must not be followed although all of it could be read; None: nothing forbids.
    masters: the optimizer that steps wider copies of the parameters is stated."""
    other = second_count(cuts, ring)
    if other:
        return refused.TWO_MODELS(parameters=other, first_parameters=habits.parameters)
    if told := undecided(habits, cuts, ring):
        return told
    if habits.mapped and _another_map(habits, cuts, ring):
        return refused.SKIPPED_UNUSED()
    if size := delayed(cuts):
        return refused.DELAYED(size)
    if factors := low_rank(habits, cuts):
        rank, one, two = factors
        return refused.LOW_RANK(one_bytes=one, other_bytes=two, rank=rank)
    if averages(habits, cuts, ring):
        return refused.AVERAGED(habits.state_bytes)
    if not masters and steps_its_own(habits, cuts, ring):
        return refused.STEPS_ITS_OWN()
    extras, iterations = extras_as_large(cuts, habits.reduces)
    # In the first of them, or in the last, it may not have been seen.
    always = extras > 1 and extras >= iterations - 1
    twin = always or _as_large_in_iteration_0(habits, cuts)
    return refused.BUCKET_TWIN() if twin else None


def cause(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> Finding | None:
    """The likeliest reason why what was read is no job that can be followed; None where nothing
    tells."""
    planned = next((i for i, cut in enumerate(cuts) if cut.op.meaning == ORDER), len(cuts))
    begin = begun_at(cuts)
    reduces = [cut for cut in cuts[begin:planned] if cut.op.kind is CollectiveKind.ALL_REDUCE]
    later = [cut for cut in cuts[planned:] if cut.op.kind is CollectiveKind.ALL_REDUCE]
    clear = not second_count(cuts, ring) and not any(cut.lost for cut in cuts)
    opens = bool(reduces) and _is_map(habits, reduces[0], ring)
    if clear and (told := _apart(cuts, reduces[opens:])):
        return told
    if trees := by_tree(habits, cuts, ring):
        return (refused.TREE_OF_TWO if ring.ranks == 2 else refused.TREE_PASSES)(*trees)
    told = None
    if clear and len(habits.plan_ways) > 1:
        ways = len(habits.plan_ways)
        return refused.UNUSED_CUTS_OPEN(ways=ways, parameters=habits.parameters)
    if clear:
        told = (
            _by_plan(habits, later if habits.buckets else ())
            or _in_another_type(habits, reduces)
            or _by_map(habits, cuts, reduces, ring, planned=planned < len(cuts))
            or each_alone(habits, reduces, planned=planned < len(cuts))
        )
    return told or forbidding(habits, cuts, ring)


def _is_map(habits: Habits, cut: Cut, ring: Ring) -> bool:
    as_large = is_of(cut, MAP_BYTES * habits.parameters)
    return as_large and used_of(cut, habits.parameters, ring) is not None


def _another_map(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """A map came where the plan has none."""
    reduces = (cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE)
    others = (cut for cut in reduces if cut.op.meaning not in GRADIENTS)
    return any(_is_map(habits, cut, ring) for cut in others)


def _as_large_in_iteration_0(habits: Habits, cuts: Sequence[Cut]) -> bool:
    """Beside its own buckets it reduced something as large as a bucket of the plan."""
    planned = next((i for i, cut in enumerate(cuts) if cut.op.meaning == ORDER), 0)
    planned = planned_at(cuts) if habits.mapped else planned
    reduces = [
        cut for cut in cuts[begun_at(cuts) : planned] if cut.op.kind is CollectiveKind.ALL_REDUCE
    ]
    others = [cut for cut in reduces if cut.op.meaning not in GRADIENTS]
    sizes = [habits.bucket_bytes(bucket) for bucket in range(len(habits.buckets))]
    sizes += [MAP_BYTES * habits.parameters] * habits.mapped
    gradients = sum(cut.op.meaning == BUCKET for cut in reduces)
    whole = len(habits.first_buckets) * (1 + habits.static)
    due = len(habits.buckets) if habits.mapped else whole
    beside = any(is_of(cut, size) for cut in others for size in sizes)
    return gradients > due or (gradients == due and beside)


def _element_bytes(habits: Habits, cut: Cut, elements: int) -> int:
    """Of which size the elements are, those of the weights first; 0: of none."""
    sizes = (*(habits.reduced or habits.each)[:1], *ELEMENT_BYTES)
    return next((size for size in sizes if is_of(cut, elements * size)), 0)


def _by_plan(habits: Habits, reduces: Sequence[Cut]) -> Finding | None:
    """By the elements of every bucket of the plan."""
    counts = habits.shapes[0].counts
    elements = [sum(counts[i] for i in bucket) for bucket in habits.buckets]
    if not elements or len(reduces) < len(elements):
        return None
    sizes: list[int] = []
    left = iter(reduces)
    for count in elements:
        fits = (size for cut in left if (size := _element_bytes(habits, cut, count)))
        sizes.append(next(fits, 0))
    if not any(sizes) and len(reduces) > 2 * len(elements):
        if habits.shapes[0].scalars:
            return refused.OTHER_HOOK_OR_SCALARS()  # how many elements a bucket has is as open
        return refused.OTHER_HOOK(elements)
    if not all(sizes):
        return None
    if len(set(sizes)) > 1:
        return refused.SEVERAL_DTYPES(sorted(set(sizes)))
    if sizes[0] != (habits.reduced or habits.each)[0]:
        return _of_other_size(habits, sizes[0], habits.element_bytes)
    return None


def _of_other_size(habits: Habits, found: int, own: int) -> Finding:
    """Gradients have elements of `found` bytes, the weights seem to have others: larger ones were
    taken for likelier where no size leaves nothing of the broadcast over."""
    rest = habits.weights_bytes - habits.elements * found
    if habits.weights_bytes - habits.elements * own >= LL_LINE_DATA_BYTES:
        return refused.FROZEN_OPEN(rest)
    return refused.UNKNOWN_HOOK_TYPE(gradient_bytes=found, weight_bytes=own)


def _apart(cuts: Sequence[Cut], reduces: Sequence[Cut]) -> Finding | None:
    """By the start-up broadcasts, one for each dtype: the first buckets are of their sizes."""
    sent = [cut for cut in cuts[: begun_at(cuts)] if cut.op.meaning == WEIGHTS]
    first = reduces[: len(sent)]
    sizes = sorted(cut.op.work_bytes for cut in first)
    pairs = zip(sorted(sent, key=lambda cut: cut.op.work_bytes), sizes, strict=False)
    # What fits into one line or group is as large as any other that does.
    told = sum(cut.op.work_bytes > GRAIN_BYTES[cut.op.protocol] for cut in sent)
    if told < 2 or len(first) < len(sent) or not all(is_of(*pair) for pair in pairs):
        return None
    return refused.SEVERAL_DTYPES_BROADCAST([cut.op.work_bytes for cut in first])


def _in_another_type(habits: Habits, reduces: Sequence[Cut]) -> Finding | None:
    """By iteration 0 alone, which has one bucket."""
    own = (habits.reduced or habits.each or (0,))[0]
    found = _element_bytes(habits, reduces[0], habits.elements) if reduces else 0
    return _of_other_size(habits, found, own) if found not in (0, own) else None


def _by_map(
    habits: Habits, cuts: Sequence[Cut], reduces: Sequence[Cut], ring: Ring, *, planned: bool
) -> Finding | None:
    """By the map of the parameters that took part: before the first bucket, or behind all."""
    maps = [cut for cut in reduces if is_of(cut, MAP_BYTES * habits.parameters)]
    # A metric of as many bytes holds other numbers.
    if not maps or not all(_is_map(habits, cut, ring) for cut in maps):
        return None
    sent = [cut for cut in cuts[: begun_at(cuts)] if cut.op.meaning == WEIGHTS]
    apart = len(sent) > 1 and habits.types is None
    if habits.static and planned:
        advice = refused.WEIGHTS_IN_PARTS if apart else refused.LEAVE_STATIC_GRAPH
        return refused.STATIC_GRAPH(parameters=habits.parameters, advice=advice())
    if len(maps) < 2 or planned or habits.mapped:
        return None
    advice = refused.WEIGHTS_IN_PARTS if apart else refused.LEAVE_OPTION
    return refused.UNUSED_OPEN(parameters=habits.parameters, advice=advice())
