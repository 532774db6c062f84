"""`flowcheck lab cost`, the verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flowcheck.lab.options import Channels, Force, Hosts, Json, LabOut, Name, end_on_sigterm


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
    from flowcheck.lab.run import cost as verb
    from flowcheck.lab.run import cost_report as report
    from flowcheck.lab.run.asked import check_arguments
    from flowcheck.lab.run.display import Display
    from flowcheck.lab.run.plan import Plan

    if plot is not None:
        report.need_matplotlib()
    plan = Plan(
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
