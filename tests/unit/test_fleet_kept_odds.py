"""How often all shards survive, counted by who was seen to have them: against the plan's count,
which shares no line with it."""

from __future__ import annotations

import pytest

from flowcheck.fleet.copy_placement import Redundancy, Strategy, place
from flowcheck.fleet.kept_odds import survives
from flowcheck.fleet.survival_odds import survival


@pytest.mark.parametrize("strategy", [Strategy.GROUP, Strategy.RING, Strategy.MIXED])
@pytest.mark.parametrize(("nodes", "copies"), [(4, 2), (6, 3), (7, 2), (9, 3), (5, 1)])
def test_it_is_the_plans_where_all_have_what_the_plan_says(
    strategy: Strategy, nodes: int, copies: int
) -> None:
    if strategy is Strategy.GROUP and nodes % copies:
        strategy = Strategy.RING
    made = place(range(nodes), strategy, Redundancy(needed=1, spare=copies - 1))
    names = [f"n{at}" for at in range(nodes)]
    holders = [{names[at] for at in own} for own in made.shards]
    counted = survival(made)
    for lost in range(nodes + 1):
        assert survives(holders, names, lost) == counted.probability(lost)


def test_too_many_sets_are_not_counted() -> None:
    names = [f"n{at}" for at in range(64)]
    assert survives([set(names[:2])], names, 5) is None
    assert survives([set()], names, 1) == 0
