"""`flowcheck lab train`, `lab record` and `lab cost`: the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flowcheck.config.config_decoding import at_least
from flowcheck.errors import ConfigError
from flowcheck.lab.lab_options import (
    Algo,
    Channels,
    Erspan,
    Force,
    Hosts,
    Json,
    LabOut,
    Mirrors,
    Mtu,
    Name,
    Nccl,
    Protocol,
    SwitchKind,
    TreeBelow,
    cluster_of,
    end_on_sigterm,
)

LEAST_IN_TREES = 3
"""Ranks: of two the tree is a ring's link both ways (README, "Which jobs are followed")."""


def train(
    context: typer.Context,
    hosts: Hosts = 2,
    jobs: Annotated[
        int,
        typer.Option(help="Jobs beside each other, each on --hosts of its own; without controls."),
    ] = 1,
    steps: Annotated[int, typer.Option(help="Of the whole run.")] = 40,
    switch: SwitchKind = "bridge",
    mirror: Mirrors = None,
    erspan: Erspan = False,
    mtu: Mtu = 4200,
    protocol: Protocol = None,
    algo: Algo = None,
    tree_below: TreeBelow = None,
    channels: Channels = 2,
    nccl: Nccl = "2.29",
    loss: Annotated[float, typer.Option(help="Share of frames lost between hosts.")] = 0.0,
    kill_at: Annotated[
        int | None,
        typer.Option(help="Kill all trainers after this step, 1 or later; random by default."),
    ] = None,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Only follow the run.")] = False,
    join_at: Annotated[
        int | None, typer.Option(help="FlowCheck comes when the trainers are at this step.")
    ] = None,
    leave_at: Annotated[
        int | None, typer.Option(help="Before that it was there, until this step.")
    ] = None,
    gap_at: Annotated[
        int | None, typer.Option(help="Its capture is stopped at this step, for seconds.")
    ] = None,
    no_control: Annotated[
        bool, typer.Option("--no-control", help="Do not run what the end is compared with.")
    ] = False,
    out: LabOut = None,
    force: Force = False,
    name: Name = "train",
    as_json: Json = False,
) -> None:
    """Train a small GPT on a cluster, kill it, give it back its newest step, and run it to its end.

    What follows the options goes to the training script: `flowcheck lab train -- --clip 1`.
    """
    from flowcheck.lab.job_run.run_plan import LabPlan, LateJoin
    from flowcheck.lab.job_run.training_script import check_arguments
    from flowcheck.lab.restore_drill import drill_report
    from flowcheck.lab.restore_drill.kill_restore_drill import choose_kill
    from flowcheck.lab.restore_drill.kill_restore_drill import run_drill as run_plan

    late = None
    comes_late = join_at is not None or gap_at is not None
    if kill_at is not None and (no_kill or comes_late):
        other = "--no-kill" if no_kill else "--join-at" if join_at is not None else "--gap-at"
        raise ConfigError("--kill-at", kill_at, f"contradicts {other}: give one of them")
    if jobs > 1 and comes_late:
        raise ConfigError("--jobs", jobs, "goes with a run that is seen from its start")
    at_least("--jobs", jobs, 1)
    if (algo == "Tree" or tree_below is not None) and hosts < LEAST_IN_TREES:
        raise ConfigError("--hosts", hosts, f"trees are followed from {LEAST_IN_TREES} ranks on")
    mirror = mirror or [f"p{number * hosts}:both" for number in range(jobs)]
    if comes_late:
        late = LateJoin(join_at=join_at, leave_at=leave_at, gap_at=gap_at)
        no_kill = no_control = True
    plan = LabPlan(
        cluster=cluster_of(name, hosts * jobs, switch, mirror, mtu, erspan=erspan),
        folder=(out or Path("lab-run")).resolve(),
        force=force or out is None,
        steps=steps,
        kill_at=None if no_kill else choose_kill(steps, None) if kill_at is None else kill_at,
        arguments=tuple(context.args),
        protocol=protocol,
        algo=algo,
        tree_below=tree_below,
        channels=channels,
        nccl=nccl,
        loss=loss,
        late=late,
        jobs=jobs,
        control=not no_control,
    )
    check_arguments("train", context.args)
    end_on_sigterm()
    outcome = run_plan(plan, quiet=as_json)
    raise typer.Exit(drill_report.show(outcome, as_json=as_json))


