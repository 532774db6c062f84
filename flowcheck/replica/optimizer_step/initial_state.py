"""The flat arrays of a replica at step 0."""

from __future__ import annotations

import numpy as np

from flowcheck.config import OptimizerConfig
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.optimizer.optimizer_state_shapes import optimizer_state_shapes
from flowcheck.replica.optimizer.state_section_names import (
    AVERAGE,
    MASTER,
    PARAMETERS,
    SCALER,
    STEPPED,
)
from flowcheck.replica.optimizer.state_sections import stored_states, tensors_of_section
from flowcheck.replica.state_file.file_header import Description


def initial_arrays(
    config: OptimizerConfig, description: Description, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """{section: flat array} of a replica before its first step. weights: [layout.elements], the
    initial parameters."""
    arrays = {s.name: np.zeros(s.elements, s.dtype) for s in description.sections}
    arrays[PARAMETERS] = weights
    if not config.computes_steps:
        return arrays
    values = tensors_of_section(description, arrays, PARAMETERS)
    masters = tensors_of_section(description, arrays, MASTER)
    assert values is not None
    for master, value in zip(masters or (), values, strict=bool(masters)):
        master.copy_(value)
    averages = tensors_of_section(description, arrays, AVERAGE)
    for average, value in zip(averages or (), values, strict=bool(averages)):
        average.copy_(value)
    if config.scaler is not None:
        arrays[SCALER][0] = config.scaler.init_scale
    inner = stepped_layout(config, description.layout)
    if optimizer_state_shapes(config, inner).exists_before_first_step:
        _fill_eager(config, description, arrays)
    return arrays


def _fill_eager(
    config: OptimizerConfig, description: Description, arrays: dict[str, np.ndarray]
) -> None:
    """States that torch makes with the optimizer, as Adagrad's sums."""
    inner = stepped_layout(config, description.layout)
    tensors = tensors_of_section(description, arrays, MASTER) or tensors_of_section(
        description, arrays, PARAMETERS
    )
    assert tensors is not None
    built = build_optimizer(config, inner, tensors)
    own = stored_states(description, arrays)
    leaves = built.leaves
    for index, (number, optimizer) in enumerate(zip(built.order, built.of_parameters, strict=True)):
        state = optimizer.state.get(leaves[number], {}) if optimizer is not None else {}
        for name, held in own[index].items() if state else ():
            held.tensor.copy_(state[name]) if not held.number else held.tensor.fill_(state[name])
        arrays[STEPPED][index] = bool(state)
