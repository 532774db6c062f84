"""Figures 9, 11 and 14 of Gemini (Wang et al., SOSP '23) from the formulas and inputs of the
notebook of its artefact (AE_figures.ipynb), as fractions."""

from __future__ import annotations

from fractions import Fraction

from flowcheck.fleet.copy_placement import Redundancy, Strategy, place
from flowcheck.fleet.survival_odds import survival
from flowcheck.fleet.union_bound import union_bound

FIGURE_9_NODES = tuple(range(16, 128, 2))
"""The notebook takes each size to 127; groups of 2 exist at even ones."""
FIGURE_11_NICS = (100, 200, 400)
"""Gb/s."""
STORE_GBPS = 20
"""Of the remote store, for all nodes together."""
NIC_SHARE = Fraction(85, 100)
"""Share of the NIC's rate that copies get."""
DAY_MINUTES = 1440
FAILED_DAILY = Fraction(15, 1000)
"""Share of the machines that fail on a day, of figure 14b."""
GEMINI, STRAWMAN, HIGH_FREQUENCY = "Gemini", "Strawman", "HighFreq"
LOST_MINUTES = {GEMINI: Fraction(9), STRAWMAN: Fraction(112), HIGH_FREQUENCY: Fraction(26)}
"""{system: training lost by a failure}: Strawman's has two checkpoints of 8 minutes, 90 of repeated
work and 6 of restart; HighFreq's two and a half of 8, and 6."""
UNFAILED = {GEMINI: Fraction(1), STRAWMAN: Fraction(1), HIGH_FREQUENCY: Fraction(480, 560)}
"""{system: effective share of a day without failure}."""


def figure_9(strategy: Strategy, nodes: int, lost: int) -> tuple[Fraction, Fraction]:
    """(Gemini's bound, exact) probability of recovery from CPU memory, with two copies."""
    placement = place(range(nodes), strategy, Redundancy(needed=1, spare=1))
    bound = union_bound(placement, lost)
    assert bound is not None, "of copies there is one"
    return bound, survival(placement).probability(lost)


def figure_11(nic_gbps: int, nodes: int, copies: int = 2) -> Fraction:
    """By which factor a checkpoint takes less time to peers than to the store. Raises
    ZeroDivisionError with one copy, which is not sent."""
    return nic_gbps * NIC_SHARE / Fraction(STORE_GBPS, nodes) / (copies - 1)


def figure_14(system: str, failures: Fraction) -> Fraction:
    """Effective share of training time with so many failures a day; 0 at least."""
    return max(Fraction(0), UNFAILED[system] - failures * LOST_MINUTES[system] / DAY_MINUTES)


def figure_14b(system: str, machines: int) -> Fraction:
    """The same with so many machines."""
    return figure_14(system, machines * FAILED_DAILY)
