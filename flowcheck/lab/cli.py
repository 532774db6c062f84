"""`flowcheck lab`: commands for a virtual cluster on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from flowcheck.lab import lab_run_commands
from flowcheck.lab.lab_options import (
    Erspan,
    Gpus,
    Hosts,
    Json,
    Mirrors,
    Mtu,
    Name,
    Nics,
    SwitchKind,
    cluster_of,
)
from flowcheck.ops.command_app import CommandApp

MORE = "Read on: flowcheck/lab/README.md"
"""Last line of each help text, as in cli/shared_options.py (which this module cannot import)."""
app = CommandApp(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog=MORE,
    help="""Emulate a training cluster on this machine: hosts, a mirroring switch, a FlowCheck node.

Each is a network namespace; the switch is a Linux bridge or Open vSwitch. Needs root, but no GPU
and no RoCE NIC.

Example: `flowcheck lab train` trains a small GPT, kills it, and resumes it from FlowCheck's step.
""",
)
DOWN = 1
"""Exit code of `lab status` for a cluster that is not up."""
SCRIPT_FOLLOWS = {"allow_extra_args": True, "ignore_unknown_options": True}

for verb in (lab_run_commands.train, lab_run_commands.record, lab_run_commands.cost):
    app.command(context_settings=SCRIPT_FOLLOWS, epilog=MORE)(verb)


@app.command(epilog=MORE)
def up(
    hosts: Hosts = 2,
    gpus: Gpus = 1,
    nics: Nics = 1,
    switch: SwitchKind = "bridge",
    mirror: Mirrors = None,
    mtu: Mtu = 4200,
    name: Name = "lab",
    erspan: Erspan = False,
    management: Annotated[
        bool,
        typer.Option(
            "--management",
            help="Also link each host to the checkpoint node past the switch, for the hook.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a cluster, and show which part of a ring all-reduce its mirrors see.

    Example: `flowcheck lab up --hosts 4 --mirror p0:rx --mirror p1:rx`
    """
    from flowcheck.lab import cluster
    from flowcheck.lab.cluster.cluster_status import describe

    wanted = cluster_of(
        *(name, hosts, switch, mirror, mtu),
        gpus=gpus,
        nics=nics,
        erspan=erspan,
        management=management,
    )
    made = cluster.up(wanted)
    found = cluster.status(name) or describe(made)
    print(json.dumps(found) if as_json else _text(found))


@app.command(epilog=MORE)
def down(name: Name = "lab", as_json: Json = False) -> None:
    """Remove a cluster with everything that runs in it, also after a crash.

    Example: `flowcheck lab down --name train`
    """
    from flowcheck.lab import cluster

    removed = cluster.down(name)
    if as_json:
        ended = [{"pid": one.pid, "what": one.what} for one in removed.processes]
        print(
            json.dumps(
                {
                    "namespaces": removed.namespaces,
                    "processes": ended,
                    "settings": removed.settings,
                    "files": removed.files,
                }
            )
        )
    elif not removed:
        print(f"cluster {name}: nothing to remove{_others(name)}")
    else:
        for one in removed.processes:
            print(f"ended {one.what} ({one.pid})")
        for said in removed.settings:
            print(said)
        print(f"cluster {name}: {len(removed.namespaces)} namespaces removed")


@app.command(epilog=MORE)
def status(name: Name = "lab", as_json: Json = False) -> None:
    """Show whether a cluster is complete, and how much its monitor port has carried.

    Exit code 0: up; 1: it does not exist, or a part of it is missing.

    Example: `flowcheck lab status --name train`
    """
    from flowcheck.lab import cluster
    from flowcheck.lab.cluster.cluster_setup import require_root

    require_root()
    found = cluster.status(name)
    if found is None:
        told = {"name": name, "state": "down"}
        print(json.dumps(told) if as_json else f"cluster {name}: down{_others(name)}")
        raise typer.Exit(DOWN)
    print(json.dumps(found) if as_json else _text(found))
    if found["state"] != "up":
        raise typer.Exit(DOWN)


def _others(name: str) -> str:
    """Clusters of other names: a drill's is called `train` unless told, and one that was killed
    leaves it."""
    from flowcheck.lab.cluster.cluster_state_file import cluster_names

    found = [other for other in cluster_names() if other != name]
    return f"; of other names there are {', '.join(found)} (--name)" if found else ""


def _text(found: dict[str, Any]) -> str:
    """A cluster's description for people."""
    kind = {"bridge": "Linux bridge", "ovs": "Open vSwitch"}[found["switch"]]
    lines = [f"cluster {found['name']}: {found['state']}, {kind} in {found['switch_namespace']}"]
    lines += [
        f"  {host['port']}  {host['namespace']}  {host['interface']} {host['address']}"
        + (f"  management {host['management']}" if "management" in host else "")
        for host in found["hosts"]
    ]
    way = " in ERSPAN type II" if found["erspan"] else ""
    lines.append(
        f"  mirror {' '.join(found['mirrors'])}{way} -> {found['checkpoint']['namespace']} "
        f"{found['checkpoint']['interface']}"
    )
    lines.append(f"  MTU {found['mtu']}, monitor {found['monitor_mtu']}")
    lines += [f"  set on this machine until `down`: {said}" for said in found["changed"]]
    if "monitor" in found:
        count = found["monitor"]
        lines.append(
            f"  monitor port: {count['frames']} frames, {count['bytes']} bytes, "
            f"{count['dropped']} dropped behind the switch"
        )
    lines += [f"  MISSING: {one}" for one in found["missing"]]
    lines.append(f"  {found['coverage']['text']}")
    return "\n".join(lines)
