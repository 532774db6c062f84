"""Which parameters belong to which param_group, by name patterns, index ranges or number of
dimensions."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from flowcheck.config import GroupConfig, OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    IN_NO_TABLE,
    IN_TWO_TABLES,
    NAMES_NO_PARAMETER,
    NO_PARAMETER_LEFT,
)
from flowcheck.replica.param_layout import FlatParameter, Layout

KEY = "optimizer.groups.parameters"
EACH_KEY = "optimizer.each.parameters"
REST = "rest"
_PLACES = re.compile(r"(\d+)(?:-(\d+))?")
_NDIM = re.compile(r"ndim\s*(<=|>=|<|>|=)\s*(\d+)")
_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}

GroupMembers = tuple[tuple[int, ...], GroupConfig | None]
"""(indices of the parameters in registration order, their table in the job file; None: [optimizer]
itself)."""


def assign_param_groups(
    config: OptimizerConfig, layout: Layout, members: Sequence[int]
) -> list[GroupMembers]:
    """The param_groups of one optimizer, in torch's order; each of its parameters is in exactly
    one. members: indices of the optimizer's parameters. Raises ConfigError where a pattern matches
    none of them, or two tables match one."""
    if not config.groups:
        return [(tuple(members), None)]
    owner = _owners(KEY, config.groups, layout, members)
    left = tuple(i for i in members if i not in owner)
    made: list[GroupMembers] = []
    for number, group in enumerate(config.groups):
        rest = group.parameters == REST
        own = left if rest else tuple(i for i in members if owner.get(i) == number)
        if own:
            made.append((own, group))
        if rest:
            left = ()
    return [*made, (left, None)] if left else made


def parameters_of_optimizers(config: OptimizerConfig, layout: Layout) -> list[tuple[int, ...]]:
    """[optimizer] indices of its parameters, for all optimizers of the job. Raises ConfigError as
    `assign_param_groups`, and for a parameter that no optimizer has."""
    every = range(len(layout.parameters))
    if not config.each:
        return [tuple(every)]
    owner = _owners(EACH_KEY, config.each, layout, every)
    rest = [number for number, own in enumerate(config.each) if own.parameters == REST]
    left = [i for i in every if i not in owner]
    if left and not rest:
        raise ConfigError(EACH_KEY, layout.parameters[left[0]].name, IN_NO_TABLE())
    owner.update(dict.fromkeys(left, rest[0] if rest else 0))
    made = [tuple(i for i in every if owner[i] == n) for n in range(len(config.each))]
    if () in made:
        raise ConfigError(EACH_KEY, config.each[made.index(())].name, NO_PARAMETER_LEFT())
    return made


def _owners(
    key: str, tables: Sequence[GroupConfig], layout: Layout, members: Sequence[int]
) -> dict[int, int]:
    """{parameter: its table} of those that patterns name."""
    owner: dict[int, int] = {}
    for number, group in enumerate(tables):
        for pattern in group.parameters if group.parameters != REST else ():
            found = [i for i in members if _fits(pattern, i, layout.parameters[i])]
            if not found:
                first = layout.parameters[members[0]].name
                raise ConfigError(key, pattern, NAMES_NO_PARAMETER(repr(first)))
            for index in found:
                if owner.setdefault(index, number) != number:
                    name = layout.parameters[index].name
                    raise ConfigError(key, pattern, IN_TWO_TABLES(name))
    return owner


def _fits(pattern: str, index: int, parameter: FlatParameter) -> bool:
    if places := _PLACES.fullmatch(pattern):
        return int(places[1]) <= index <= int(places[2] or places[1])
    if ndim := _NDIM.fullmatch(pattern):
        return bool(_COMPARED[ndim[1]](len(parameter.shape), int(ndim[2])))
    return fnmatchcase(parameter.name, pattern)
