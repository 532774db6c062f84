"""Options the verbs about switches share."""

from __future__ import annotations

from typing import Annotated

import typer

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
