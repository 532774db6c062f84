"""What a parted optimizer's gathers hold, and whether parameters may be that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import Canvas, paint
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.parameters_job import Units
from flowcheck.wire.learn.search.change import changes
from flowcheck.wire.learn.search.gathers import SCATTERED
from flowcheck.wire.learn.search.parted import gathers
from flowcheck.wire.learn.trainer.habits import WEIGHTS
from flowcheck.wire.training_job.operator_statements import ShardedTraining

MANY_BYTES = 4096
"""Of a parameter, before what it holds is looked for by itself."""
UNRELATED = 1.0
"""Of its norm, that a parameter changes by in a step at most. One that lies elsewhere: 1.4."""


def held(
    cuts: Sequence[Cut], end: int, order: Sequence[int], ring: Ring, parted: ShardedTraining
) -> Units | None:
    """[unit] what was gathered of each up to the gather `end`; None where some was not seen, or
    they came in another order."""
    found: dict[int, NDArray[np.uint8]] = {}
    own = [cut for cut in cuts[: end + 1] if gathers(cut)][-len(order) :]
    for unit, cut in zip(order, own, strict=True):
        canvas: Canvas = paint(cut, ring)[0]
        whole = canvas.whole and not canvas.torn
        if not whole or cut.op.work_bytes != parted.parts[unit].gathered_bytes:
            return None
        found[unit] = canvas.result
    return [found[unit] for unit in range(len(order))]


def usual_change(steps: Sequence[Units], parted: ShardedTraining) -> float | None:
    """By how much of its norm what is gathered changes from one step to the next, in more than half
    of them and in the first one; None: never."""
    every = [
        changes([(a, b, part.dtype) for a, b, part in zip(one, other, parted.parts, strict=True)])
        for one, other in pairwise(steps)
    ]
    return max(every[0], sorted(every)[len(every) // 2]) or None if every else None


def scattered_parameters(
    cuts: Sequence[Cut], ring: Ring, parted: ShardedTraining, little: float
) -> bool:
    """What is read as a reduce-scatter of an iteration is a gather's own content: another trainer,
    of whose gathers every other one was taken for it."""
    held = {cut.op.work_bytes: paint(cut, ring)[0] for cut in cuts if gathers(cut)}
    dtypes = {part.gathered_bytes: part.dtype for part in parted.parts}
    for cut in cuts:
        size = cut.op.work_bytes
        as_gather = cut.reread(replace(cut.op, kind=CollectiveKind.ALL_GATHER), ring)
        if cut.op.meaning != SCATTERED or size not in held or as_gather is None:
            continue
        canvas: Canvas = paint(as_gather, ring)[0]
        own = held[size]
        whole = canvas.covered.all() and own.covered.all()
        if whole and changes([(own.result, canvas.result, dtypes[size])]) <= little:
            return True
    return False


def begun_with(
    cuts: Sequence[Cut], ring: Ring, parted: ShardedTraining, like: Units
) -> Units | None:
    """[unit] the parameters that the trainer sent one by one before it began, what fills units up
    as in `like`; None where it did not, or some was not seen."""
    sent = [cut for cut in cuts if cut.op.meaning == WEIGHTS]
    if not sent or len(sent) != len(parted.places):
        return None
    units = [unit.copy() for unit in like]
    for cut, place in zip(sent, parted.places, strict=True):
        canvas = paint(cut, ring)[0]
        if not canvas.whole or canvas.torn:
            return None
        if place.unit is not None:
            stop = place.start_byte + place.nbytes
            units[place.unit][place.start_byte : stop] = canvas.result
    return units


def lies_otherwise(begun: Units, first: Units, parted: ShardedTraining) -> bool:
    """A parameter is not where the model and settings that are stated put it: what the first step
    made of it is nothing like what it was."""
    for place in parted.places:
        if place.unit is None or place.nbytes < MANY_BYTES:
            continue
        part = slice(place.start_byte, place.start_byte + place.nbytes)
        one, other = begun[place.unit][part], first[place.unit][part]
        if one.any() and changes([(one, other, parted.parts[place.unit].dtype)]) > UNRELATED:
            return True
    return False
