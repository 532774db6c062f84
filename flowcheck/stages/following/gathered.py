"""The parameters of sharded training, out of the units that were gathered in an iteration."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.plane.shard import Shard, State
from flowcheck.replica.parting.units import Placing, Wrapped, flat_units, model_units
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Iteration
from flowcheck.wire.job import Job
from flowcheck.wire.parted import Parted

DTYPE = (
    "gathered parameters are float32: in which type they are sent, nothing tells; state "
    "[model] dtype, or [sharded]"
)
ENDED = "the capture ended before all of it was seen"
NOT_CAME = "never came, and units that lack some keep those of the step before"
ALIKE = "units of one size are gathered in the order of the model's modules"


LAID = (
    "where each parameter lies in what is gathered rests on [sharded] and its factory, until an "
    "audit passes"
)


def wrapped_of(run: RunDir) -> Wrapped | None:
    """The sharded model that the job file names; None: it names none."""
    if not run.units.exists():
        return None
    return msgspec.json.decode(run.units.read_bytes(), type=Wrapped)


def blocks_of(run: RunDir) -> tuple[int, ...]:
    """Bytes of one rank's part of each unit, where the model is known."""
    model = wrapped_of(run)
    return () if model is None else tuple(unit.block_bytes for unit in model.units)


def parted_of(run: RunDir) -> Parted | None:
    """The trainer whose optimizer is parted, where one is stated."""
    model = wrapped_of(run)
    return None if model is None else model.parted


def placing_of(run: RunDir, job: Job, config: JobConfig) -> tuple[Placing, tuple[str, ...]]:
    """Where the parameters lie, and what that rests on. Raises StateError where what the job file
    says of the model does not fit."""
    sizes = [parameter.nbytes for parameter in job.parameters]
    ranks = job.communicators[0].ranks
    model = wrapped_of(run)
    if model is not None:
        placing, alike = model_units(sizes, ranks, model)
        return placing, (LAID,) if model.parted is not None else (ALIKE,) * alike
    dtype = config.model.dtype
    return flat_units(sizes, ranks, dtype or "float32"), () if dtype else (DTYPE,)


def is_lost(shard: Shard, generation: int) -> bool:
    """Nothing more comes of it: what is whole is taken, the rest stays of the step before."""
    return shard.state(generation) == State.LOST


def taken(
    placing: Placing, shard: Shard, generation: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """([layout bytes] in registration order, [parameters] those that came whole). Of two copies
    that differ neither is believed, and nothing tells where they do."""
    gathered = shard.gradient(generation)
    if gathered.size != placing.gathered_bytes:
        raise StateError(f"{gathered.size} bytes are gathered, {placing.gathered_bytes} expected")
    missing: Sequence[tuple[int, int]] = shard.missing(generation)
    if shard.conflict_bytes(generation):
        missing = ((0, gathered.size),)
    return placing.parameters(gathered), placing.whole(missing)


def whole(shard: Shard, iteration: Iteration, *, gathered: bool) -> int | None:
    """The generation that holds all of `step`, or, of what is gathered, all that ever comes."""
    generation = shard.generation_of(iteration)
    if generation is None:
        return None
    if shard.state(generation) == State.COMPLETE:
        return generation
    return generation if gathered and is_lost(shard, generation) else None
