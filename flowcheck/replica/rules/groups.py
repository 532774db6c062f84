"""Which parameters are in which of torch's groups, by names, places or numbers of dimensions."""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase

from flowcheck.config import GroupConfig, OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.replica.layout import Layout, Parameter

KEY = "optimizer.groups.parameters"
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

Group = tuple[tuple[int, ...], GroupConfig | None]
"""Parameters by their place in registration order, and their table; None: [optimizer] itself."""


def grouped(config: OptimizerConfig, layout: Layout) -> list[Group]:
    """Every parameter in one group, in torch's order of groups. Raises ConfigError where a pattern
    names none, or two tables one."""
    every = range(len(layout.parameters))
    if not config.groups:
        return [(tuple(every), None)]
    owner: dict[int, int] = {}
    for number, group in enumerate(config.groups):
        for pattern in group.parameters if group.parameters != REST else ():
            found = [i for i in every if _fits(pattern, i, layout.parameters[i])]
            if not found:
                first = layout.parameters[0].name
                right = f"names no parameter of this model (its first is {first!r})"
                raise ConfigError(KEY, pattern, right)
            for index in found:
                if owner.setdefault(index, number) != number:
                    name = layout.parameters[index].name
                    right = f"{name} is of another table already: each is of one group"
                    raise ConfigError(KEY, pattern, right)
    left = tuple(i for i in every if i not in owner)
    made: list[Group] = []
    for number, group in enumerate(config.groups):
        rest = group.parameters == REST
        own = left if rest else tuple(i for i in every if owner.get(i) == number)
        if own:
            made.append((own, group))
        if rest:
            left = ()
    return [*made, (left, None)] if left else made


def _fits(pattern: str, index: int, parameter: Parameter) -> bool:
    if places := _PLACES.fullmatch(pattern):
        return int(places[1]) <= index <= int(places[2] or places[1])
    if ndim := _NDIM.fullmatch(pattern):
        return bool(_COMPARED[ndim[1]](len(parameter.shape), int(ndim[2])))
    return fnmatchcase(parameter.name, pattern)
