"""What a job of a parted optimizer rests on, and why there is none, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.basis import LOST, MIDST, RELEASE, RING_ORDER
from flowcheck.wire.training_job.operator_statements import ShardedTraining, ShardingStyle

__all__ = ["LOST", "MIDST", "RELEASE"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Of an element of the types that are gathered."""
NO_PERIOD = (
    "no two steps of the stated trainer were seen, one behind the other, that make the same "
    "collectives"
)
NO_RANKS = (
    "no clear-to-send message names the ranks that write: which rank's part a gather holds is not "
    "told; mirror the other direction too"
)
OTHER_ORDER = (
    "units are gathered in another order than buckets have, or than the last one first "
    "([sharded] overlap_param_gather states which of the two)"
)
ORDER_OPEN = (
    "whether units are gathered from the first bucket on or from the last is not told, as they are "
    "as large both ways: state [sharded] overlap_param_gather"
)
UNLIKE = (
    "what would be gathered parameters changes by {:.2f} of its norm from one step to the next: "
    "gradients do, parameters do not; it is not the trainer that [sharded] style states, or none "
    "ever changes"
)
SCATTERED_TOO = (
    "what would be reduce-scattered gradients holds what is gathered: it is not the trainer that "
    "[sharded] style states"
)
LIES_OTHERWISE = (
    "what is gathered after the first step is nothing like the parameters that were sent before "
    "it, where [sharded] puts them: another factory, groups of parameters, or a setting of the "
    "trainer that is not stated"
)
STATES = (
    "parameters are gathered after every step as [sharded] style states, in the type they are sent "
    "in, and are followed without the optimizer's state"
)
BY_STATEMENT = (
    "that gradients are reduce-scattered and parameters gathered, and not gradients all-reduced, "
    "rests on [sharded] style, and on what is gathered changing little from step to step"
)
AS_FIRST = "step 0 is held as step 1: what the parameters were before was not gathered"
COUNTED_FROM = (
    "step 1 is the trainer's step {}: what it did before the steps that repeat is another sequence"
)
AMID = "step 1 is the first one that was seen whole: which one of the trainer's, nothing tells"
SKIPPED = "a step that the trainer skips, as on an overflow of float16, gathers nothing: it is none"


def none_such(parted: ShardedTraining) -> str:
    """Nothing on the wire is the stated trainer."""
    gathered = ", ".join(f"{part.gathered_bytes:,}" for part in parted.parts)
    scattered = ", ".join(f"{part.scattered_bytes:,}" for part in parted.parts)
    sums = (
        f"reduce-scatters of {scattered} bytes a rank"
        if parted.style is ShardingStyle.MEGATRON
        else f"all-reduces of {parted.summed_bytes * parted.sums:,} bytes in all"
    )
    return (
        f'no {parted.ranks} ranks make, twice or more, what [sharded] style = "{parted.style}" and '
        f"its model say: {sums}, then gathers of {gathered} bytes a rank"
    )


def lacking(ring: Ring, parted: ShardedTraining) -> str:
    """The first step was not seen whole."""
    if len(ring.edges) > 1:
        return "no step was seen of which every unit came whole"
    size = sum(part.gathered_bytes for part in parted.parts)
    return (
        f"the mirrored links lack the part of rank {(ring.edges[0].sender + 1) % ring.ranks} of "
        f"{ring.ranks}: {size:,} of {size * ring.ranks:,} bytes a step; mirror the other "
        "direction of the port as well"
    )


def evidence(parted: ShardedTraining, ring: Ring, steps: int, change: float) -> tuple[str, ...]:
    return (
        STATES,
        f"{len(parted.parts)} units are gathered in each of {steps} steps and change by "
        f"{change:.1%} of their norm from one to the next",
        f"{ring.ranks} ranks, {ring.channels} channels: every send has the size this gives",
    )


def assumed(
    parted: ShardedTraining, ring: Ring, first: int | None, *, begun: bool
) -> Iterator[str]:
    """first: steps before the first one that is followed, None where that is not told; begun: the
    parameters that it begins with were sent."""
    if not begun:
        yield AS_FIRST
    if first is None:
        yield AMID
    elif first:
        yield COUNTED_FROM.format(first + 1)
    if any(part.dtype == "float16" for part in parted.parts):
        yield SKIPPED
    if ring.ranks > 3:
        yield RING_ORDER
    alike = any(part.scattered_bytes == part.gathered_bytes for part in parted.parts)
    if parted.style is ShardingStyle.MEGATRON and (alike or ring.ranks == 2):
        yield BY_STATEMENT
