"""A choice in the making: which taps, on which monitors, and what is seen so far."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.ops.ports.monitors import Monitors
from flowcheck.ops.ports.taps import Pair, Tap, Want

Placed = tuple[tuple[Pair, int], ...]
"""Pairs with the number of the monitor that has their copies."""


Seen = tuple[tuple[int, frozenset[int]], ...]
"""[bit of a want] (on how many monitors it is seen, which)."""


class Partial(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the search."""

    chosen: tuple[tuple[int, frozenset[int]], ...]
    """Taps with their monitors."""
    placed: Placed
    home: dict[str, str]
    """[group] the machine that all its copies end at."""
    banned: frozenset[int]
    """Taps whose every choice was tried under another branch."""
    seen: dict[str, Seen]
    """[want]"""


def seen_on(want: Want, at: Partial, taps: Sequence[Tap], monitors: Monitors) -> Seen:
    """By the monitors of its group's machine. Of taps of several pairs those count that share no
    monitor."""
    machine = at.home.get(want.group)
    seen: Seen = ((0, frozenset()),) * len(want.chunks)
    for number, where in at.chosen:
        ends = {monitors.spots[spot].monitor.machine for spot in where}
        if machine is None or ends == {machine}:
            seen = shown_more(seen, taps[number].shows.get(want.name, 0), where)
    return seen


def shown_more(seen: Seen, bits: int, where: frozenset[int]) -> Seen:
    """With a tap more, that shows these bits on these monitors."""
    if not bits:
        return seen
    return tuple(
        (count + 1, there | where) if bits >> bit & 1 and not there & where else (count, there)
        for bit, (count, there) in enumerate(seen)
    )


def load_of(placed: Placed) -> dict[int, tuple[Pair, ...]]:
    """[monitor] its pairs."""
    found: dict[int, tuple[Pair, ...]] = {}
    for pair, where in placed:
        found[where] = (*found.get(where, ()), pair)
    return found
