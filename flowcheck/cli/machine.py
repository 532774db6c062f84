"""Verbs about this machine alone: whether it is ready, and one stage of a chain by hand."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flowcheck.cli.options import DEFAULT_RUN, Json, Run
from flowcheck.errors import ConfigError

MOST_GIB = 1 << 20
"""A petabyte is a slip of the pen."""


def stage(
    name: Annotated[str, typer.Argument(help="capture, parse, extract or update.")],
    run: Run = DEFAULT_RUN,
    number: Annotated[int, typer.Option(help="Of the source (capture) or the ring (parse).")] = 0,
    parent: Annotated[
        int | None, typer.Option(help="End when this process does; set by the supervisor.")
    ] = None,
    lend: Annotated[
        int | None,
        typer.Option(
            help="A socket whose other end may ask this process for checkpoints once its stage "
            "has ended; set by the supervisor."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one stage of a chain in the foreground, as the supervisor does; for a debugger."""
    from flowcheck.stages.chain import launch
    from flowcheck.stages.privilege.descend import for_stage

    for_stage(name, run, number)
    code = launch.run_stage(name, run, number, parent)
    if lend is not None and code == 0:
        from flowcheck.ops.running.saved import lend_this

        lend_this(lend)
    if as_json:
        print(json.dumps({"stage": name, "number": number, "exit_code": code}))
    raise typer.Exit(code)


def doctor(
    need_gib: Annotated[float, typer.Option(help="Memory the job needs, in GiB.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Look at this machine: DPDK, hugepages, IOMMU, drivers and engines, CPU, memory."""
    from flowcheck.ops.node import doctor as verb

    if not 0 <= need_gib < MOST_GIB:
        raise ConfigError("--need-gib", need_gib, f"is 0 or more, below {MOST_GIB:,}")
    raise typer.Exit(verb.run(need_bytes=int(need_gib * 2**30), as_json=as_json))
