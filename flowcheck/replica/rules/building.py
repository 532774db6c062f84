"""The trainer's optimizer over tensors of ours, made as its script makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules.classes import arguments_of, class_of, group_arguments
from flowcheck.replica.rules.groups import grouped
from flowcheck.replica.user_code import callable_at, in_words

FACTORY = "optimizer.factory"
SEVERAL = "returned {} optimizers: one replica follows one"
RETURNS = "returned {!r}: it must return the optimizer, or (optimizer, scheduler)"


@dataclass(frozen=True, slots=True)
class Built:
    """torch's own objects, and where a parameter is in them."""

    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None
    """Of a factory; it has set the first rates already."""
    order: tuple[int, ...]
    """[parameter] its number in state_dict(); -1: it is in no group and never steps."""
    group_of: tuple[int, ...]
    """[parameter] its group; -1: none."""


def build(config: OptimizerConfig, layout: Layout, tensors: Sequence[torch.Tensor]) -> Built:
    """The optimizer over `tensors`, one for each parameter of the layout, in registration order.

    Raises ConfigError for settings that torch refuses, a factory that does not work out, and
    groups that do not fit the parameters.
    """
    leaves = [t if isinstance(t, torch.nn.Parameter) else torch.nn.Parameter(t) for t in tensors]
    scheduler = None
    if config.factory is not None:
        optimizer, scheduler = _made(config, layout, leaves)
    else:
        kind, arguments = class_of(config), arguments_of(config)
        groups = [
            {"params": [leaves[i] for i in own]}
            | ({} if table is None else group_arguments(config, table))
            for own, table in grouped(config, layout)
        ]
        try:
            optimizer = kind(groups, **arguments)
        except (ValueError, TypeError, RuntimeError) as error:
            right = f"torch refuses these settings: {error}"
            raise ConfigError("optimizer", config.name, right) from error
    return Built(optimizer, scheduler, *_places(optimizer, leaves))


def _made(
    config: OptimizerConfig, layout: Layout, leaves: Sequence[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    assert config.factory is not None
    factory = callable_at(FACTORY, config.factory)
    named = [(p.name, leaf) for p, leaf in zip(layout.parameters, leaves, strict=True)]
    try:
        found: Any = factory(named, **config.factory_arguments)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(FACTORY, config.factory, in_words(error)) from error
    parts = list(found) if isinstance(found, tuple | list) else [found]
    optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
    schedulers = [part for part in parts if isinstance(part, LRScheduler)]
    known = len(optimizers) + len(schedulers) + sum(part is None for part in parts)
    if len(optimizers) > 1:
        raise ConfigError(FACTORY, config.factory, SEVERAL.format(len(optimizers)))
    if not optimizers or len(schedulers) > 1 or known < len(parts):
        raise ConfigError(FACTORY, config.factory, RETURNS.format(found))
    return optimizers[0], schedulers[0] if schedulers else None


def _places(
    optimizer: torch.optim.Optimizer, leaves: Sequence[torch.nn.Parameter]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(order, group_of) as `Built` has them: Optimizer.state_dict numbers parameters group by
    group (torch/optim/optimizer.py)."""
    at: dict[int, tuple[int, int]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            at[id(parameter)] = (len(at), number)
    known = {id(leaf) for leaf in leaves}
    if at.keys() - known:
        right = "its optimizer holds tensors that are not those it was given"
        raise ConfigError(FACTORY, "", right)
    places = [at.get(id(leaf), (-1, -1)) for leaf in leaves]
    return tuple(number for number, _ in places), tuple(group for _, group in places)
