"""What a job of sharded training rests on, and why there is none, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.periods import Period

SHARDED = (
    "parameters are gathered and gradients reduce-scattered, as by FSDP or ZeRO: a gradient's sum "
    "never crosses the wire whole; the parameters do, in the type they are gathered in, and are "
    "followed without the optimizer's state"
)
NO_PERIOD = "no iteration was seen twice whose gathers tell where a step ends"
SEVERAL = "{} communicators gather parameters: which of them to follow, nothing tells"
LOST = "sends were lost before the second iteration: where it begins is not sure"
MIDST = (
    "the start of connections of several queue pairs was not seen: whose turn it is, is not sure"
)
ONE_WAY = (
    "of every unit the mirrored links lack the part of rank {} of {}: {} of {} bytes a step; "
    "mirror the other direction of the port as well"
)
NO_BASE = "no iteration was seen of which every unit came whole"
NOTHING_TWICE = (
    "of two ranks that gather parameters once an iteration, nothing seen tells a later gather from "
    "a reduce-scatter of its size; where the model is resharded after the forward "
    "(reshard_after_forward=True), it does"
)
ODD = "a rank's part of a unit is an odd number of bytes: its elements have no type known here"
RELEASE = "the sizes fit the partition of several NCCL releases: mirror the other direction too"
RING_ORDER = "ranks lie along the ring in their own order: each rank's part goes where it sends it"
ENDS = (
    "each rank's part of a unit ends with the last line of its send: what fills a line up is not "
    "told from parameters unless the job file names the model ([sharded] factory)"
)
HYBRID = (
    "each rank's part of the gradients is summed over groups that hold all of the model (HSDP): "
    "the sums are told, and not followed; the parameters are"
)
SIZES_OPEN = (
    "units that fill as many lines are gathered in the order of the model's modules: their sizes "
    "on the wire are the same"
)
BY_ORDER = "{} of {} units are gathered once an iteration: only order tells them from gradients"
STEPS = "the first iteration that was seen held the parameters the trainer began with"
AMID = (
    "step 0 is the first iteration that was seen whole: which one of the trainer's, nothing tells"
)
LATER = "step 0 is the trainer's step {}: of what was gathered before, parts were not seen"


def evidence(period: Period, ring: Ring) -> tuple[str, ...]:
    again = sum(len(unit) > 1 for unit in period.units)
    return (
        f"{len(period.units)} units are gathered in each of {period.windows} iterations of "
        f"{period.length} collectives: their content changes from one to the next",
        f"{again} of them are gathered again within one, with the same bytes",
        f"{ring.ranks} ranks, {ring.channels} channels: every send has the size this gives",
    )


def assumed(
    period: Period, cuts: Sequence[Cut], ring: Ring, first: int, blocks: frozenset[int]
) -> Iterator[str]:
    amid = not all(s.from_start for edge in ring.edges for s in edge.streams)
    yield AMID if amid else LATER.format(first) if first else STEPS
    if ring.ranks > 3:
        yield RING_ORDER
    own = [cuts[period.start + unit[0]].op for unit in period.units]
    if any(op.protocol is not Protocol.SIMPLE and op.work_bytes not in blocks for op in own):
        yield ENDS
    if period.by_order:
        yield BY_ORDER.format(len(period.by_order), len(period.units))
