"""`flowcheck ports`: its arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import Json


def ports(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="Nodes, cables, monitor ports, sizes.")
    ],
    redundancy: Annotated[
        int, typer.Option(help="Monitor ports on which each chunk must be seen.")
    ] = 1,
    nccl_log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Rank 0's output with NCCL_DEBUG=INFO: the order of rings. One for all groups, "
            "or one for each.",
        ),
    ] = None,
    graph: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="XML",
            help="NCCL_GRAPH_DUMP_FILE (NICs of channels) or NCCL_TOPO_DUMP_FILE (NICs of GPUs).",
        ),
    ] = None,
    os: Annotated[
        str | None,
        typer.Option("--os", help="System of the switches that state none: `switch list`."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the rings and the mirrored ports.")
    ] = None,
    mirrors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the chosen ports as [[mirror]] tables of a job file; {machine} in the name "
            "where there are several. Each [[cable]] states hosts.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the fewest switch ports whose copies show every gradient of a job.

    The file states where each NIC is plugged in, which ports lead to the machine with FlowCheck,
    and how ranks are laid out. Each data-parallel ring and channel needs two of its links: one
    port in one direction lacks one chunk. What is chosen fits the monitor ports' line rates and
    what each switch's system allows; where nothing does, the ring or the sum is named.

    Example: `flowcheck ports job-layout.toml --os eos --svg ports.svg`
    """
    from flowcheck.ops.mirror_ports import ports_command
    from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest

    asked = PortsRequest(
        file=file,
        redundancy=redundancy,
        logs=tuple(nccl_log or ()),
        graphs=tuple(graph or ()),
        os=os,
    )
    raise typer.Exit(ports_command.run(asked, as_json=as_json, svg=svg, mirrors=mirrors))
