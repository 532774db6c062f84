"""How many pairs are missing at least, whatever is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flowcheck.ops.ports.taps import Tap, Want


class Bound:
    """Each want needs so many taps more by its chunks alone; a tap counts for all it shows. With
    what a tap costs shared out over its wants, and each want at the least such share, no tap's
    shares are more than its cost: a solution of the dual program, so no choice is below."""

    def __init__(self, wants: Sequence[Want], taps: Sequence[Tap]) -> None:
        self.shown = {want.name: [t for t in taps if want.name in t.shows] for want in wants}
        self.price = {
            name: min((len(tap.pairs) / len(tap.shows) for tap in own), default=0.0)
            for name, own in self.shown.items()
        }
        self.widest: dict[tuple[str, int], int] = {}

    def pairs(self, short: Mapping[str, Sequence[int]]) -> int:
        """short: [want][bit] on how many monitors more it has to be seen."""
        total = 0.0
        for name, counts in short.items():
            lacks = sum(1 << bit for bit, count in enumerate(counts) if count)
            if (name, lacks) not in self.widest:
                shown = (tap.shows[name] & lacks for tap in self.shown[name])
                self.widest[name, lacks] = max((bits.bit_count() for bits in shown), default=0)
            taps = max(*counts, -(-sum(counts) // max(self.widest[name, lacks], 1)))
            total += taps * self.price[name]
        return math.ceil(total - 1e-9)
