"""The Typer application: its top-level commands (analyze, replay, up, status, down, stage,
doctor) and the registration of all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flowcheck import __version__
from flowcheck.cli import checkpoint_cli as cli_steps
from flowcheck.cli import plan_cli as cli_plan
from flowcheck.cli import ports_cli as cli_ports
from flowcheck.cli import serve_cli as cli_serve
from flowcheck.cli import switch_cli as cli_switch
from flowcheck.cli import watch_cli as cli_watch
from flowcheck.cli.shared_options import DEFAULT_RUN, Files, Json, Leftovers, Previous, Run, Svg
from flowcheck.errors import ConfigError
from flowcheck.lab import cli as lab_cli
from flowcheck.private_files import set_private_umask
from flowcheck.stages.privilege import drop_privileges
from flowcheck.stages.stage_table import launchable_stages

MOST_GIB = 1 << 20
"""GiB. A choice that stops slips of the pen: 2^20 GiB is a pebibyte, more than any machine has."""


def stage(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(launchable_stages())}.")],
    run: Run = DEFAULT_RUN,
    number: Annotated[
        int, typer.Option(help="Number of the source (capture) or ring (parse).")
    ] = 0,
    parent: Annotated[
        int | None, typer.Option(help="Process ID: end when it ends; set by the supervisor.")
    ] = None,
    lend: Annotated[
        int | None,
        typer.Option(
            help="File descriptor of a socket: after its stage has ended, this process writes the "
            "checkpoints that are requested there; set by the supervisor."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one stage of a chain in the foreground, as the supervisor does; for debugging."""
    from flowcheck.stages.privilege.drop_privileges import for_stage
    from flowcheck.stages.supervisor import stage_main

    for_stage(name, run, number)
    code = stage_main.run_stage(name, run, number, parent)
    if lend is not None and code == 0:
        from flowcheck.ops.lifecycle.shutdown_checkpoint import run_checkpoint_helper

        run_checkpoint_helper(lend)
    if as_json:
        print(json.dumps({"stage": name, "number": number, "exit_code": code}))
    raise typer.Exit(code)


