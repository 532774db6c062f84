"""Which states a large parameter has is told by a small one's, and is what torch makes of it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.optimizer_rules.torch_optimizers import RULES
from flowcheck.replica.optimizer.optimizer_state_shapes import (
    SMALL_ELEMENTS,
    optimizer_state_shapes,
)
from flowcheck.replica.param_layout import Layout

SHAPES = ((SMALL_ELEMENTS + 1,), (1, 700, 800), (128, 64, 7, 9))
PER_ELEMENT = sorted(rule.name for rule in RULES if rule.per_element and rule.computes_steps)
MORE: dict[str, dict[str, float | bool]] = {"sgd": {"momentum": 0.9}, "adam": {"amsgrad": True}}


@pytest.mark.parametrize("name", PER_ELEMENT)
@pytest.mark.parametrize("order", ["contiguous", "permuted"])
def test_states_lie_as_torch_makes_them(name: str, order: str) -> None:
    layout = Layout.of_shapes(SHAPES)
    tensors = []
    parameters = []
    for own in layout.parameters:
        tensor = torch.zeros(own.shape)
        if order == "permuted":
            tensor = torch.zeros(own.shape[::-1]).permute(*reversed(range(len(own.shape))))
        tensors.append(torch.nn.Parameter(tensor))
        parameters.append(msgspec.structs.replace(own, stride=tuple(tensor.stride())))
    layout = msgspec.structs.replace(layout, parameters=tuple(parameters))
    found = optimizer_state_shapes(
        OptimizerConfig(name=name, learning_rate=0.1, **MORE.get(name, {})), layout
    )
    [kind] = [rule.torch_class for rule in RULES if rule.name == name]
    optimizer = getattr(torch.optim, kind)(tensors, lr=0.1, **MORE.get(name, {}))
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    optimizer.step()
    for tensor, own in zip(tensors, found.kinds, strict=True):
        made = optimizer.state[tensor]
        assert sorted(own) == sorted(made)
        for state, shape in own.items():
            assert shape.shape == tuple(made[state].shape), (name, state)
            assert shape.stride == tuple(made[state].stride()), (name, state)
