"""Checks that a script's own optimizer keeps everything in its state: no unseeded randomness,
no hidden state.

Two optimizers take the same steps over made-up numbers: one without a break, one that begins anew
with the other's state, as a replica does.

torch's own classes need no such trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import HIDDEN_STATE, UNSEEDED_STEP
from flowcheck.replica.optimizer.optimizer_builder import FACTORY, BuiltOptimizers, build_optimizer
from flowcheck.replica.param_layout import Layout
from flowcheck.step_numbers import Step

ELEMENTS = 1 << 16
"""Elements: the parameter nearest to so many is stepped in the trial. A choice: few show no
randomness, many take long."""
RATE = 0.01
"""Learning rate in place of one that is 0, under which nothing moves. A choice: any other number
would do."""

State = list[tuple[torch.Tensor, dict[str, Any]]]


def check_determinism(config: OptimizerConfig, layout: Layout) -> None:
    """layout: of what is stepped. Raises ConfigError for a factory's optimizer that cannot be
    followed, and as `build_optimizer`."""
    if config.factory is None:
        return
    with torch.random.fork_rng(devices=()):
        _check(config, layout)


def _check(config: OptimizerConfig, layout: Layout) -> None:
    chosen = _chosen(config, layout)
    first = _begun(config, layout, chosen, seed=1)
    again = _begun(config, layout, chosen, seed=2)
    _step(first, chosen, Step(1))
    _step(again, chosen, Step(1))
    if not _equal(_state(first, chosen), _state(again, chosen)):
        raise ConfigError(FACTORY, config.factory, UNSEEDED_STEP())
    anew = _begun(config, layout, chosen, seed=3)
    _go_on(anew, chosen, _state(first, chosen))
    _step(first, chosen, Step(2))
    _step(anew, chosen, Step(2))
    if not _equal(_state(first, chosen), _state(anew, chosen)):
        raise ConfigError(FACTORY, config.factory, HIDDEN_STATE())


def _chosen(config: OptimizerConfig, layout: Layout) -> list[int]:
    """A parameter of each group."""
    built = build_optimizer(
        config, layout, [_stand_in(layout, i) for i in range(len(layout.parameters))]
    )
    members: dict[int, list[int]] = {}
    for index, group in enumerate(built.group_of):
        if group >= 0 and layout.parameters[index].elements:
            members.setdefault(group, []).append(index)

    def far(index: int) -> tuple[bool, int]:
        elements = layout.parameters[index].elements
        return elements > ELEMENTS, abs(ELEMENTS - elements)

    return sorted(min(own, key=far) for own in members.values())


def _stand_in(layout: Layout, index: int) -> torch.Tensor:
    """In the parameter's shape, without its memory."""
    p = layout.parameters[index]
    one = torch.zeros(1, dtype=getattr(torch, layout.dtype_of(p)))
    return one.expand(p.shape) if p.shape else one[0].clone()


def _begun(
    config: OptimizerConfig, layout: Layout, chosen: Sequence[int], *, seed: int
) -> BuiltOptimizers:
    """seed: of what a step would draw from torch's own generator, which the trainer's has drawn
    otherwise from."""
    values = {i: _numbers(layout, i, Step(0)) for i in chosen}
    tensors = [values.get(i, _stand_in(layout, i)) for i in range(len(layout.parameters))]
    built = build_optimizer(config, layout, tensors)
    for group in built.groups:
        if not float(group["lr"]):
            group["lr"] = RATE
    torch.manual_seed(seed)
    return built


def _numbers(layout: Layout, index: int, step: Step) -> torch.Tensor:
    p = layout.parameters[index]
    generator = torch.Generator().manual_seed(1000 * step + index)
    flat = torch.randn(p.elements, generator=generator)
    return torch.as_strided(flat.to(getattr(torch, layout.dtype_of(p))), p.shape, p.stride)


def _step(built: BuiltOptimizers, chosen: Sequence[int], step: Step) -> None:
    leaves = built.leaves
    for index in chosen:
        leaf = leaves[built.order[index]]
        generator = torch.Generator().manual_seed(1000 * step + index)
        random = torch.randn(leaf.shape, generator=generator)
        leaf.grad = torch.empty_like(leaf).copy_(random)
    for optimizer in built.optimizers:
        optimizer.step()


def _state(built: BuiltOptimizers, chosen: Sequence[int]) -> State:
    leaves, of = built.leaves, built.of_parameters
    found = []
    for index in chosen:
        leaf, own = leaves[built.order[index]], of[index]
        held: Mapping[str, Any] = own.state.get(leaf, {}) if own is not None else {}
        copies = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in held.items()}
        found.append((leaf.detach().clone(), copies))
    return found


def _go_on(built: BuiltOptimizers, chosen: Sequence[int], state: State) -> None:
    leaves, of = built.leaves, built.of_parameters
    for index, (value, held) in zip(chosen, state, strict=True):
        leaf, own = leaves[built.order[index]], of[index]
        with torch.no_grad():
            leaf.copy_(value)
        if own is not None:
            own.state[leaf] = held


def _equal(one: State, other: State) -> bool:
    for (a, states), (b, others) in zip(one, other, strict=True):
        if states.keys() != others.keys() or not _same(a, b):
            return False
        if not all(_same(states[name], others[name]) for name in states):
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    raw = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(*raw)
