"""Prints the chosen ports as tables, or returns them as JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from flowcheck.ops.console_output import SentenceConsole, printable
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan
from flowcheck.ops.mirror_ports.traffic_and_memory_estimate import MirrorLoad
from flowcheck.ops.planning.memory_estimate import memory_json

DIRECTIONS = "Directions are the switch's: rx is what the switch receives from a server."
NO_SYSTEM = (
    "no commands for it, because its operating system is not stated: set os in its [[switch]] "
    "table, or give --os (`flowcheck switch list` shows the names)"
)
MOST_RINGS = 4
"""Groups that a line lists. A choice of layout."""
PIPED_COLUMNS = 400
"""Columns of a line when the output is not a terminal. A choice of layout."""
UNWRAPPED_COLUMNS = ("port:direction", "monitor", "to")


def print_mirror_plan(chosen: MirrorPlan) -> None:
    """Prints tables and sentences on stdout."""
    out = SentenceConsole(highlight=False, soft_wrap=True, markup=False)
    for sentence in plan_sentences(chosen):
        out.print(printable(sentence))
    # As wide as they are: in fewer columns whole cells would be left out.
    wide = SentenceConsole(highlight=False, soft_wrap=True, markup=False, width=PIPED_COLUMNS)
    wide.print(_pairs(chosen))
    wide.print(_monitors(chosen))
    for line in _machines(chosen):
        out.print(printable(line))
    for command in chosen.commands:
        out.print(printable(f"{command.switch} ({command.os}), copies to {command.monitor}:"))
        out.print(printable(command.render))
        if command.apply is not None:
            out.print(printable(f"or have FlowCheck do it: {command.apply}"))
    if unnamed := switches_without_os(chosen):
        out.print(printable(f"{', '.join(unnamed)}: {NO_SYSTEM}"))
    for told in chosen.assumed:
        out.print_finding(told, "assumed: ")


def switches_without_os(chosen: MirrorPlan) -> list[str]:
    """Switches of chosen ports whose operating system is unknown, so that no commands can be
    printed."""
    spots = [chosen.monitors.monitor_ports[number] for number in chosen.need.monitors]
    return list(dict.fromkeys(spot.monitor.switch for spot in spots if spot.os is None))


def plan_sentences(chosen: MirrorPlan) -> Iterator[str]:
    """The result in sentences."""
    count, rings = len(chosen.choice.placed), len(chosen.coverage_problem.goals)
    r = chosen.redundancy
    seen = "once" if r == 1 else f"on {r} monitor ports"
    yield f"{count} pairs of port and direction show every chunk of {rings} rings {seen}."
    if chosen.choice.exact:
        yield "No choice has fewer."
    else:
        yield (
            f"Chosen greedily: {chosen.choice.least} is the least there could be, so at most "
            f"{chosen.choice.gap} fewer."
        )
    yield DIRECTIONS
    yield from map(str, chosen.notes)


def as_dict(chosen: MirrorPlan) -> dict[str, Any]:
    """The result for --json."""
    spots = chosen.monitors.monitor_ports
    pairs = [
        {
            "switch": pair.switch,
            "port": pair.port,
            "direction": str(pair.direction),
            "is": pair.description,
            "node": pair.node,
            "nic": pair.nic,
            "rings": chosen.rings_on(pair),
            "monitor": spots[where].monitor.label,
            "machine": spots[where].monitor.machine,
            **_flow(chosen.need.pairs[pair]),
        }
        for pair, where in chosen.choice.placed
    ]
    monitors = [
        {
            "switch": spots[number].monitor.switch,
            "monitor": spots[number].monitor.label,
            "machine": spots[number].monitor.machine,
            "gbps": spots[number].monitor.gbps,
            **_flow(flow),
        }
        for number, flow in chosen.need.monitors.items()
    ]
    machines = [
        {
            "machine": machine,
            **_flow(flow),
            "groups": [
                group for group, home in chosen.choice.machine_of_group.items() if home == machine
            ],
            "memory": memory_json(chosen.need.memory.get(machine, ())),
            "memory_bytes": sum(p.bytes for p in chosen.need.memory.get(machine, ())) or None,
        }
        for machine, flow in chosen.need.machines.items()
    ]
    return {
        "redundancy": chosen.redundancy,
        "least": chosen.choice.least,
        "exact": chosen.choice.exact,
        "gap": chosen.choice.gap,
        "pairs": pairs,
        "monitors": monitors,
        "machines": machines,
        "rings": [
            _ring(chosen, name)
            for name in dict.fromkeys(w.name for w in chosen.coverage_problem.goals)
        ],
        "commands": msgspec.to_builtins(chosen.commands),
        "notes": msgspec.to_builtins(chosen.notes),
        "assumed": msgspec.to_builtins(chosen.assumed),
    }


def _ring(chosen: MirrorPlan, name: str) -> dict[str, Any]:
    own = next((ring for ring in chosen.rings if ring.name == name), None)
    links = [] if own is None else own.links
    return {
        "ring": name,
        "nodes": [link.out_of for link in links],
        "assumed": chosen.order_assumed,
        "ports": [f"{p.switch} {p.port}:{p.direction}" for p in chosen.pairs_of(name)],
    }


def _flow(flow: MirrorLoad) -> dict[str, float | None]:
    return {
        "line_gbps": flow.line_gbps,
        "mean_gbps": None if flow.mean_gbps is None else round(flow.mean_gbps, 4),
        "frames_per_s": None if flow.frames_per_s is None else round(flow.frames_per_s, 1),
    }


def _table(title: str, *columns: tuple[str, bool]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in columns:
        whole = right or name in UNWRAPPED_COLUMNS
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _pairs(chosen: MirrorPlan) -> Table:
    table = _table(
        "Mirror",
        ("switch", False),
        ("port:direction", False),
        ("of", False),
        ("rings", True),
        ("to", False),
        ("Gb/s", True),
        ("mean", True),
    )
    for pair, where in chosen.choice.placed:
        flow = chosen.need.pairs[pair]
        _row(
            table,
            pair.switch,
            f"{pair.port}:{pair.direction}",
            f"node {pair.node} NIC {pair.nic}",
            str(len(chosen.rings_on(pair))),
            chosen.monitors.monitor_ports[where].monitor.label,
            f"{flow.line_gbps:g}",
            _mean(flow),
        )
    return table


def _monitors(chosen: MirrorPlan) -> Table:
    table = _table(
        "Monitor ports",
        ("switch", False),
        ("monitor", False),
        ("machine", False),
        ("sources Gb/s", True),
        ("of", True),
        ("mean", True),
        ("frames/s", True),
    )
    for number, flow in chosen.need.monitors.items():
        spot = chosen.monitors.monitor_ports[number]
        frames = "-" if flow.frames_per_s is None else f"{flow.frames_per_s:,.0f}"
        _row(
            table,
            spot.monitor.switch,
            spot.monitor.label,
            spot.monitor.machine,
            f"{flow.line_gbps:.4g}",
            f"{spot.monitor.gbps:g}",
            _mean(flow),
            frames,
        )
    return table


def _mean(flow: MirrorLoad) -> str:
    return "-" if flow.mean_gbps is None else f"{flow.mean_gbps:.3g}"


def _machines(chosen: MirrorPlan) -> Iterator[str]:
    for machine, flow in chosen.need.machines.items():
        groups = [
            group for group, home in chosen.choice.machine_of_group.items() if home == machine
        ]
        named = ", ".join(groups[:MOST_RINGS]) + (", ..." if len(groups) > MOST_RINGS else "")
        told = f"{machine}: follows {len(groups)} group{'s' * (len(groups) > 1)} ({named}), "
        told += f"copies of {flow.line_gbps:.4g} Gb/s"
        if flow.mean_gbps is not None and flow.frames_per_s is not None:
            told += f", mean {flow.mean_gbps:.3g} Gb/s and {flow.frames_per_s:,.0f} frames/s"
        memory = chosen.need.memory.get(machine, ())
        if memory:
            total = sum(part.bytes for part in memory)
            parts = ", ".join(f"{part.what} {part.bytes / 2**30:.2f}" for part in memory)
            told += f"; memory {total / 2**30:.2f} GiB ({parts})"
        else:
            told += "; memory: state [replica] parameters"
        yield told
