"""How much of a search one reading may pay for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PURSE = (15_000, 20)
"""Steps of the search, and collectives laid over the sends, at most for a whole capture: so many,
and so many for each send seen. A guess costs as much whether it fits or not."""
HASTY_PURSE = (1_500, 20)
"""Of a reading that is made again as soon as more came. A stream cut off within a collective fits
nothing, and one that is whole so far takes some dozens of steps."""
MOST_S = 30.0
"""CPU time of a search at most: one collective of many channels and loops takes far longer to lay
over the sends than another."""


@dataclass(slots=True)
class Purse:
    """Collectives that one reading may still lay over the sends, all its rings together: where
    much was lost on many connections, a search that ends is worth more than one more tensor."""

    left: int
    until_s: float = float("inf")
    """CPU time of this process at which it is empty, however much is left."""

    def __post_init__(self) -> None:
        """Of hundreds that are filled after the time is up each would pay for a few more."""
        self._look()

    def pays(self) -> bool:
        """One more; False once it is empty."""
        self.left -= 1
        self._look()
        return self.left >= 0

    def _look(self) -> None:
        if time.process_time() > self.until_s:
            self.left = min(self.left, 0)

    @classmethod
    def of(cls, rate: tuple[int, int], sends: int, until_s: float = float("inf")) -> Purse:
        """So many, and so many for each of `sends`."""
        return cls(rate[0] + rate[1] * sends, until_s)

    @classmethod
    def for_sends(cls, count: int, *, hasty: bool = False) -> Purse:
        return cls.of(HASTY_PURSE if hasty else PURSE, count, time.process_time() + MOST_S)


@contextmanager
def share(purse: Purse | None, count: int) -> Iterator[Purse | None]:
    """One of `count` parts of what is left, which pays for what was spent of it: where a guess is
    wrong, its search may never end."""
    if purse is None:
        yield None
        return
    own = Purse(max(0, purse.left // count), purse.until_s)
    given = own.left
    yield own
    purse.left -= given - max(0, own.left)


def pays(purse: Purse | None) -> bool:
    """One more collective is tried; False once the purse is empty."""
    return purse is None or purse.pays()
