"""`flowcheck fleet check`: what a fleet file comes to, before anything is started."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table

from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.fleet.checked_fleet import CheckedFleet, checked_fleet
from flowcheck.untrusted_text import printable


def run(file: Path, *, show: bool, as_json: bool) -> int:
    """Prints the chains and their places; show: their job files too. Returns the exit code. Raises
    ConfigError where the file, or a job file, is refused."""
    fleet = checked_fleet(file)
    if as_json:
        told = {
            "name": fleet.config.name,
            "keepers": fleet.keepers,
            "chains": fleet.chains,
            "notes": fleet.notes,
        }
        print(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return 0
    _print(fleet)
    if show:
        for own in fleet.chains:
            print(f"\n# {own.name}, on {own.node}\n{own.job}", end="")
    return 0


def _print(fleet: CheckedFleet) -> None:
    out = SentenceConsole(highlight=False)
    strategy = fleet.placement.strategy.value
    parts = fleet.placement.redundancy.parts
    copies = "no copies" if parts == 1 else f"{parts} copies of each shard, strategy {strategy}"
    out.print(f"{fleet.config.name}: {len(fleet.config.node)} nodes, {copies}", markup=False)
    table = Table("chain", "node", "copy of", "steps at")
    for own in fleet.chains:
        cells = (own.name, own.node, own.of or "", own.served)
        table.add_row(*(escape(printable(one)) for one in cells))
    out.print(table)
    where = f"{fleet.config.state.rstrip('/')}/{fleet.config.name}/NODE/runs/CHAIN"
    out.print(f"run directories: {where}", markup=False, soft_wrap=True)
    for note in fleet.notes:
        out.print_finding(note, "- ")
    out.print(
        "It fits. Whether each machine has its port, `flowcheck up` there tells.", markup=False
    )
