"""Typer option types that several commands share, among them those of `flowcheck switch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.errors import ConfigError
from flowcheck.findings import named_run


def read_on(page: str) -> str:
    """Ends a command's help with the page that tells more, by its path in the source tree."""
    return f"Read on: {page}"


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Captures (pcap or pcapng); several are taken as several mirrored ports of one job.",
        show_default=False,
    ),
]
OTHER_PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".eps", ".ps"}
"""Names that promise another kind of picture. Others, as /dev/stdout, promise nothing."""


def svg_file(path: Path | None) -> Path | None:
    """Of --svg, before any work is done. Raises ConfigError for a name of another kind."""
    if path is not None and path.suffix.lower() in OTHER_PICTURES:
        from flowcheck.findings.catalog.refused_commands import DRAWS_SVG

        raise ConfigError("--svg", str(path), DRAWS_SVG())
    return path


Svg = Annotated[
    Path | None,
    typer.Option(
        "--svg",
        metavar="FILE",
        callback=svg_file,
        help="Write a drawing of the communicators: rings, links, coverage.",
    ),
]
ModelArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Keyword argument for MODEL, layers=12; repeatable."
    ),
]
CastDtype = Annotated[
    str | None,
    typer.Option(help="Cast the module to this torch type, such as bfloat16; default: no cast."),
]
World = Annotated[int, typer.Option(help="Number of data-parallel ranks, 2 to 4,096.")]
NcclProtocol = Annotated[
    str | None,
    typer.Option(
        help="NCCL protocol (NCCL_PROTO): LL, LL128 or Simple; default: LL below 256 KiB, else "
        "Simple."
    ),
]
PathMtu = Annotated[int, typer.Option(help="RoCE path MTU, bytes: 256, 512, 1024, 2048 or 4096.")]
Run = Annotated[
    Path, typer.Option("--run", help="Run directory of the chain, as the job file states it.")
]
Leftovers = Annotated[
    bool,
    typer.Option(
        "--leftovers",
        help="List only what killed chains left on this machine: processes, shared memory.",
    ),
]
Previous = Annotated[
    bool, typer.Option("--previous", help="Show the run before the last one, from its records.")
]
DEFAULT_RUN = Path(named_run.DEFAULT_RUN)


Os = Annotated[
    str,
    typer.Option(
        "--os",
        help="Operating system of the switch, by a name that `flowcheck switch list` prints.",
    ),
]
Sources = Annotated[
    list[str],
    typer.Option(
        "--source",
        metavar="PORT[:rx|tx|both]",
        help="Port to mirror and its direction as the switch sees it, default rx (what the server "
        "sends); repeatable.",
    ),
]
Monitor = Annotated[
    str | None,
    typer.Option(metavar="PORT", help="Port that sends the copies to the capture NIC."),
]
Erspan = Annotated[
    str | None,
    typer.Option(
        metavar="src=A,dst=B[,id=N]",
        help="Send the copies through an ERSPAN tunnel from the switch (src) to the capture node "
        "(dst).",
    ),
]
SessionId = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="N|NAME",
        help="Mirror session: a name, default flowcheck; or a free number, if the switch numbers "
        "its sessions.",
    ),
]
Bridge = Annotated[
    str | None, typer.Option(help="Open vSwitch only: bridge that has the ports, for example br0.")
]
Form = Annotated[
    str | None,
    typer.Option(
        help="Linux tc only: filter kind, matchall (default), hardware (in the switch chip) or u32."
    ),
]
