"""Parameters of sharded training, taken from the units that were all-gathered in an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.config import JobConfig
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.replica_update_notes import (
    GATHERED_FLOAT32,
    GATHERED_SIZE,
    SHARDED_LAYOUT,
    UNITS_IN_MODULE_ORDER,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.sharding.gather_units import (
    ShardedModel,
    UnitSplitter,
    flat_units,
    model_units,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.traffic.observed_messages import Range
from flowcheck.wire.training_job.operator_statements import ShardedTraining
from flowcheck.wire.training_job.training_spec import TrainingFacts


class GatheredTally(msgspec.Struct, frozen=True, kw_only=True):
    """How many steps of the replica were equal to what the trainers gathered behind them."""

    compared: int = 0
    last: int = 0
    """The newest of them; 0: none."""


def read_tally(run: RunDir) -> GatheredTally:
    """The counts of a run; of a damaged file, none."""
    with suppress(FileNotFoundError, *DECODE_ERRORS):
        return msgspec.json.decode(run.gathered.read_bytes(), type=GatheredTally)
    return GatheredTally()


def stated_sharded_model(run: RunDir) -> ShardedModel | None:
    """The sharded model that the job file names; None: it names none."""
    if not run.units.exists():
        return None
    return msgspec.json.decode(run.units.read_bytes(), type=ShardedModel)


def unit_block_bytes_of(run: RunDir) -> tuple[int, ...]:
    """Bytes of one rank's part of each unit, where the model is known."""
    model = stated_sharded_model(run)
    return () if model is None else tuple(unit.block_bytes for unit in model.units)


def sharded_optimizer_of(run: RunDir) -> ShardedTraining | None:
    """The kind of trainer whose optimizer is sharded, where one is stated."""
    model = stated_sharded_model(run)
    return None if model is None else model.sharded_wire


def parameter_placement(
    run: RunDir, job: TrainingFacts, config: JobConfig
) -> tuple[UnitSplitter, tuple[Finding, ...]]:
    """Where the parameters lie in the gathered units, and the assumptions behind that. Raises
    StateError where the stated model does not fit."""
    sizes = [parameter.nbytes for parameter in job.parameters]
    ranks = job.communicator_ranks[0]
    model = stated_sharded_model(run)
    if model is not None:
        placing, alike = model_units(sizes, ranks, model)
        return placing, (SHARDED_LAYOUT(),) if model.sharded_wire is not None else (
            UNITS_IN_MODULE_ORDER(),
        ) * alike
    dtype = config.model.dtype
    return flat_units(sizes, ranks, dtype or "float32"), () if dtype else (GATHERED_FLOAT32(),)


def gathered_parameters(
    placing: UnitSplitter, gathered: NDArray[np.uint8], unbelieved: Sequence[Range]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """([layout bytes] parameters in registration order, [parameters] bool: came complete); the
    others stay as in the step before. unbelieved: byte ranges of `gathered` that must not be used,
    ascending. Raises StateError where `gathered` holds other units."""
    if gathered.size != placing.gathered_bytes:
        size, expected = gathered.size, placing.gathered_bytes
        raise StateError(GATHERED_SIZE(bytes=size, expected=expected))
    return placing.parameters(gathered), placing.complete_parameters(unbelieved)
