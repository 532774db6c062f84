"""Short forms of a layout: `0-15` for nodes, `Ethernet{1-16}/1` for ports."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flowcheck.errors import ConfigError

RANGE = re.compile(r"\{(\d{1,5})-(\d{1,5})(?::(\d{1,5}))?\}", re.ASCII)
"""First, last and, if it is not 1, the stride."""


def numbered(key: str, text: str | None, count: int) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8), all below `count`; None: all of them. Raises ConfigError."""
    if text is None:
        return tuple(range(count))
    found: list[int] = []
    for part in text.split(","):
        told = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        last = int(told[2] or told[1]) if told else 0
        if told is None or last < int(told[1]) or last >= count:
            raise ConfigError(key, text, f"is numbers of nodes, 0 to {count - 1}, such as 0-3,8")
        found += range(int(told[1]), last + 1)
    if len(set(found)) != len(found):
        raise ConfigError(key, text, "names a node twice")
    return tuple(found)


def expanded(key: str, ports: str | Sequence[str], most: int) -> tuple[str, ...]:
    """The names that a range stands for, in order. Raises ConfigError for more than `most`."""
    if not isinstance(ports, str):
        return tuple(ports)
    told = RANGE.search(ports)
    if told is None:
        return (ports,)
    first, last, stride = int(told[1]), int(told[2]), int(told[3] or 1)
    names = range(first, last + 1, stride) if stride else range(0)
    if not 0 < len(names) <= most or RANGE.search(ports, told.end()):
        raise ConfigError(key, ports, f"has one range, of 1 to {most} ports: Ethernet{{1-16}}/1")
    return tuple(f"{ports[: told.start()]}{number}{ports[told.end() :]}" for number in names)
