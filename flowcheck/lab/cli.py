"""`flowcheck lab`: a cluster on this machine."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flowcheck.lab import cost_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""A training cluster on this machine: hosts, a mirroring switch, a checkpoint node.

Each is a network namespace; the switch is a Linux bridge or Open vSwitch. Needs root.
""",
)
Name = Annotated[str, typer.Option("--name", help="Of the cluster; several may be up.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DOWN = 1
"""Exit code of status for a cluster that is not up."""
SCRIPT_FOLLOWS = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command(context_settings=SCRIPT_FOLLOWS)(cost_command.cost)


@app.command()
def up(
    hosts: Annotated[int, typer.Option(help="Training hosts, one port each: p0, p1, ...")] = 2,
    switch: Annotated[str, typer.Option(help="bridge (Linux) or ovs (Open vSwitch).")] = "bridge",
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PORT:rx|tx|both",
            help="As the switch names it: rx is what the host sent. May be repeated. [p0:both]",
        ),
    ] = None,
    mtu: Annotated[int, typer.Option(help="Of the hosts: 4200 or 9000.")] = 4200,
    name: Name = "lab",
    erspan: Annotated[
        bool, typer.Option("--erspan", help="Copies travel in ERSPAN (ovs only).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a cluster, and tell what its mirrors see of a ring all-reduce."""
    from flowcheck.lab import cluster
    from flowcheck.lab.cluster.status import describe

    made = cluster.up(
        cluster.Cluster(
            name=name,
            hosts=hosts,
            switch=switch,  # type: ignore[arg-type]  # Cluster says which there are
            mirrors=cluster.parse_mirrors(mirror or ["p0:both"]),
            mtu=mtu,
            erspan=erspan,
        )
    )
    found = cluster.status(name) or describe(made)
    print(json.dumps(found) if as_json else _text(found))


@app.command()
def down(name: Name = "lab", as_json: Json = False) -> None:
    """Remove a cluster with everything that runs in it, also after a crash."""
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
        print(f"cluster {name}: nothing to remove")
    else:
        for one in removed.processes:
            print(f"ended {one.what} ({one.pid})")
        for said in removed.settings:
            print(said)
        print(f"cluster {name}: {len(removed.namespaces)} namespaces removed")


@app.command()
def status(name: Name = "lab", as_json: Json = False) -> None:
    """Tell whether a cluster is whole, and what its monitor port has carried.

    Exit code 0: up; 1: not there, or something of it is missing.
    """
    from flowcheck.lab import cluster
    from flowcheck.lab.cluster.build import require_root

    require_root()
    found = cluster.status(name)
    if found is None:
        print(json.dumps({"name": name, "state": "down"}) if as_json else f"cluster {name}: down")
        raise typer.Exit(DOWN)
    print(json.dumps(found) if as_json else _text(found))
    if found["state"] != "up":
        raise typer.Exit(DOWN)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    hosts: Annotated[int, typer.Option(help="Training hosts, one rank each.")] = 2,
    steps: Annotated[int, typer.Option(help="Of the whole run.")] = 40,
    switch: Annotated[str, typer.Option(help="bridge (Linux) or ovs (Open vSwitch).")] = "bridge",
    mirror: Annotated[
        list[str] | None,
        typer.Option(metavar="PORT:rx|tx|both", help="May be repeated. [p0:both]"),
    ] = None,
    mtu: Annotated[int, typer.Option(help="Of the hosts: 4200 or 9000.")] = 4200,
    protocol: Annotated[
        str | None, typer.Option(help="LL, LL128 or Simple; NCCL's own choice by default.")
    ] = None,
    channels: Annotated[int, typer.Option(help="Of NCCL.")] = 2,
    nccl: Annotated[str, typer.Option(help="Release that is emulated, 2.19 to 2.30.")] = "2.29",
    loss: Annotated[float, typer.Option(help="Share of frames lost between hosts.")] = 0.0,
    kill_at: Annotated[
        int | None, typer.Option(help="Kill all trainers after this step; a random one by default.")
    ] = None,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Only follow the run.")] = False,
    no_control: Annotated[
        bool, typer.Option("--no-control", help="Do not run what the end is compared with.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for everything it writes.")] = Path("lab-run"),
    name: Name = "train",
    as_json: Json = False,
) -> None:
    """Train a small GPT on a cluster, kill it, give it back its newest step, and run it to its end.

    What follows the options goes to the training script: `flowcheck lab train -- --clip 1`.
    """
    from flowcheck.lab import cluster
    from flowcheck.lab.run import report
    from flowcheck.lab.run.plan import Plan
    from flowcheck.lab.run.train import choose_kill
    from flowcheck.lab.run.train import run as run_plan

    plan = Plan(
        cluster=cluster.Cluster(
            name=name,
            hosts=hosts,
            switch=switch,  # type: ignore[arg-type]  # Cluster says which there are
            mirrors=cluster.parse_mirrors(mirror or ["p0:both"]),
            mtu=mtu,
        ),
        folder=out.resolve(),
        steps=steps,
        kill_at=None if no_kill else kill_at or choose_kill(steps, None),
        arguments=tuple(context.args),
        protocol=protocol,
        channels=channels,
        nccl=nccl,
        loss=loss,
        control=not no_control,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    outcome = run_plan(plan, quiet=as_json)
    raise typer.Exit(report.show(outcome, as_json=as_json))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def record(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Files to write: OUT.pcapng, OUT.json, OUT.toml.")],
    hosts: Annotated[int, typer.Option(help="Training hosts, one rank each.")] = 2,
    steps: Annotated[int, typer.Option(help="Of the lab's own script.")] = 4,
    script: Annotated[
        Path | None, typer.Option(help="A training script instead of the lab's own.")
    ] = None,
    digests: Annotated[
        Path | None, typer.Option(help="What that script writes about its steps, for the truth.")
    ] = None,
    switch: Annotated[str, typer.Option(help="bridge (Linux) or ovs (Open vSwitch).")] = "bridge",
    mirror: Annotated[
        list[str] | None,
        typer.Option(metavar="PORT:rx|tx|both", help="May be repeated. [p0:both]"),
    ] = None,
    mtu: Annotated[int, typer.Option(help="Of the hosts: 4200 or 9000.")] = 4200,
    protocol: Annotated[
        str | None, typer.Option(help="LL, LL128 or Simple; NCCL's own choice by default.")
    ] = None,
    channels: Annotated[int, typer.Option(help="Of NCCL.")] = 1,
    nccl: Annotated[str, typer.Option(help="Release that is emulated, 2.19 to 2.30.")] = "2.29",
    name: Name = "record",
    as_json: Json = False,
) -> None:
    """Run a job on a cluster, and keep what the mirror port carried with the truth beside it.

    What follows the options goes to the training script. Refused where a frame was dropped.
    """
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from flowcheck.lab import cluster
    from flowcheck.lab.run import record as verb
    from flowcheck.lab.run.plan import Plan
    from flowcheck.lab.run.trainers import Script

    made = cluster.Cluster(
        name=name,
        hosts=hosts,
        switch=switch,  # type: ignore[arg-type]  # Cluster says which there are
        mirrors=cluster.parse_mirrors(mirror or ["p0:both"]),
        mtu=mtu,
    )
    with TemporaryDirectory(prefix="flowcheck-record-") as folder:
        plan = Plan(
            cluster=made,
            folder=Path(folder) / "run",
            steps=steps,
            kill_at=None,
            arguments=tuple(context.args),
            protocol=protocol,
            channels=channels,
            nccl=nccl,
        )
        own = Script(script.resolve(), tuple(context.args)) if script else None
        found = verb.record(plan, out, script=own, digests=digests)
    if as_json:
        print(json.dumps(asdict(found), default=str))
        return
    print(f"{found.capture}: {found.frames} frames, {found.bytes} bytes, {found.steps} steps")
    print(f"{found.truth}: {found.collectives} collectives")
    if found.job:
        print(f"flowcheck replay {found.capture} --job {found.job} --digests")


def _text(found: dict[str, Any]) -> str:
    """A cluster's description for people."""
    kind = {"bridge": "Linux bridge", "ovs": "Open vSwitch"}[found["switch"]]
    lines = [f"cluster {found['name']}: {found['state']}, {kind} in {found['switch_namespace']}"]
    lines += [
        f"  {host['port']}  {host['namespace']}  {host['interface']} {host['address']}"
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
