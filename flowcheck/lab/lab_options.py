"""Command-line options that several `flowcheck lab` commands share."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flowcheck.lab.cluster import Cluster

Hosts = Annotated[int, typer.Option(help="Training hosts, one port and one rank each: p0, p1, ...")]
SwitchKind = Annotated[str, typer.Option(help="bridge (Linux) or ovs (Open vSwitch).")]
Mirrors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PORT:rx|tx|both",
        help="As the switch names it: rx is what the host sent. May be repeated. [p0:both]",
    ),
]
Mtu = Annotated[int, typer.Option(help="Of the hosts: 4200 or 9000.")]
Erspan = Annotated[bool, typer.Option("--erspan", help="Copies travel in ERSPAN (ovs only).")]
LabOut = Annotated[
    Path | None,
    typer.Option(
        help="Folder for everything it writes. [lab-run, lab-cost: each run replaces the last]"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run of the lab there.")]
Name = Annotated[str, typer.Option("--name", help="Of the cluster; several may be up.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Protocol = Annotated[
    str | None, typer.Option(help="LL, LL128 or Simple; NCCL's own choice by default.")
]
Algo = Annotated[
    str | None,
    typer.Option(help="Ring or Tree, of all-reduces; Ring by default. Trees: --hosts 3."),
]
TreeBelow = Annotated[
    int | None,
    typer.Option(help="All-reduces of fewer bytes go by trees, others by rings, as NCCL chooses."),
]
Channels = Annotated[int, typer.Option(help="Of NCCL.")]
Nccl = Annotated[str, typer.Option(help="Release that is emulated, 2.19 to 2.30.")]


def cluster_of(
    name: str,
    hosts: int,
    switch: str,
    mirror: list[str] | None,
    mtu: int,
    *,
    erspan: bool = False,
) -> Cluster:
    """The cluster these options describe. Raises LabError for one that cannot be."""
    from flowcheck.lab import cluster

    return cluster.Cluster(
        name=name,
        hosts=hosts,
        switch=switch,  # type: ignore[arg-type]  # Cluster says which there are
        mirrors=cluster.parse_mirrors(mirror or ["p0:both"]),
        mtu=mtu,
        erspan=erspan,
    )


def end_on_sigterm() -> None:
    """SIGTERM leaves by SystemExit, so that what was built is taken down on the way."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
