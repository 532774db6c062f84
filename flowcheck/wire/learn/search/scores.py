"""What speaks against a reading of one communicator."""

from __future__ import annotations

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.echo import upside_down
from flowcheck.wire.learn.cuts.place import contradictions
from flowcheck.wire.learn.search.evidence import copies_bear_out

UNREAD_COST = 4.0
CONTRADICTION_COST = 50.0
PENALTY_COST = 1.5
"""Weights of what speaks against a reading: a send it leaves unread, a result of which two final
copies differ, a hint of hosts or tags it ignores."""
ADDED_GAIN = 6.0
"""Equal copies of what an added ring step forwards: no reading without it can explain them."""


def plain_score(cuts: Cuts) -> float:
    """What speaks against a reading, by sizes and hints alone."""
    return UNREAD_COST * cuts.unread + cuts.cost + PENALTY_COST * cuts.ring.penalty


def score_of(cuts: Cuts) -> float:
    """What speaks against a reading, content included."""
    # Where gathers and reduce-scatters are still to be told apart, the latter contradict.
    sure = [
        cut
        for cut in cuts.found
        if not cuts.ring.gathers or cut.op.kind is CollectiveKind.ALL_REDUCE
    ]
    against = contradictions(sure, cuts.ring) + upside_down(cuts.found, cuts.ring)
    score = plain_score(cuts) + CONTRADICTION_COST * against
    return score - ADDED_GAIN * copies_bear_out(cuts.ring, cuts.found)


def contradicted(cuts: Cuts) -> bool:
    """Two copies of a result differ, or sums come before their parts."""
    ring = cuts.ring
    return contradictions(cuts.found, ring) + upside_down(cuts.found, ring) > 0


def explains_all(cuts: Cuts) -> bool:
    """Nothing is left unread, and nothing that was read contradicts itself."""
    return not cuts.unread and bool(cuts.found) and not contradicted(cuts)
