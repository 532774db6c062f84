"""`flowcheck lab train`, `lab record` and `lab cost`: the commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from flowcheck.config.config_decoding import at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import NEEDS_MIRROR_LOSS, WITHIN
from flowcheck.findings.catalog.refused_options import (
    JOBS_FROM_START,
    JOBS_WITHOUT_SAVES,
    KILL_CONTRADICTS,
    TREE_HOSTS,
)
from flowcheck.lab.lab_options import (
    Algo,
    Channels,
    Erspan,
    Force,
    Gpus,
    Hosts,
    Json,
    LabOut,
    Mirrors,
    Mtu,
    Name,
    Nccl,
    Nics,
    NvlsFrom,
    Protocol,
    SwitchKind,
    TreeBelow,
    cluster_of,
    end_on_sigterm,
)
from flowcheck.step_numbers import Step

LEAST_IN_TREES = 3
"""Least number of hosts of one rank each for trees: with two ranks a tree is the ring's link in
both directions (README, "Which jobs are followed")."""


def _step(option: int | None) -> Step | None:
    return None if option is None else Step(option)


def train(
    context: typer.Context,
    hosts: Hosts = 2,
    gpus: Gpus = 1,
    nics: Nics = 1,
    jobs: Annotated[
        int,
        typer.Option(
            help="Number of jobs at the same time, each with its own --hosts; above 1 without "
            "control runs."
        ),
    ] = 1,
    steps: Annotated[int, typer.Option(help="Training steps of the whole run.")] = 40,
    switch: SwitchKind = "bridge",
    mirror: Mirrors = None,
    erspan: Erspan = False,
    mtu: Mtu = 4200,
    protocol: Protocol = None,
    algo: Algo = None,
    tree_below: TreeBelow = None,
    nvls_from: NvlsFrom = None,
    channels: Channels = 2,
    nccl: Nccl = "2.29",
    loss: Annotated[
        float, typer.Option(help="Probability that a frame between hosts is lost, 0 to 1.")
    ] = 0.0,
    mirror_loss: Annotated[
        float,
        typer.Option(
            help="Probability that a copy is dropped at the monitor port, 0 to 1; the training "
            "traffic itself is untouched."
        ),
    ] = 0.0,
    mirror_loss_seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --mirror-loss: seed, default 1; it and the order of the copies at the "
            "monitor port say which are dropped.",
        ),
    ] = None,
    mirror_loss_from: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="With --mirror-loss: drop copies only behind this step; default: from the start.",
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The trainer saves a checkpoint every N steps, where FlowCheck watches.",
        ),
    ] = None,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Run the trainers with the hook: FlowCheck asks it for what packets were lost of.",
        ),
    ] = False,
    kill_at: Annotated[
        int | None,
        typer.Option(
            help="Kill all trainers after this step, 1 or later; default: in the middle third."
        ),
    ] = None,
    no_kill: Annotated[
        bool, typer.Option("--no-kill", help="Follow the run without killing it.")
    ] = False,
    join_at: Annotated[
        int | None,
        typer.Option(
            help="Start FlowCheck only when the trainers are at this step; default: before them."
        ),
    ] = None,
    leave_at: Annotated[
        int | None,
        typer.Option(
            help="With --join-at: FlowCheck also follows from the start and stops at this step."
        ),
    ] = None,
    gap_at: Annotated[
        int | None,
        typer.Option(
            help="Stop FlowCheck's capture at this step for 3 seconds, so that it loses steps."
        ),
    ] = None,
    no_control: Annotated[
        bool,
        typer.Option(
            "--no-control",
            help="Skip the control runs, whose result is compared with the resumed job's.",
        ),
    ] = False,
    out: LabOut = None,
    force: Force = False,
    name: Name = "train",
    as_json: Json = False,
) -> None:
    """Train a small GPT on a cluster, kill it, restore its newest step, and resume it to the end.

    Arguments after `--` go to the training script.

    Example: `flowcheck lab train --steps 20 -- --layers 2 --width 64 --heads 2`
    """
    from flowcheck.lab.cluster.cluster_spec import HOSTS_MAX
    from flowcheck.lab.job_run.run_plan import LabPlan, LateJoin
    from flowcheck.lab.job_run.training_script import check_arguments
    from flowcheck.lab.restore_drill import drill_report
    from flowcheck.lab.restore_drill.kill_restore_drill import choose_kill
    from flowcheck.lab.restore_drill.kill_restore_drill import run_drill as run_plan

    late = None
    comes_late = join_at is not None or gap_at is not None
    if kill_at is not None and (no_kill or comes_late):
        other = "--no-kill" if no_kill else "--join-at" if join_at is not None else "--gap-at"
        raise ConfigError("--kill-at", kill_at, KILL_CONTRADICTS(other))
    if jobs > 1 and comes_late:
        raise ConfigError("--jobs", jobs, JOBS_FROM_START())
    if jobs > 1 and save_every is not None:
        raise ConfigError("--jobs", jobs, JOBS_WITHOUT_SAVES())
    at_least("--jobs", jobs, 1)
    if jobs * hosts > HOSTS_MAX:
        raise ConfigError("--jobs", jobs, WITHIN(least=1, most=HOSTS_MAX // hosts))
    for option, given in (
        ("--mirror-loss-seed", mirror_loss_seed),
        ("--mirror-loss-from", mirror_loss_from),
    ):
        if given is not None and not mirror_loss:
            raise ConfigError(option, given, NEEDS_MIRROR_LOSS())
    if (algo == "Tree" or tree_below is not None) and gpus == 1 and hosts < LEAST_IN_TREES:
        raise ConfigError("--hosts", hosts, TREE_HOSTS(LEAST_IN_TREES))
    first_ports = [job * hosts * nics + nic for job in range(jobs) for nic in range(max(1, nics))]
    mirror = mirror or [f"p{port}:both" for port in first_ports]
    made = cluster_of(
        *(name, hosts * jobs, switch, mirror, mtu),
        gpus=gpus,
        nics=nics,
        erspan=erspan,
        management=hook,
    )
    if comes_late:
        late = LateJoin(join_at=_step(join_at), leave_at=_step(leave_at), gap_at=_step(gap_at))
        no_kill = no_control = True
    plan = LabPlan(
        cluster=made,
        folder=(out or Path("lab-run")).resolve(),
        force=force or out is None,
        steps=steps,
        kill_at=None if no_kill else choose_kill(steps, None) if kill_at is None else Step(kill_at),
        arguments=tuple(context.args),
        protocol=protocol,
        algo=algo,
        tree_below=tree_below,
        nvls_from=nvls_from,
        channels=channels,
        nccl=nccl,
        loss=loss,
        mirror_loss=mirror_loss,
        mirror_loss_seed=1 if mirror_loss_seed is None else mirror_loss_seed,
        mirror_loss_from=_step(mirror_loss_from),
        save_every=save_every,
        hook=hook,
        late_join=late,
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
        typer.Option(
            help="Name of the files: OUT.pcapng (capture), OUT.json (truth), OUT.toml (job file of "
            "the built-in script)."
        ),
    ],
    hosts: Hosts = 2,
    gpus: Gpus = 1,
    nics: Nics = 1,
    steps: Annotated[int, typer.Option(help="Training steps of the built-in script.")] = 4,
    script: Annotated[
        Path | None, typer.Option(help="Your training script; default: the built-in one.")
    ] = None,
    digests: Annotated[
        Path | None,
        typer.Option(
            help="With --script: file in which it writes a digest of each step, copied to OUT.json."
        ),
    ] = None,
    switch: SwitchKind = "bridge",
    mirror: Mirrors = None,
    erspan: Erspan = False,
    mtu: Mtu = 4200,
    protocol: Protocol = None,
    algo: Algo = None,
    tree_below: TreeBelow = None,
    nvls_from: NvlsFrom = None,
    channels: Channels = 1,
    nccl: Nccl = "2.29",
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier recording with the name of --out.")
    ] = False,
    name: Name = "record",
    as_json: Json = False,
) -> None:
    """Record a job: the frames of the mirror port, and the result of every collective (the truth).

    Arguments after `--` go to the training script. It fails if a frame was dropped, since the
    recording would be incomplete.

    Example: `flowcheck lab record --out job --steps 4`
    """
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from flowcheck.lab.job_run.run_plan import LabPlan
    from flowcheck.lab.job_run.torchrun_trainers import Script
    from flowcheck.lab.job_run.training_script import check_arguments
    from flowcheck.lab.recording import job_recording as verb

    made = cluster_of(name, hosts, switch, mirror, mtu, gpus=gpus, nics=nics, erspan=erspan)
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
            nvls_from=nvls_from,
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
    told = "" if found.steps is None else f", {found.steps} steps"
    print(f"{found.capture}: {found.frames} frames, {found.bytes} bytes{told}")
    print(f"{found.truth}: {found.collectives} collectives")
    if found.job:
        capture, job = shlex.quote(str(found.capture)), shlex.quote(str(found.job))
        print(f"flowcheck replay {capture} --job {job} --digests")


def cost(
    context: typer.Context,
    hosts: Hosts = 2,
    steps: Annotated[int, typer.Option(help="Training steps of each case in each round.")] = 14,
    warm_up: Annotated[int, typer.Option(help="Number of first steps that are not measured.")] = 4,
    rounds: Annotated[
        int, typer.Option(help="Number of rounds; each runs all cases one after the other.")
    ] = 3,
    channels: Channels = 2,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Write a plot of iteration times (needs matplotlib)."
        ),
    ] = None,
    out: LabOut = None,
    force: Force = False,
    name: Name = "cost",
    as_json: Json = False,
) -> None:
    """Measure what a checkpoint of every step costs the trainers: with FlowCheck, with torch.save.

    Trainers run on CPU 0, everything else on CPU 1. Arguments after `--` go to the training script.

    Example: `flowcheck lab cost --rounds 3 --plot cost.png`
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
        print(json.dumps(report.figures_json(measured)))
    else:
        report.show(measured, Console(highlight=False))
