"""Which flat arrays a copy of the replica has."""

from __future__ import annotations

from flowcheck.config import OptimizerConfig
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules.optimizers import (
    PARAMETERS,
    STEP_COUNT,
    STEPPED,
    counts_steps,
    state_names,
)


def sections_of(
    layout: Layout, config: OptimizerConfig, leaves_out: bool
) -> list[tuple[str, str, int]]:
    """(name, numpy dtype, elements) of every section of a copy. leaves_out: steps may leave out
    parameters."""
    names = (PARAMETERS, *state_names(config))
    wanted = [(name, layout.stored_as, layout.elements) for name in names]
    if counts_steps(config) or leaves_out:
        own = STEP_COUNT if counts_steps(config) else STEPPED
        wanted.append((own, "<f4", len(layout.parameters)))
    return wanted
