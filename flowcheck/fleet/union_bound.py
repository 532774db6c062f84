"""Gemini's lower bound of the probability that all shards survive (Wang et al., SOSP '23,
Corollary 1)."""

from __future__ import annotations

from fractions import Fraction
from math import comb

from flowcheck.fleet.copy_placement import Placement


def union_bound(placement: Placement, lost: int) -> Fraction | None:
    """1 - W C(N - m, f - m) / C(N, f), and 0 at least: W sets of m holders, and each is among the
    f lost nodes with that probability. Two of them lost together are subtracted twice, so it is
    exact only up to the f at which this cannot be. Corollary 1 has it for groups, W = N / m, and
    the authors' notebook for rings, W = N. None where parts are no copies: it says nothing of
    erasure codes."""
    if placement.redundancy.needed != 1:
        return None
    nodes, parts = placement.nodes, placement.redundancy.parts
    if lost < parts:
        return Fraction(1)
    sets = placement.holder_sets
    covered = Fraction(len(sets) * comb(nodes - parts, lost - parts), comb(nodes, lost))
    return max(Fraction(0), 1 - covered)
