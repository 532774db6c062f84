"""`flowcheck ports`: its arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import Json, svg_file


def ports(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.toml",
            help="Layout file (TOML): nodes, cables, monitor ports, parallel sizes.",
        ),
    ],
    redundancy: Annotated[
        int,
        typer.Option(help="Number of monitor ports that must each carry every chunk, 1 or more."),
    ] = 1,
    nccl_log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Output of rank 0 with NCCL_DEBUG=INFO, for the order of ranks; or one per group.",
        ),
    ] = None,
    graph: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="XML",
            help="File that NCCL wrote to NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE; repeatable.",
        ),
    ] = None,
    os: Annotated[
        str | None,
        typer.Option(
            "--os",
            help="Operating system of switches whose `os` the file does not state; names: "
            "`flowcheck switch list`.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            callback=svg_file,
            metavar="FILE",
            help="Write a drawing of the rings and the mirrored ports.",
        ),
    ] = None,
    mirrors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write [[mirror]] tables for the job file; {machine} in the name: one file per "
            "machine.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the fewest switch ports to mirror so that the copies carry every gradient of a job.

    The layout file states where each NIC is plugged in, which switch ports lead to the machine
    with FlowCheck, and how ranks are laid out. One port in one direction misses one chunk of each
    all-reduce, so two links of each ring and channel are mirrored. The choice fits the line rates
    of the monitor ports and the session limits of each switch system. If no choice fits, the error
    names the ring or the monitor port.

    Exit code 0: ports were chosen; 2: no choice fits, or the layout file is refused.

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
