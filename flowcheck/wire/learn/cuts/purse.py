"""How much of a search one reading may pay for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PURSE = (15_000, 20)
"""Steps of the search, and collectives laid over the sends, at most for a whole capture: so many,
and so many for each send seen. A guess costs as much whether it fits or not."""
HASTY_PURSE = (1_500, 20)
"""Of a reading that is made again as soon as more came. A stream cut off within a collective fits
nothing, and one that is whole so far takes some dozens of steps."""
MOST_LAID = (4_000_000, 1_000)
"""Sends of all collectives laid over the stream in one reading: so many, and so many for each send
seen. One collective of many channels and loops has thousands of times the sends of another. It is
a count, so that a reading comes to the same end on any machine. A Zen 5 core lays some 200,000 a
second; the generated job that needed most of 137 (16 ranks, 3,988 sends) needed 7.4 million."""


@dataclass(slots=True)
class SendBudget:
    """Sends that one reading may still lay over the stream, all its searches together."""

    left: int
    goes_on: bool = False
    """More of the stream comes, and it is read again then: what a collective would send after the
    last send seen says nothing against it."""

    @classmethod
    def for_sends(cls, count: int, *, goes_on: bool = False) -> SendBudget:
        return cls(MOST_LAID[0] + MOST_LAID[1] * count, goes_on)


@dataclass(slots=True)
class Purse:
    """Collectives that one reading may still lay over the sends, all its rings together: where
    much was lost on many connections, a search that ends is worth more than one more tensor."""

    left: int
    budget: SendBudget | None = None
    """Once it is spent the purse is empty, however much is left; None: there is no such limit."""

    def __post_init__(self) -> None:
        """Of hundreds that are filled after it is spent each would pay for a few more."""
        self._look()

    def pays(self) -> bool:
        """One more; False once it is empty."""
        self.left -= 1
        self._look()
        return self.left >= 0

    def lays(self, sends: int) -> None:
        """A collective of so many sends is laid over the stream."""
        if self.budget is not None:
            self.budget.left -= sends

    def _look(self) -> None:
        if self.budget is not None and self.budget.left <= 0:
            self.left = min(self.left, 0)

    @classmethod
    def of(cls, rate: tuple[int, int], sends: int, budget: SendBudget | None = None) -> Purse:
        """So many, and so many for each of `sends`."""
        return cls(rate[0] + rate[1] * sends, budget)

    @classmethod
    def for_sends(cls, count: int, *, hasty: bool = False) -> Purse:
        budget = SendBudget.for_sends(count, goes_on=hasty)
        return cls.of(HASTY_PURSE if hasty else PURSE, count, budget)


@contextmanager
def share(purse: Purse | None, count: int) -> Iterator[Purse | None]:
    """One of `count` parts of what is left, which pays for what was spent of it: where a guess is
    wrong, its search may never end."""
    if purse is None:
        yield None
        return
    own = Purse(max(0, purse.left // count), purse.budget)
    given = own.left
    yield own
    purse.left -= given - max(0, own.left)


def goes_on(purse: Purse | None) -> bool:
    """As of `SendBudget`."""
    return purse is not None and purse.budget is not None and purse.budget.goes_on


def pays(purse: Purse | None) -> bool:
    """One more collective is tried; False once the purse is empty."""
    return purse is None or purse.pays()
