"""Command-line options that several `flowcheck lab` commands share."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flowcheck.lab.cluster import Cluster

Hosts = Annotated[
    int,
    typer.Option(
        help="Number of training hosts; by default each has one rank and one switch port, p0, p1, "
        "..."
    ),
]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus-per-host",
        help="Emulated GPUs of each host, a rank each; what they send each other passes no port.",
    ),
]
Nics = Annotated[
    int,
    typer.Option(
        "--nics-per-host",
        help="NICs of each host, which divide its GPUs: the first host has the ports p0, p1, ...",
    ),
]
SwitchKind = Annotated[
    str, typer.Option(help="Switch of the cluster: bridge (Linux) or ovs (Open vSwitch).")
]
Mirrors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PORT:rx|tx|both",
        help="Port to mirror; rx: what the host sends; repeatable; default: both directions of the "
        "first host's.",
    ),
]
Mtu = Annotated[int, typer.Option(help="MTU of the hosts, bytes: 4200 or 9000.")]
Erspan = Annotated[
    bool, typer.Option("--erspan", help="Send the copies in ERSPAN; needs --switch ovs.")
]
LabOut = Annotated[
    Path | None,
    typer.Option(
        help="Folder for everything it writes; default lab-run (train) or lab-cost (cost), which "
        "each run replaces."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run of the lab in --out.")]
Name = Annotated[str, typer.Option("--name", help="Name of the cluster, which lets several exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Protocol = Annotated[
    str | None,
    typer.Option(help="NCCL protocol: LL, LL128 or Simple; default: NCCL's choice by size."),
]
Algo = Annotated[
    str | None,
    typer.Option(
        "--algo",
        "--algorithm",
        help="Algorithm of all-reduces: Ring (default), Tree (of 3 hosts, or of 2 GPUs a host) or "
        "NVLSTree.",
    ),
]
TreeBelow = Annotated[
    int | None,
    typer.Option(
        help="All-reduces below this many bytes go by trees, all others by rings; default: --algo."
    ),
]
NvlsFrom = Annotated[
    int | None,
    typer.Option(
        help="All-reduces of this many bytes and more go by NVLS trees; default: by --algo."
    ),
]
Channels = Annotated[int, typer.Option(help="Number of NCCL channels.")]
Nccl = Annotated[str, typer.Option(help="NCCL release to emulate, 2.19 to 2.30.")]


def cluster_of(
    name: str,
    hosts: int,
    switch: str,
    mirror: list[str] | None,
    mtu: int,
    *,
    gpus: int = 1,
    nics: int = 1,
    erspan: bool = False,
    management: bool = False,
) -> Cluster:
    """The cluster that these options describe. Raises ConfigError for one that cannot be built."""
    from flowcheck.lab import cluster

    return cluster.Cluster(
        name=name,
        hosts=hosts,
        gpus=gpus,
        nics=nics,
        switch=switch,  # type: ignore[arg-type]  # Cluster says which there are
        mirrors=cluster.parse_mirrors(mirror or [f"p{nic}:both" for nic in range(max(1, nics))]),
        mtu=mtu,
        erspan=erspan,
        management=management,
    )


def end_on_sigterm() -> None:
    """Turns SIGTERM into SystemExit, so that everything that was created is removed on the way
    out."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