def record(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Option(help="Files to write: OUT.pcapng, OUT.json; OUT.toml of the lab's own job."),
    ],
    hosts: Hosts = 2,
    steps: Annotated[int, typer.Option(help="Of the lab's own script.")] = 4,
    script: Annotated[
        Path | None, typer.Option(help="A training script instead of the lab's own.")
    ] = None,
    digests: Annotated[
        Path | None, typer.Option(help="What that script writes about its steps, for the truth.")
    ] = None,
    switch: SwitchKind = "bridge",
    mirror: Mirrors = None,
    erspan: Erspan = False,
    mtu: Mtu = 4200,
    protocol: Protocol = None,
    algo: Algo = None,
    tree_below: TreeBelow = None,
    channels: Channels = 1,
    nccl: Nccl = "2.29",
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier recording of that name.")
    ] = False,
    name: Name = "record",
    as_json: Json = False,
) -> None:
    """Run a job on a cluster, and keep what the mirror port carried with the truth beside it.

    What follows the options goes to the training script. Refused where a frame was dropped.
    """
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from flowcheck.lab.job_run.run_plan import LabPlan
    from flowcheck.lab.job_run.torchrun_trainers import Script
    from flowcheck.lab.job_run.training_script import check_arguments
    from flowcheck.lab.recording import job_recording as verb

    made = cluster_of(name, hosts, switch, mirror, mtu, erspan=erspan)
    verb.check_outputs(out, own=script is None, force=force)
    end_on_sigterm()
    with TemporaryDirectory(prefix="flowcheck-record-") as folder:
        plan = LabPlan(
            cluster=made,
            folder=Path(folder) / "run",
            steps=steps,
            kill_at=None,
            arguments=tuple(context.args),
            protocol=protocol,
            algo=algo,
            tree_below=tree_below,
            channels=channels,
            nccl=nccl,
        )
        if script is None:
            check_arguments("record", context.args)
        own = Script(script.resolve(), tuple(context.args)) if script else None
        found = verb.record(plan, out, script=own, digests=digests, force=force)
    if as_json:
        print(json.dumps(asdict(found), default=str))
        return
    print(f"{found.capture}: {found.frames} frames, {found.bytes} bytes, {found.steps} steps")
    print(f"{found.truth}: {found.collectives} collectives")
    if found.job:
        print(f"flowcheck replay {found.capture} --job {found.job} --digests")


def cost(
    context: typer.Context,
    hosts: Hosts = 2,
    steps: Annotated[int, typer.Option(help="Of each case in each round.")] = 14,
    warm_up: Annotated[int, typer.Option(help="First steps that do not count.")] = 4,
    rounds: Annotated[int, typer.Option(help="Of all cases, one after the other.")] = 3,
    channels: Channels = 2,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw iteration times.")
    ] = None,
    out: LabOut = None,
    force: Force = False,
    name: Name = "cost",
    as_json: Json = False,
) -> None:
    """Measure what a checkpoint of every step costs the trainers: FlowCheck's, and their own.

    Trainers run on CPU 0, all else on CPU 1. What follows the options goes to the training script.
    """
    from rich.console import Console

    from flowcheck.lab import cluster
    from flowcheck.lab.job_run.run_display import Display
    from flowcheck.lab.job_run.run_plan import LabPlan
    from flowcheck.lab.job_run.training_script import check_arguments
    from flowcheck.lab.training_cost import cost_measurement as verb
    from flowcheck.lab.training_cost import cost_report as report

    if plot is not None:
        report.need_matplotlib()
    plan = LabPlan(
        cluster=cluster.Cluster(name=name, hosts=hosts),
        folder=(out or Path("lab-cost")).resolve(),
        force=force or out is None,
        steps=steps,
        kill_at=None,
        arguments=tuple(context.args),
        channels=channels,
    )
    check_arguments("cost", context.args)
    end_on_sigterm()
    with Display(steps, quiet=as_json) as display:
        measured = verb.measure(plan, rounds=rounds, warm_up=warm_up, display=display)
    if plot is not None:
        report.plot(measured, plot)
    if as_json:
        print(json.dumps(report.told(measured)))
    else:
        report.show(measured, Console(highlight=False))