def doctor(
    need_gib: Annotated[float, typer.Option(help="Memory the job needs, in GiB.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Check this machine: DPDK, huge pages, IOMMU, drivers, DMA engines, CPU, memory."""
    from flowcheck.ops.node import doctor_command as verb

    if not 0 <= need_gib < MOST_GIB:
        raise ConfigError("--need-gib", need_gib, f"must be 0 or more, and below {MOST_GIB:,}")
    raise typer.Exit(verb.run(need_bytes=int(need_gib * 2**30), as_json=as_json))


app = typer.Typer(
    name="flowcheck",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""A checkpoint of every training step, taken from mirrored all-reduce traffic.

A switch mirrors a training host's port to this machine; frames go through a ring, are parsed,
their gradients reassembled, and applied to a replica of the model on the CPU. Training is
launched unchanged and never waits.

First steps:

* `flowcheck doctor` - is this machine ready?

* `flowcheck ports layout.toml` - which ports of which switches to mirror

* `flowcheck switch render` - the commands that make a switch mirror its ports

* `flowcheck analyze capture.pcapng` - what is in a capture, with no job file

* `flowcheck plan model.py:make --world 8` - what a model will put on the wire, before it runs

* `flowcheck replay capture.pcapng --optimizer adamw --lr 1e-4` - the whole chain on a file

* `flowcheck up job.toml` - the chain on a live mirror port

* `flowcheck restore --template step-0.pt --out resume.pt` - the newest step, for the trainer

* `flowcheck lab train` - all of it on this machine: a cluster, a mirror, a killed job that goes on
""",
)
app.add_typer(lab_cli.app, name="lab")
app.add_typer(cli_switch.app, name="switch")


@app.command()
def analyze(
    files: Files,
    model: Annotated[
        str | None,
        typer.Option(
            help="file.py:function that returns the torch module; for jobs without DDP's start-up."
        ),
    ] = None,
    nccl_log: Annotated[
        Path | None,
        typer.Option(
            help="Log of rank 0 with NCCL_DEBUG=INFO: it has the order of ranks in rings."
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="A job file: what it states is used instead of these options."),
    ] = None,
    svg: Svg = None,
    as_json: Json = False,
) -> None:
    """List what captures hold: frames, flows, collectives in order, initial weights.

    Each communicator is explained: its ring, protocols, what the mirrors cover of it and what
    another mirrored port or direction would add; --svg draws that. No job file is needed. What no
    frame could have contradicted is marked `assumed`.
    """
    from flowcheck.ops.analysis import analyze_command as verb

    read = [*files, *([nccl_log] if nccl_log is not None else [])]
    drop_privileges.for_code(model, files=read, job=job, picture=svg)
    raise typer.Exit(
        verb.run(files, model=model, nccl_log=nccl_log, job=job, svg=svg, as_json=as_json)
    )


@app.command()
def replay(
    files: Files,
    optimizer: Annotated[
        str | None,
        typer.Option(help="The trainer's optimizer, a class of torch.optim, such as adamw."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the trainer.")] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="Job file with [optimizer], [ring], ...; its sources are replaced."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a safetensors checkpoint below this folder.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            help="Replay by the time stamps: 1 as recorded, 10 ten times faster; by default as "
            "fast as possible."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="dpdk: read through DPDK's net_pcap; file: read without DPDK; auto: dpdk where it "
            "is built."
        ),
    ] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of data-parallel jobs to follow, each with a replica; default 1.", min=1
        ),
    ] = None,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests", help="Print the sha256 of each step's gradient and of its parameters."
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option("--run", help="Keep the run directory here instead of a temporary one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Send captures through the whole multi-process chain, to a replica and a checkpoint.

    Exit code 0: every step of the captures was applied; 1: none, or not all, with the reason.

    Example: `flowcheck replay c.pcapng --optimizer sgd --lr 0.01 --digests --out ckpt`
    """
    from flowcheck.ops.lifecycle import replay_command as verb

    drop_privileges.for_chain(job, keep, files=files, out=out)
    request = verb.ReplayRequest(
        files=tuple(files),
        optimizer=optimizer,
        learning_rate=lr,
        job=job,
        out=out,
        speed=speed,
        source=source,
        digests=digests,
        run=keep,
        as_json=as_json,
        jobs=jobs,
    )
    raise typer.Exit(verb.run(request))


@app.command()
def up(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.")],
    run: Annotated[
        Path | None, typer.Option("--run", help="Run directory instead of the job file's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the chain of a job file and stay in the foreground until SIGTERM or Ctrl-C.

    Exit code 0: the replica followed to the end; 1: it applied no step, or stopped before the end,
    with the reason; 2: the chain could not run, or failed.
    """
    from flowcheck.ops.lifecycle import up_command as verb

    drop_privileges.for_chain(job, run, live=True)
    raise typer.Exit(verb.up(job, run, as_json=as_json))


@app.command()
def status(
    run: Run = DEFAULT_RUN,
    svg: Svg = None,
    leftovers: Leftovers = False,
    previous: Previous = False,
    as_json: Json = False,
) -> None:
    """Show how far a chain is: stages, ring lags, frames by verdict, steps, losses.

    After its end: why and when it ended, who stopped it, its last step, and what to do next. --svg
    draws the job that was learned: its rings, the mirrored links, what they cover.

    Exit code 0: every stage runs; 1: a stage is gone, or the chain has ended; 2: none was started.
    """
    from flowcheck.ops.lifecycle import status_command as verb

    drop_privileges.keep_root_to_read(run)
    if leftovers:
        raise typer.Exit(verb.list_leftovers(as_json=as_json))
    raise typer.Exit(verb.run(run, svg=svg, previous=previous, as_json=as_json))


@app.command()
def down(
    run: Run = DEFAULT_RUN,
    discard: Annotated[
        bool, typer.Option("--discard", help="Give up the replica of a killed chain.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop a chain, or clean up what a killed one left: processes, shared memory, sockets.

    The replica of a killed chain is written as a checkpoint first; logs and records stay.
    """
    from flowcheck.ops.lifecycle import shutdown_cleanup

    drop_privileges.for_run(run)
    raise typer.Exit(shutdown_cleanup.down(run, discard=discard, as_json=as_json))


app.command()(cli_plan.plan)
app.command()(cli_ports.ports)
app.command()(cli_serve.serve)
app.command()(cli_watch.watch)
app.command()(cli_watch.top)
for step_verb in (cli_steps.restore, cli_steps.audit, cli_steps.base, cli_steps.verify):
    app.command()(step_verb)
app.command()(stage)
app.command()(doctor)


def _version(asked: bool) -> None:
    if asked:
        print(f"flowcheck {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    from flowcheck.ops.command_errors import exit_on_error

    set_private_umask()
    drop_privileges.note_program()
    exit_on_error(app)
