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
        help="pcap or pcapng files; several are several mirror points of one job.",
        show_default=False,
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the communicators: rings, links, coverage."),
]
Run = Annotated[Path, typer.Option("--run", help="Run directory of the chain.")]
Leftovers = Annotated[
    bool, typer.Option("--leftovers", help="What killed chains left on this machine; no more.")
]
Previous = Annotated[
    bool, typer.Option("--previous", help="Of the run before the last one, off its records.")
]
DEFAULT_RUN = Path("/run/flowcheck/job")


Os = Annotated[str, typer.Option("--os", help="The switch's system: a name of `switch list`.")]
Sources = Annotated[
    list[str],
    typer.Option(
        "--source",
        metavar="PORT[:rx|tx|both]",
        help="A watched port, rx unless said; repeatable.",
    ),
]
Monitor = Annotated[
    str | None, typer.Option(metavar="PORT", help="The port copies leave by, to the capture card.")
]
Erspan = Annotated[
    str | None,
    typer.Option(
        metavar="src=A,dst=B[,id=N]",
        help="Instead: through a tunnel, from the switch's address to the capture node's.",
    ),
]
SessionId = Annotated[
    str | None,
    typer.Option("--session", metavar="N|NAME", help="A free number; or a name [flowcheck]."),
]
Bridge = Annotated[str | None, typer.Option(help="Of Open vSwitch, where the ports are.")]
Form = Annotated[str | None, typer.Option(help="Of tc: matchall, hardware or u32.")]
