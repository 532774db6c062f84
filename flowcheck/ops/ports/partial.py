"""A choice in the making: which taps, on which monitors, and what is seen so far."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.ops.ports.monitors import Monitors
from flowcheck.ops.ports.taps import Pair, Tap, Want

Placed = tuple[tuple[Pair, int], ...]
"""Pairs with the number of the monitor that has their copies."""


class Partial(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the search."""

    chosen: tuple[tuple[int, frozenset[int]], ...]
    """Taps with their monitors."""
    placed: Placed
    home: dict[str, str]
    """[group] the machine that all its copies end at."""
    banned: frozenset[int]
    """Taps whose every choice was tried under another branch."""


def seen_on(
    want: Want, at: Partial, taps: Sequence[Tap], monitors: Monitors
) -> list[tuple[int, frozenset[int]]]:
    """[bit of the want] (how many monitors of the group's machine see it, which). Of taps of
    several pairs those count that share no monitor."""
    machine = at.home.get(want.group)
    seen: list[tuple[int, frozenset[int]]] = [(0, frozenset())] * len(want.chunks)
    for number, where in at.chosen:
        bits = taps[number].shows.get(want.name, 0)
        ends = {monitors.spots[spot].monitor.machine for spot in where}
        if not bits or (machine is not None and ends != {machine}):
            continue
        for bit, (count, there) in enumerate(seen):
            if bits >> bit & 1 and not there & where:
                seen[bit] = (count + 1, there | where)
    return seen


def load_of(placed: Placed) -> dict[int, tuple[Pair, ...]]:
    """[monitor] its pairs."""
    found: dict[int, tuple[Pair, ...]] = {}
    for pair, where in placed:
        found[where] = (*found.get(where, ()), pair)
    return found
