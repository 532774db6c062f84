"""The states that an optimizer keeps for each parameter (dtype, shape), found by a trial step of
torch on stand-in tensors. The step runs on the meta device where the optimizer's rule allows it,
else on one parameter at a time, so that no second copy of the model is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import STATE_TYPE, TORCH_REFUSES
from flowcheck.optimizer_rules.torch_optimizers import rule_named
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.param_layout import FlatParameter, Layout
from flowcheck.replica.torch_without_compiler import step_without_compiler
from flowcheck.replica.user_code import user_error_text

NUMBERS: dict[type, str] = {bool: "bool", int: "int", float: "float"}
"""Python number types that some optimizers use for counters, with their names."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One state of one parameter: a tensor, or a Python number (then shape is ())."""

    dtype: str
    """torch's dtype name without the prefix, or a name of NUMBERS."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OptimizerStateShapes:
    """The states of all parameters."""

    kinds: tuple[dict[str, StateShape], ...]
    """[parameter] {torch's name of the state: its shape}, in the order in which torch creates
    them; {}: no state, or in no group."""
    exists_before_first_step: bool
    """True: the optimizer creates its states before the first step (Adagrad)."""


def optimizer_state_shapes(config: OptimizerConfig, layout: Layout) -> OptimizerStateShapes:
    """The states that the job's optimizer keeps. layout: of the tensors that the optimizer steps.
    Raises ConfigError for settings that torch refuses, at construction or in the first step, and
    for states of an unsupported type."""
    return _states_of(_Keyed(config, layout))


class _Keyed:
    """Settings hold dictionaries, which cannot be looked up by."""

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        self.config, self.layout = config, layout
        self._text = repr(config)

    def __hash__(self) -> int:
        return hash((self._text, self.layout))

    def __eq__(self, other: object) -> bool:
        own = isinstance(other, _Keyed) and self._text == other._text
        return own and isinstance(other, _Keyed) and self.layout == other.layout


@lru_cache(maxsize=64)
def _states_of(keyed: _Keyed) -> OptimizerStateShapes:
    config, layout = keyed.config, keyed.layout
    if not config.computes_steps:
        return OptimizerStateShapes(tuple({} for _ in layout.parameters), False)
    tensors = [_like(p, layout, torch.empty, "meta") for p in layout.parameters]
    try:
        built = build_optimizer(config, layout, tensors)
    except ConfigError:  # fused kernels know no meta device
        tensors = [_flat(p, layout) for p in layout.parameters]
        built = build_optimizer(config, layout, tensors)
    leaves, of = built.leaves, built.of_parameters
    eager = any(own.state for own in built.optimizers)
    groups = built.groups
    kinds: list[dict[str, StateShape]] = [{} for _ in layout.parameters]
    known: dict[object, dict[str, StateShape]] = {}
    for index, p in enumerate(layout.parameters):
        if built.order[index] < 0:
            continue
        group = built.group_of[index]
        key = (group, p.shape, p.stride, layout.dtype_of(p))
        if key not in known:
            own = of[index]
            assert own is not None
            held = own.state.get(leaves[built.order[index]])
            known[key] = _made(held, p) if held else _stepped(own, groups[group], p, layout)
        kinds[index] = known[key]
    return OptimizerStateShapes(tuple(kinds), eager)


SMALL_ELEMENTS = 1 << 18
"""Elements up to which a real step on CPU tensors is tried first, since torch loads its compiler
for meta tensors. A choice: a real step on more elements costs time and memory."""


def _stepped(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: FlatParameter,
    layout: Layout,
) -> dict[str, StateShape]:
    """The states of one parameter after a step of its group alone."""
    large = parameter.elements > SMALL_ELEMENTS
    if large and (known := _by_small_one(optimizer, group, parameter, layout)) is not None:
        return known
    failed: Exception | None = None
    ways = ((torch.empty, "meta"), (torch.zeros, "cpu"))
    for make, device in ways if large else reversed(ways):
        try:
            return _after_step(optimizer, group, parameter, layout, make, device)
        except Exception as error:  # what a rule cannot do to tensors without values, or at all
            failed = error
    assert failed is not None
    right = TORCH_REFUSES(user_error_text(failed))
    raise ConfigError("optimizer", type(optimizer).__name__, right) from failed


def _after_step(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: FlatParameter,
    layout: Layout,
    make: Callable[..., torch.Tensor],
    device: str,
) -> dict[str, StateShape]:
    """The states of a stand-in for the parameter. Raises what torch or the rule does."""
    leaf = torch.nn.Parameter(_like(parameter, layout, make, device))
    leaf.grad = _like(parameter, layout, make, device)
    for own in optimizer.param_groups:
        own["params"] = [leaf] if own is group else []
    optimizer.state.clear()
    step_without_compiler(optimizer)
    return _kinds(optimizer.state[leaf])


SMALL_SIZE = 3
"""Size of each dimension of a small stand-in tensor. A choice: no dimension of 1, which torch
treats specially."""


def _by_small_one(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: FlatParameter,
    layout: Layout,
) -> dict[str, StateShape] | None:
    """By the states of a small parameter of the same number of dimensions, which lie in memory in
    the same order: of a class of torch.optim that steps each element by itself its states are as
    the parameter is, or numbers. None: it is another class, or a state is neither."""
    kind = type(optimizer)
    plain = kind.__module__.startswith("torch.optim.") and rule_named(kind.__name__.lower())
    if not plain or not plain.per_element or kind.__name__ != plain.torch_class:
        return None
    sizes = [min(size, SMALL_SIZE) for size in parameter.shape]
    stride, dense = [0] * len(sizes), 1
    for axis in reversed(parameter.order):
        stride[axis], dense = dense, dense * sizes[axis]
    small = msgspec.structs.replace(parameter, shape=tuple(sizes), stride=tuple(stride))
    try:
        found = _after_step(optimizer, group, small, layout, torch.zeros, "cpu")
    except Exception:  # told of the parameter itself
        return None
    told: dict[str, StateShape] = {}
    for name, state in found.items():
        if state.shape == small.shape and state.stride == small.stride:
            told[name] = replace(state, shape=parameter.shape, stride=parameter.stride)
        elif not state.shape:
            told[name] = state
        else:
            return None
    return told


def _made(state: dict[str, Any], parameter: FlatParameter) -> dict[str, StateShape]:
    """Of one that was made with the optimizer: it lies as the parameter does."""
    own = _kinds(state)
    return {
        name: replace(kind, stride=parameter.stride) if kind.shape == parameter.shape else kind
        for name, kind in own.items()
    }


def _kinds(state: dict[str, Any]) -> dict[str, StateShape]:
    found: dict[str, StateShape] = {}
    for name, value in state.items():
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            found[name] = StateShape(dtype, tuple(value.shape), tuple(value.stride()))
        elif type(value) in NUMBERS:
            found[name] = StateShape(NUMBERS[type(value)])
        else:
            raise ConfigError("optimizer", "", STATE_TYPE(state=name, type=type(value).__name__))
    return found


def _like(
    parameter: FlatParameter, layout: Layout, make: Callable[..., torch.Tensor], device: str
) -> torch.Tensor:
    dtype = getattr(torch, layout.dtype_of(parameter))
    flat = make(parameter.elements, dtype=dtype, device=device)
    return torch.as_strided(flat, parameter.shape, parameter.stride)


def _flat(parameter: FlatParameter, layout: Layout) -> torch.Tensor:
    """In the parameter's shape, without its memory."""
    one = torch.zeros(1, dtype=getattr(torch, layout.dtype_of(parameter)))
    return one.expand(parameter.shape) if parameter.shape else one[0].clone()
