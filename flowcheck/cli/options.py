"""Options and arguments that several verbs have, said once."""

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
