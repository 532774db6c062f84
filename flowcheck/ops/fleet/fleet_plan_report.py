"""Prints a plan of a fleet as tables, or returns it as JSON values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table

from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.fleet.planned_fleet import FleetPlan, LossRow
from flowcheck.untrusted_text import printable

HOLDERS_SHOWN = 16
"""Shards whose holders are printed; JSON has all. A choice: what fits on a screen."""
DIGITS = 9
"""After the point, rounded down: what is not certain never shows as 1."""


def as_dict(plan: FleetPlan) -> dict[str, Any]:
    """The plan for JSON: exact probabilities as [numerator, denominator] in text, for they are
    longer than numbers of JSON may be, and beside that as a number."""
    placement, redundancy = plan.placement, plan.placement.redundancy
    return {
        "nodes": list(plan.names),
        "strategy": placement.strategy.value,
        "needed_parts": redundancy.needed,
        "spare_parts": redundancy.spare,
        "any_lost": plan.survival.always,
        "survival": [_row_values(row) for row in plan.rows],
        "domains": [
            msgspec.to_builtins(one) | {"unavoidable": one.unavoidable} for one in plan.domains
        ],
        "shards": [
            {"node": plan.names[one[0]], "holders": [plan.names[node] for node in one]}
            for one in placement.shards
        ],
        "notes": msgspec.to_builtins(plan.notes),
        "assumed": msgspec.to_builtins(plan.assumed),
    }


def _row_values(row: LossRow) -> dict[str, Any]:
    return {"lost": row.lost, "exact": _number(row.exact), "bound": _number(row.bound)}


def _number(value: Fraction | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        "value": float(value),
        "numerator": str(value.numerator),
        "denominator": str(value.denominator),
    }


def print_fleet_plan(plan: FleetPlan) -> None:
    out = SentenceConsole(highlight=False)
    for line in _head(plan):
        out.print(line, markup=False)
    out.print(_survival(plan))
    if plan.domains:
        out.print(_domains(plan))
    out.print(_holders(plan))
    for note in plan.notes:
        out.print_finding(note, "- ")
    for assumed in plan.assumed:
        out.print_finding(assumed, "- assumed: ")


def _head(plan: FleetPlan) -> list[str]:
    placement, redundancy = plan.placement, plan.placement.redundancy
    kept = (
        f"{redundancy.parts} copies of each shard, its own included"
        if redundancy.needed == 1
        else f"each shard in {redundancy.parts} blocks, of which any {redundancy.needed} rebuild it"
    )
    always = plan.survival.always
    some = {0: "No node", 1: "Any one node"}.get(always, f"Any {always:,} nodes together")
    ends = ": every shard survives" if always else " without losing a shard"
    return [
        f"{placement.nodes:,} nodes, {kept}; strategy {placement.strategy.value}",
        f"{some} may be lost{ends}.",
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def decimals(value: Fraction) -> str:
    """Rounded down; 1 and 0 are exact."""
    if value in (0, 1):
        return str(value)
    scaled = value.numerator * 10**DIGITS // value.denominator
    return f"0.{scaled:0{DIGITS}d}" if scaled else f"{float(value):.2e}"


def _survival(plan: FleetPlan) -> Table:
    table = _table(
        "Probability that all shards survive",
        "nodes lost together",
        "exact",
        "Gemini's bound",
        "exact - bound",
    )
    for row in plan.rows:
        bound = ("-", "-")
        if row.bound is not None:
            bound = (decimals(row.bound), decimals(row.exact - row.bound))
        table.add_row(f"{row.lost:,}", decimals(row.exact), *bound)
    return table


def _domains(plan: FleetPlan) -> Table:
    table = _table(
        "Failure domains",
        "kind",
        "domains",
        "may be lost whole",
        "most parts of a shard in one",
        "shards with several in one",
    )
    for one in plan.domains:
        whole = f"any one of {one.survived}" if one.survived == one.domains else f"{one.survived}"
        counts = (one.domains, whole, one.most_parts, one.shards_sharing)
        table.add_row(one.kind, *map(str, counts))
    return table


def _holders(plan: FleetPlan) -> Table:
    shown = plan.placement.shards[:HOLDERS_SHOWN]
    more = len(plan.placement.shards) - len(shown)
    title = "Holders" + (f" (the first {len(shown)} shards; --json has all)" if more else "")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("shard of")
    table.add_column("is held by")
    for one in shown:
        names = [printable(plan.names[node]) for node in one]
        table.add_row(escape(names[0]), escape(", ".join(names)))
    return table
