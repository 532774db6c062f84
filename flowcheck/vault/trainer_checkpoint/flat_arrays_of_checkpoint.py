"""Converts a trainer's checkpoint to the replica's flat arrays in registration order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.finding import Entry
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.state_sections import (
    StoredState,
    describe_sections,
    stored_states,
    tensors_of_section,
)
from flowcheck.replica.param_layout import FlatParameter, Layout
from flowcheck.replica.state_file.file_header import Description
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import (
    CheckpointTemplate,
    type_or_shape_differs,
)
from flowcheck.vault.trainer_checkpoint.masters_averages_scaler import (
    averages_in,
    masters_in,
    scaler_in,
)


@structure_errors_as_state_errors("the file")
def flat_state(
    template: CheckpointTemplate,
    layout: Layout,
    optimizer: OptimizerConfig,
    *,
    leaves_out: bool = False,
) -> dict[str, np.ndarray]:
    """{section: flat array} in the form of `Replica.sections`. leaves_out: see `Replica.create`.

    Raises StateError if a tensor is missing or has another shape or dtype.
    """
    description = Description(layout, tuple(describe_sections(layout, optimizer, leaves_out)))
    flat = flat_sections(template, description)
    _put_beside(template, description, optimizer, flat)
    return flat


def flat_sections(template: CheckpointTemplate, description: Description) -> dict[str, np.ndarray]:
    """The flat arrays of parameters and optimizer states for the sections in `description`. Raises
    as `flat_state` does."""
    layout = description.layout
    flat = {s.name: np.zeros(s.elements, s.dtype) for s in description.sections}
    flat[state_section_names.PARAMETERS] = layout.concatenated(
        [
            in_memory_order(value, p, layout)
            for value, p in zip(template.parameters, layout.parameters, strict=True)
        ]
    )
    for index, states in enumerate(stored_states(description, flat)):
        own = template.optimizer_state(index)
        for kind, held in states.items():
            value = state_of(template, index, kind, states)
            if value is not None:
                put_state(f"{template.names[index]}/{kind}", held, value)
        if state_section_names.STEPPED in flat:
            # Without a state nothing tells, nor matters.
            kept = all(own.get(kind) is not None for kind in states)
            flat[state_section_names.STEPPED][index] = kept
    return flat


def _put_beside(
    template: CheckpointTemplate,
    description: Description,
    config: OptimizerConfig,
    flat: dict[str, np.ndarray],
) -> None:
    """Fills in master weights, averages and loss scale. Raises StateError if the file has none of
    these although steps were taken, since they are known from nothing else."""
    begun = template.step == 0
    inner = stepped_layout(config, description.layout)
    masters = tensors_of_section(description, flat, state_section_names.MASTER)
    if masters is not None:
        _fill(masters, masters_in(template, inner) or _first(template, begun, findings.NO_MASTERS))
    averages = tensors_of_section(description, flat, state_section_names.AVERAGE)
    if averages is not None:
        own = averages_in(template)
        _fill(averages, own[0] if own else _first(template, begun, findings.NO_AVERAGES))
        flat[state_section_names.AVERAGED][0] = own[1] if own else 0
    if config.scaler is not None:
        told = scaler_in(template.tree)
        if told is None and not begun:
            raise StateError(findings.NO_LOSS_SCALE())
        scale = config.scaler.init_scale if told is None else told["scale"]
        tracker = 0 if told is None else told["_growth_tracker"]
        flat[state_section_names.SCALER][:] = scale, tracker, template.skipped


def _first(template: CheckpointTemplate, begun: bool, missing: Entry) -> Sequence[torch.Tensor]:
    """The parameters, which masters and averages equal before the first step. Raises StateError
    `missing` after it."""
    if not begun:
        raise StateError(missing())
    return template.parameters


def _fill(own: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(own, values, strict=True):
        tensor.copy_(value.detach())


def state_of(
    template: CheckpointTemplate, index: int, kind: str, states: dict[str, StoredState]
) -> torch.Tensor | float | None:
    """An optimizer state of a parameter; None before the parameter's first step. Raises StateError
    if the file does not hold it although the parameter was stepped."""
    own = template.optimizer_state(index)
    value: Any = own.get(kind)
    if value is not None:
        return value  # type: ignore[no-any-return]
    never = template.step == 0 or (
        all(own.get(name) is None for name in states) and _any_parameter_has(template, kind)
    )
    if not never:
        name = template.names[index]
        raise StateError(findings.STATE_NOT_KEPT(parameter=name, state=kind))
    return None


def _any_parameter_has(template: CheckpointTemplate, kind: str) -> bool:
    """Whether any parameter in the file has a state of this kind. Then a parameter without states
    was never stepped."""
    own = [template.optimizer_state(index) for index in range(len(template.names))]
    return any(states.get(kind) is not None for states in own)


def put_state(name: str, held: StoredState, value: torch.Tensor | float) -> None:
    """Copies a value into the flat array. Raises StateError for another shape or type, which would
    be rounded silently."""
    given = value if isinstance(value, torch.Tensor) else None
    if held.number or given is None:
        if given is not None and given.dim():
            raise StateError(findings.NOT_ONE_NUMBER(tensor=name, shape=given.shape))
        held.tensor.fill_(float(value))
        return
    own = held.tensor
    if given.shape != own.shape or (given.dtype != own.dtype and own.dim()):
        raise StateError(type_or_shape_differs(name, given, own))
    own.copy_(given.detach())


def in_memory_order(tensor: torch.Tensor, parameter: FlatParameter, layout: Layout) -> np.ndarray:
    """[elements] of a tensor in the replica's memory order; bytes if the parameters have several
    dtypes. Raises StateError for another shape or dtype."""
    if tuple(tensor.shape) != tuple(parameter.shape):
        shapes = {"shape": tensor.shape, "own_shape": parameter.shape}
        raise StateError(findings.OTHER_SHAPE(tensor=parameter.name, **shapes))
    flat = tensor.detach().permute(parameter.order).contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if str(tensor.dtype) != f"torch.{layout.dtype_of(parameter)}":
        dtypes = {"dtype": str(tensor.dtype), "own_dtype": layout.dtype_of(parameter)}
        raise StateError(findings.OTHER_DTYPE(tensor=parameter.name, **dtypes))
    return raw.view(layout.numpy_dtype)
