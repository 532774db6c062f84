"""A trainer's checkpoint as the replica keeps a step: flat arrays in registration order."""

from __future__ import annotations

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.layout import Layout, Parameter, size_of
from flowcheck.replica.rules import optimizers
from flowcheck.vault.template import Template


def flat_state(
    template: Template, layout: Layout, optimizer: OptimizerConfig, *, leaves_out: bool = False
) -> dict[str, np.ndarray]:
    """{section: flat array} as `Replica.sections` has them; leaves_out: see `Replica.create`.

    Raises StateError where a tensor is missing, or of another shape or dtype.
    """
    flat = {
        optimizers.PARAMETERS: layout.assembled(
            [
                in_memory_order(value, p, layout)
                for value, p in zip(template.parameters, layout.parameters, strict=True)
            ]
        )
    }
    for kind in optimizers.state_names(optimizer):
        flat[kind] = layout.assembled(
            [
                in_memory_order(state_of(template, index, kind), p, layout)
                for index, p in enumerate(layout.parameters)
            ]
        )
    if optimizers.counts_steps(optimizer):
        flat[optimizers.STEP_COUNT] = step_counts(template)
    elif leaves_out:
        flat[optimizers.STEPPED] = were_stepped(template, optimizer)
    return flat


def state_of(template: Template, index: int, kind: str) -> torch.Tensor:
    """One optimizer state of one parameter; zeros before its first step. Raises StateError."""
    own = template.states(index)
    value = own.get(kind)
    never = template.step == 0 or (
        all(state is None for state in own.values()) and _kept(template, kind)
    )
    if value is None and never:
        return torch.zeros_like(template.parameters[index])
    if value is None:
        raise StateError(
            f"{template.names[index]}/{kind}: the trainer's optimizer does not keep it"
        )
    return value


def _kept(template: Template, kind: str) -> bool:
    """Some parameter has such a state."""
    own = (template.states(index) for index in range(len(template.names)))
    return any(states.get(kind) is not None for states in own)


def step_counts(template: Template) -> np.ndarray:
    """[parameters] float32: how often each was stepped."""
    states = (template.states(index) for index in range(len(template.names)))
    return np.array([float(state.get("step", 0.0)) for state in states], "<f4")


def were_stepped(template: Template, optimizer: OptimizerConfig) -> np.ndarray:
    """[parameters] float32: 1 where torch keeps a state. Without one nothing tells, nor matters."""
    kinds = optimizers.state_names(optimizer)
    own = (template.states(index) for index in range(len(template.names)))
    return np.array([all(s.get(k) is not None for k in kinds) for s in own], "<f4")


def in_memory_order(tensor: torch.Tensor, parameter: Parameter, layout: Layout) -> np.ndarray:
    """[elements] of one tensor as the replica keeps them; its bytes where parameters are of several
    dtypes. Raises StateError for another shape or dtype."""
    if tuple(tensor.shape) != tuple(parameter.shape):
        raise StateError(
            f"{parameter.name}: {list(tensor.shape)} in the file, {list(parameter.shape)} here"
        )
    flat = tensor.detach().permute(parameter.order).contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if raw.nbytes != parameter.elements * size_of(layout.dtype_of(parameter)):
        raise StateError(f"{parameter.name}: {tensor.dtype} in the file, another dtype here")
    return raw.view(layout.stored_as)
