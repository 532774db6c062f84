"""Builds the trainer's torch optimizers over our tensors, from the job file or the script's own
factory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import TORCH_REFUSES
from flowcheck.findings.catalog.refused_user_code import (
    IN_TWO_OPTIMIZERS,
    OPTIMIZER_RETURNED,
    OTHER_TENSORS,
)
from flowcheck.replica.optimizer.optimizer_class import (
    class_of,
    constructor_arguments,
    group_arguments,
)
from flowcheck.replica.optimizer.param_group_patterns import (
    assign_param_groups,
    parameters_of_optimizers,
)
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.user_code import load_callable, user_error_finding

FACTORY = "optimizer.factory"

ParameterNumber = int | tuple[int, int]
"""Number of a parameter in the optimizer's state_dict(); for several optimizers (index of the
optimizer, number)."""


@dataclass(frozen=True, slots=True)
class BuiltOptimizers:
    """torch's optimizers, and the position of each parameter in them."""

    optimizers: tuple[torch.optim.Optimizer, ...]
    """The optimizers in the order in which the script steps them."""
    schedulers: tuple[LRScheduler | None, ...]
    """[optimizer] scheduler that the user's factory returned, which has already set the first
    learning rates; None: none."""
    keys: tuple[str, ...]
    """[optimizer] key of its state in a checkpoint file; (): the file has a list, or there is only
    one optimizer."""
    order: tuple[int, ...]
    """[parameter] its number, counted over all optimizers, each as in state_dict(); -1: it is in
    no group and is never stepped."""
    group_of: tuple[int, ...]
    """[parameter] index of its group, counted over all optimizers; -1: none."""

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The param_groups of all optimizers."""
        return [group for own in self.optimizers for group in own.param_groups]

    @property
    def leaves(self) -> list[torch.Tensor]:
        """[number] tensors that are stepped, in the order of the groups."""
        return [leaf for group in self.groups for leaf in group["params"]]

    def of_group(self, group: int) -> torch.optim.Optimizer:
        """The optimizer of a group."""
        return [own for own in self.optimizers for _ in own.param_groups][group]

    @property
    def of_parameters(self) -> list[torch.optim.Optimizer | None]:
        """[parameter] its optimizer; None: it is in no group."""
        return [self.of_group(group) if group >= 0 else None for group in self.group_of]

    @property
    def parameter_numbers(self) -> tuple[ParameterNumber, ...]:
        """[parameter] its number in a checkpoint file; -1: it has no state there."""
        if len(self.optimizers) == 1:
            return self.order
        counts = [sum(len(g["params"]) for g in own.param_groups) for own in self.optimizers]
        at = [(which, n) for which, count in enumerate(counts) for n in range(count)]
        return tuple(at[number] if number >= 0 else -1 for number in self.order)


def build_optimizer(
    config: OptimizerConfig, layout: Layout, tensors: Sequence[torch.Tensor]
) -> BuiltOptimizers:
    """Builds the job's optimizers over `tensors`, one tensor per parameter of the layout in
    registration order.

    Raises ConfigError for settings that torch refuses, for a factory that fails, and for groups
    that do not match the parameters.
    """
    leaves = [t if isinstance(t, torch.nn.Parameter) else torch.nn.Parameter(t) for t in tensors]
    if config.factory is not None:
        optimizers, schedulers, keys = _from_factory(config, layout, leaves)
    else:
        own = zip(config.per_optimizer, parameters_of_optimizers(config, layout), strict=True)
        optimizers = [_stated(part, layout, leaves, members) for part, members in own]
        schedulers = [None] * len(optimizers)
        keys = tuple(each.key for each in config.each if each.key)
    return BuiltOptimizers(
        tuple(optimizers), tuple(schedulers), keys, *_places(optimizers, layout, leaves)
    )


def _stated(
    part: OptimizerConfig,
    layout: Layout,
    leaves: Sequence[torch.nn.Parameter],
    members: Sequence[int],
) -> torch.optim.Optimizer:
    """members: the parameters of this optimizer."""
    kind, arguments = class_of(part), constructor_arguments(part)
    groups = [
        {"params": [leaves[i] for i in own]}
        | ({} if table is None else group_arguments(part, table))
        for own, table in assign_param_groups(part, layout, members)
    ]
    try:
        return kind(groups, **arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError("optimizer", part.name, TORCH_REFUSES(error)) from error


def _from_factory(
    config: OptimizerConfig, layout: Layout, leaves: Sequence[torch.nn.Parameter]
) -> tuple[list[torch.optim.Optimizer], list[LRScheduler | None], tuple[str, ...]]:
    """(optimizers, [optimizer] scheduler, [optimizer] keys) of the script's own function."""
    assert config.factory is not None
    factory = load_callable(FACTORY, config.factory)
    named = [(p.name, leaf) for p, leaf in zip(layout.parameters, leaves, strict=True)]
    try:
        found: Any = factory(named, **config.factory_arguments)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(FACTORY, config.factory, user_error_finding(error)) from error
    parts = [(key, part) for key, part in _flat(found) if part is not None]
    optimizers = {id(p): (k, p) for k, p in parts if isinstance(p, torch.optim.Optimizer)}
    schedulers = {id(p): p for _, p in parts if isinstance(p, LRScheduler)}
    others = [p for _, p in parts if id(p) not in (optimizers.keys() | schedulers.keys())]
    of: dict[int, LRScheduler] = {id(s.optimizer): s for s in schedulers.values()}
    wrong = others or not optimizers or len(of) < len(schedulers) or of.keys() - optimizers.keys()
    keys = tuple(key for key, _ in optimizers.values() if key)
    if wrong or (keys and len(set(keys)) < len(optimizers)):
        raise ConfigError(FACTORY, config.factory, OPTIMIZER_RETURNED(repr(found)))
    return [p for _, p in optimizers.values()], [of.get(own) for own in optimizers], keys


def _flat(found: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(the key it has in a dictionary, if any, what a factory returned)."""
    if isinstance(found, tuple | list):
        for part in found:
            yield from _flat(part, key)
    elif isinstance(found, dict):
        for own, part in found.items():
            yield from _flat(part, str(own))
    else:
        yield key, found


def _places(
    optimizers: Sequence[torch.optim.Optimizer],
    layout: Layout,
    leaves: Sequence[torch.nn.Parameter],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(order, group_of) as `BuiltOptimizers` has them: Optimizer.state_dict numbers parameters
    group by group (torch/optim/optimizer.py)."""
    at: dict[int, tuple[int, int]] = {}
    number = 0
    for own in optimizers:
        for group in own.param_groups:
            for parameter in group["params"]:
                if id(parameter) in at:
                    index = next(i for i, leaf in enumerate(leaves) if leaf is parameter)
                    raise ConfigError(FACTORY, layout.parameters[index].name, IN_TWO_OPTIMIZERS())
                at[id(parameter)] = (len(at), number)
            number += 1
    known = {id(leaf) for leaf in leaves}
    if at.keys() - known:
        raise ConfigError(FACTORY, "", OTHER_TENSORS())
    places = [at.get(id(leaf), (-1, -1)) for leaf in leaves]
    return tuple(number for number, _ in places), tuple(group for _, group in places)
