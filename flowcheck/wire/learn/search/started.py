"""Which of many rings a start-up bears out, before any is searched to its end.

Where hosts and tags mislead, the right ring is one guess among hundreds, and each of the others may
lose itself in broadcasts of any size. A count of parameters, their shapes, as many weights and a
bucket of as many gradients, one behind the other, are what no wrong ring shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.learn.cuts.cut import Purse, cut_stream
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.grammar import Trainer

MOST_STEPS = 24
MOST_TRIED = 80
"""Steps of the search, and collectives laid over the sends, for the first few of them."""
SHARE = 2
"""One of so many parts of what may be spent goes into looking for them."""


def starting_up(guesses: Sequence[Ring], purse: Purse | None) -> list[Ring]:
    """Those of the guesses that a trainer's start-up bears out, in the order given; where that is
    the first one of all, no other is asked."""
    until_s = float("inf") if purse is None else purse.until_s
    if not guesses or _begins(guesses[0], Purse(MOST_TRIED, until_s)):
        return list(guesses[:1])
    least = 0 if purse is None else purse.left - purse.left // SHARE
    begun: list[Ring] = []
    for ring in guesses[1:]:
        left = Purse(MOST_TRIED, until_s)
        if purse is not None and purse.left <= least:
            break
        if _begins(ring, left):
            begun.append(ring)
        if purse is not None:
            purse.left -= MOST_TRIED - max(left.left, 0)
    return begun


def _begins(ring: Ring, purse: Purse) -> bool:
    trainer = Trainer()
    cuts = cut_stream(ring, trainer, effort=(MOST_STEPS, 0), purse=purse, in_order=True)
    return bool(trainer.habits(ring, cuts.found).reduced)
