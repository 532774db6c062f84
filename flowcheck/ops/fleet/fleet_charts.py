"""Charts of a plan of a fleet, and of Gemini's figures 9, 11 and 14."""

from __future__ import annotations

from fractions import Fraction

from flowcheck.fleet.copy_placement import Strategy
from flowcheck.fleet.gemini_figures import (
    FIGURE_9_NODES,
    FIGURE_11_NICS,
    LOST_MINUTES,
    figure_9,
    figure_11,
    figure_14,
    figure_14b,
)
from flowcheck.fleet.union_bound import union_bound
from flowcheck.ops.fleet.line_chart import Chart
from flowcheck.ops.fleet.planned_fleet import FleetPlan

Points = tuple[tuple[float, float], ...]


def plan_chart(plan: FleetPlan) -> Chart:
    """Probability that all shards survive, over the nodes lost, to where none does."""
    counted, placement = plan.survival, plan.placement
    exact = tuple((float(f), float(counted.probability(f))) for f in range(counted.never + 1))
    curves: list[tuple[str, Points]] = [("exact", exact)]
    bounds = [(f, union_bound(placement, f)) for f in range(counted.never + 1)]
    bound = tuple((float(f), float(value)) for f, value in bounds if value is not None)
    if bound:
        curves.append(("Gemini's bound", bound))
    return Chart(
        title=f"All shards survive: {placement.nodes:,} nodes, {placement.strategy.value}, "
        f"{placement.redundancy.parts} parts of a shard",
        axis="nodes lost together",
        curves=tuple(curves),
    )


def gemini_charts() -> list[Chart]:
    """Figures 9 (for 2 and 3 lost, with what is exact), 11, 14a and 14b."""
    return [
        *(_chart_9(lost) for lost in (2, 3)),
        _chart_11(),
        Chart(
            title="Figure 14a: effective training time",
            axis="failures a day",
            curves=tuple(
                (name, _points({n: figure_14(name, Fraction(n)) for n in range(1, 9)}))
                for name in LOST_MINUTES
            ),
        ),
        Chart(
            title="Figure 14b: effective training time, 1.5 % of machines fail a day",
            axis="machines",
            curves=tuple(
                (name, _points({n: figure_14b(name, n) for n in range(200, 1001, 100)}))
                for name in LOST_MINUTES
            ),
        ),
    ]


def _points(values: dict[int, Fraction]) -> Points:
    return tuple((float(x), float(y)) for x, y in values.items())


def _chart_9(lost: int) -> Chart:
    curves: list[tuple[str, Points]] = []
    for strategy in (Strategy.GROUP, Strategy.RING):
        both = {nodes: figure_9(strategy, nodes, lost) for nodes in FIGURE_9_NODES}
        for at, what in enumerate(("bound", "exact")):
            points = _points({nodes: value[at] for nodes, value in both.items()})
            curves.append((f"{strategy.value}, {what}", points))
    return Chart(
        title=f"Figure 9: recovery from memory, 2 copies, {lost} nodes lost",
        axis="nodes",
        curves=tuple(curves),
    )


def _chart_11() -> Chart:
    curves = tuple(
        (f"{nic} Gb/s", _points({nodes: figure_11(nic, nodes) for nodes in (4, 8, 12, 16)}))
        for nic in FIGURE_11_NICS
    )
    return Chart(
        title="Figure 11: factor by which a checkpoint takes less time",
        axis="nodes",
        curves=curves,
        top=300,
    )
