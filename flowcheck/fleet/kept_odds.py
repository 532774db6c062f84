"""With how many sets of lost nodes every shard is still there, by who was seen to have it: counted
one set after the other, for fleets whose copies are not where a plan has them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from fractions import Fraction
from math import comb

SETS_MAX = 100_000
"""Most sets of so many lost nodes that are counted. A choice: a tenth of a second."""


def survives(
    holders: Sequence[Collection[str]], nodes: Sequence[str], lost: int
) -> Fraction | None:
    """Of all sets of `lost` nodes, each as likely as another, the share that leaves a holder of
    each shard. holders: [shard] its nodes. None: there are too many sets to count."""
    if comb(len(nodes), lost) > SETS_MAX:
        return None
    bit = {node: 1 << at for at, node in enumerate(nodes)}
    kept = [sum({bit[node] for node in own}) for own in holders]
    sets = itertools.combinations(bit.values(), lost)
    left = sum(all(own & ~sum(gone) for own in kept) for gone in sets)
    return Fraction(left, comb(len(nodes), lost))
