"""Typer option types that several commands share, among them those of `flowcheck switch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="pcap or pcapng files; several files: several mirror points of one job.",
        show_default=False,
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the communicators: rings, links, coverage."),
]
Run = Annotated[Path, typer.Option("--run", help="Run directory of the chain.")]
Leftovers = Annotated[
    bool, typer.Option("--leftovers", help="List only what killed chains left on this machine.")
]
Previous = Annotated[
    bool, typer.Option("--previous", help="Show the run before the last one, from its records.")
]
DEFAULT_RUN = Path("/run/flowcheck/job")


Os = Annotated[
    str,
    typer.Option("--os", help="Operating system of the switch: a name that `switch list` prints."),
]
Sources = Annotated[
    list[str],
    typer.Option(
        "--source",
        metavar="PORT[:rx|tx|both]",
        help="A port to mirror, and its direction, rx by default; may be repeated.",
    ),
]
Monitor = Annotated[
    str | None,
    typer.Option(metavar="PORT", help="The port that sends the copies to the capture NIC."),
]
Erspan = Annotated[
    str | None,
    typer.Option(
        metavar="src=A,dst=B[,id=N]",
        help="Instead of --monitor: send copies through an ERSPAN tunnel, from the switch's "
        "address to the capture node's.",
    ),
]
SessionId = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="N|NAME",
        help="A session number that is free, or a name; the default name is flowcheck.",
    ),
]
Bridge = Annotated[str | None, typer.Option(help="Open vSwitch: the bridge that has the ports.")]
Form = Annotated[str | None, typer.Option(help="tc: kind of filter, matchall, hardware or u32.")]
