"""The Typer application: its top-level commands (analyze, replay, up, status, down, stage,
doctor) and the registration of all others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flowcheck import __version__
from flowcheck.cli import checkpoint_cli as cli_steps
from flowcheck.cli import fleet_cli as cli_fleet
from flowcheck.cli import plan_cli as cli_plan
from flowcheck.cli import plan_loss_cli as cli_plan_loss
from flowcheck.cli import ports_cli as cli_ports
from flowcheck.cli import serve_cli as cli_serve
from flowcheck.cli import switch_cli as cli_switch
from flowcheck.cli import watch_cli as cli_watch
from flowcheck.cli.option_names import naming_options
from flowcheck.cli.shared_options import (
    DEFAULT_RUN,
    Files,
    Json,
    Leftovers,
    Previous,
    Run,
    Svg,
    read_on,
)
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_port import (
    NEED_BESIDE_PORT,
    OPTION_WITHOUT_PORT,
    WATCH_SECONDS,
)
from flowcheck.findings.catalog.privileges import READS_ONLY
from flowcheck.findings.catalog.refused_options import LEFTOVERS_ALONE, MEMORY_SIZE
from flowcheck.findings.named_run import set_named_run
from flowcheck.lab import cli as lab_cli
from flowcheck.ops.command_app import CommandApp
from flowcheck.private_files import set_private_umask
from flowcheck.stages.privilege import drop_privileges
from flowcheck.stages.stage_table import launchable_stages
from flowcheck.stages.supervisor.stage_starter import start_ahead

MOST_GIB = 1 << 20
"""GiB. A choice that stops slips of the pen: 2^20 GiB is a pebibyte, more than any machine has."""


def stage(
    name: Annotated[str, typer.Argument(help=f"Stage to run: {', '.join(launchable_stages())}.")],
    run: Run = DEFAULT_RUN,
    number: Annotated[
        int, typer.Option(help="Which source (capture) or ring (parse), counted from 0.")
    ] = 0,
    parent: Annotated[
        int | None,
        typer.Option(help="End when the process with this ID ends; set by the supervisor."),
    ] = None,
    checkpoint_socket: Annotated[
        int | None,
        typer.Option(
            help="Descriptor of the socket for checkpoint requests; set by the supervisor."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one stage of a chain in the foreground, as the supervisor does; for debugging.

    Example: `flowcheck stage extract --run /run/flowcheck/job`
    """
    from flowcheck.stages.privilege.drop_privileges import drop_for_stage
    from flowcheck.stages.supervisor import stage_main

    drop_for_stage(name, run, number)
    code = stage_main.run_stage(name, run, number, parent)
    if checkpoint_socket is not None and code == 0:
        from flowcheck.ops.lifecycle.shutdown_checkpoint import run_checkpoint_helper

        run_checkpoint_helper(checkpoint_socket)
    if as_json:
        print(json.dumps({"stage": name, "number": number, "exit_code": code}))
    raise typer.Exit(code)


def doctor(
    need_gib: Annotated[
        float, typer.Option(help="Memory that the job needs, GiB; 0: not checked.")
    ] = 0.0,
    live: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PORT",
            help="Watch this mirror port instead: an interface, a PCI address, or a capture file; "
            "repeatable.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long to watch the ports, default 10.")
    ] = None,
    os: Annotated[
        str | None,
        typer.Option(
            "--os",
            help="Print what the settings are called on this switch system too, by a name that "
            "`flowcheck switch list` prints.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether this machine is ready: DPDK, huge pages, IOMMU, drivers, DMA engines, memory.

    `flowcheck plan job.toml` prints the memory that a job needs. Exit code 0: ready; 1: something
    is missing, with what to do.

    With `--live` it watches a mirror port while the trainers train and tells what it brings: RoCE
    writes, both halves of the ring, duplicates, tunnels, cut frames, checksums, loss, bursts, load.
    A chain may capture the port meanwhile. Exit code 0: usable; 1: something has to change on the
    switch or here, with what.

    Examples: `flowcheck doctor --need-gib 224`, `flowcheck doctor --live eth1 --os nxos`
    """
    if live:
        raise typer.Exit(_watch_ports(live, seconds, os, need_gib, as_json))
    for option, value in (("--seconds", seconds), ("--os", os)):
        if value is not None:
            raise ConfigError(option, value, OPTION_WITHOUT_PORT())
    from flowcheck.ops.node import doctor_command as verb

    if not 0 <= need_gib < MOST_GIB:
        raise ConfigError("--need-gib", need_gib, MEMORY_SIZE(MOST_GIB))
    raise typer.Exit(verb.run(need_bytes=int(need_gib * 2**30), as_json=as_json))


def _watch_ports(
    names: list[str], seconds: float | None, os: str | None, need_gib: float, as_json: bool
) -> int:
    from flowcheck.ops.mirror_doctor import live_doctor as verb
    from flowcheck.ops.mirror_doctor.capturing_chains import chain_at
    from flowcheck.ops.mirror_doctor.named_ports import named_ports

    if need_gib:
        raise ConfigError("--need-gib", need_gib, NEED_BESIDE_PORT())
    seconds = verb.SECONDS_DEFAULT if seconds is None else seconds
    if not verb.SECONDS_LEAST <= seconds <= verb.SECONDS_MOST:
        right = WATCH_SECONDS(least=verb.SECONDS_LEAST, most=verb.SECONDS_MOST)
        raise ConfigError("--seconds", seconds, right)
    ports = named_ports(names)
    chains = [chain for port in ports if (chain := chain_at(port)) is not None]
    drop_privileges.drop_for_watch([port.source for port in ports], [one.run for one in chains])
    return verb.run(names, seconds=seconds, os=os, as_json=as_json)


app = CommandApp(
    name="flowcheck",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""A checkpoint of every training step, taken from mirrored all-reduce traffic.

A switch mirrors a training host's port to this machine. FlowCheck captures the packets,
reassembles the gradients, and applies them to a replica of the model on the CPU. The training job
runs unchanged and never waits for FlowCheck. The processes that do this are a chain: capture,
parse, extract, update.

First steps:

* `flowcheck doctor` - check whether this machine is ready

* `flowcheck ports layout.toml` - choose which switch ports to mirror

* `flowcheck switch render` - print the commands that make a switch mirror them

* `flowcheck analyze capture.pcapng` - show what a capture holds, without a job file

* `flowcheck plan model.py:make --world 8` - predict a model's traffic before it runs

* `flowcheck replay capture.pcapng --optimizer adamw --lr 1e-4` - run the chain on a capture

* `flowcheck up job.toml` - run the chain on a live mirror port

* `flowcheck restore --template step-0.pt --out resume.pt` - write the newest step for the trainer

* `flowcheck lab train` - try it all on this machine: train on an emulated cluster, kill, resume
""",
    epilog=read_on("README.md"),
)
app.add_typer(lab_cli.app, name="lab")
app.add_typer(cli_switch.app, name="switch")
app.add_typer(cli_fleet.app, name="fleet")


@app.command(epilog=read_on("flowcheck/wire/README.md"))
def analyze(
    files: Files,
    model: Annotated[
        str | None,
        typer.Option(
            help="Function that returns the torch module, file.py:function; for captures without "
            "DDP's start-up."
        ),
    ] = None,
    nccl_log: Annotated[
        Path | None,
        typer.Option(
            help="Output of rank 0 with NCCL_DEBUG=INFO, which has the order of ranks in each ring."
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="Job file, used instead of --model and --nccl-log."),
    ] = None,
    svg: Svg = None,
    as_json: Json = False,
) -> None:
    """Show what captures hold: frames, flows, collectives in order, initial weights.

    For each communicator it shows the ring, the protocols, which chunks the mirrored ports cover,
    and what another mirrored port or direction would add. No job file is needed. Facts that no
    frame could contradict are marked `assumed`.

    Exit code 0: the captures were read, whatever they hold; 2: one cannot be read, or an option is
    refused.

    Example: `flowcheck analyze capture.pcapng --svg rings.svg`
    """
    from flowcheck.ops.analysis import analyze_command as verb

    read = [*files, *([nccl_log] if nccl_log is not None else [])]
    drop_privileges.drop_for_user_code(model, files=read, job=job, picture=svg)
    raise typer.Exit(
        verb.run(files, model=model, nccl_log=nccl_log, job=job, svg=svg, as_json=as_json)
    )


@app.command(epilog=read_on("README.md"))
def replay(
    files: Files,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Optimizer of the trainer, a class of torch.optim; default without --job: sgd, "
            "assumed."
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of the trainer; default without --job: 0.01, as an assumption that "
            "is printed."
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            help="Job file with [optimizer] and more; the captures replace its sources, --out its "
            "folders."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a checkpoint (safetensors) below this folder.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            help="Speed relative to the time stamps: 1 as recorded, 10 ten times faster; default: "
            "as fast as possible."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="How captures are read: dpdk (through DPDK's net_pcap), file (without DPDK), or "
            "auto (dpdk if it is built)."
        ),
    ] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of data-parallel jobs in the captures, each with a replica; default 1.",
            min=1,
        ),
    ] = None,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests", help="Print the sha256 of the gradient and of the parameters of each step."
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--run", help="Keep the run directory in this folder; default: a temporary one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole chain on captures: follow the job, build its replica, write a checkpoint.

    Exit code 0: every step in the captures was applied; 1: steps are missing, with the reason;
    2: a file cannot be read, or an option is refused.

    Example: `flowcheck replay c.pcapng --optimizer sgd --lr 0.01 --digests --out ckpt`
    """
    from flowcheck.ops.lifecycle import replay_command as verb

    drop_privileges.drop_for_chain(job, keep, files=files, out=out)
    request = verb.ReplayRequest(
        files=tuple(files),
        optimizer=optimizer,
        learning_rate=lr,
        job=job,
        output=out,
        speed=speed,
        source=source,
        digests=digests,
        run=keep,
        as_json=as_json,
        jobs=jobs,
    )
    raise typer.Exit(verb.run(request))


@app.command(epilog=read_on("scripts/node/README.md"))
def up(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="JOB.toml", help="Job file: sources, optimizer, model, run directory."
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Run directory; default: as the job file states it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow a live training job: run the chain of a job file until SIGTERM or Ctrl-C.

    Start it before the training job: the initial weights are broadcast only once.

    Exit code 0: the replica followed the job to its end; 1: it applied no step, or stopped before
    the end, with the reason; 2: the chain could not run, or failed.

    Example: `flowcheck up job.toml`
    """
    from flowcheck.config import load_job, naming_job_file
    from flowcheck.ops.job_setup.capture_port_check import check_capture_ports
    from flowcheck.ops.job_setup.output_folder_check import check_output_folders
    from flowcheck.stages.run_directory.start_notice import start_notice

    set_named_run(run)  # None: as the job file states it, which the same command reads again
    with naming_job_file(job):
        stated = load_job(job)
        with start_notice(run or Path(stated.run)):
            check_capture_ports(stated.source, job)  # before root makes folders for the chain
            check_output_folders(job)
            drop_privileges.drop_for_chain(job, run, live=True)
            from flowcheck.ops.lifecycle import up_command as verb

            raise typer.Exit(verb.up(job, run, as_json=as_json))


@app.command(epilog=read_on("flowcheck/ops/watch/README.md"))
def status(
    run: Run = DEFAULT_RUN,
    svg: Svg = None,
    leftovers: Leftovers = False,
    previous: Previous = False,
    as_json: Json = False,
) -> None:
    """Show the state of a chain once: health, stages, ring fill, frames by verdict, steps, losses.

    After the chain's end it shows why and when it ended, who stopped it, the last step, and what to
    do next.

    Exit code 0: every stage runs; 1: a stage is gone, or the chain has ended; 2: no chain was
    started in this run directory, or one is just being started.

    Example: `flowcheck status --run /run/flowcheck/job`
    """
    from flowcheck.ops.lifecycle import status_command as verb

    set_named_run(run)
    drop_privileges.keep_root_to_read(run)
    if leftovers:
        raise typer.Exit(verb.list_leftovers(as_json=as_json))
    raise typer.Exit(verb.run(run, svg=svg, previous=previous, as_json=as_json))


@app.command(epilog=read_on("flowcheck/ops/lifecycle/README.md"))
def down(
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="Run directory of the chain, as the job file states it.",
            show_default=str(DEFAULT_RUN),
        ),
    ] = None,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Delete the replica of a killed chain without writing it as a checkpoint.",
        ),
    ] = False,
    leftovers: Annotated[
        bool,
        typer.Option(
            "--leftovers",
            help="Remove only the memory of killed chains whose run directory is gone or was "
            "temporary; no chain is stopped.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop a chain, or clean up what a killed one left: processes, shared memory, sockets.

    The replica of a killed chain is written as a checkpoint first. Logs and records stay.

    Exit code 0: nothing runs there any more, or nothing did; 2: no chain was started in the folder
    that --run names.

    Example: `flowcheck down --run /run/flowcheck/job`
    """
    from flowcheck.ops.lifecycle import shutdown_cleanup

    if leftovers:
        if run is not None or discard:
            raise ConfigError("--leftovers", True, LEFTOVERS_ALONE())
        drop_privileges.forbid_user_code(READS_ONLY())
        raise typer.Exit(shutdown_cleanup.remove_unowned(as_json=as_json))
    where = DEFAULT_RUN if run is None else run
    set_named_run(where)
    drop_privileges.drop_for_run(where)
    code = shutdown_cleanup.down(where, named=run is not None, discard=discard, as_json=as_json)
    raise typer.Exit(code)


for verb, page in (
    (cli_plan.plan, "flowcheck/ops/planning/README.md"),
    (cli_plan_loss.plan_loss, "flowcheck/ops/packet_loss/README.md"),
    (cli_ports.ports, "flowcheck/ops/mirror_ports/README.md"),
    (cli_serve.serve, "flowcheck/vault/README.md"),
    (cli_watch.watch, "flowcheck/ops/watch/README.md"),
    (cli_watch.top, "flowcheck/ops/watch/README.md"),
    (cli_steps.restore, "flowcheck/vault/README.md"),
    (cli_steps.audit, "flowcheck/vault/README.md"),
    (cli_steps.base, "flowcheck/stages/README.md"),
    (cli_steps.verify, "flowcheck/vault/README.md"),
    (stage, "flowcheck/stages/README.md"),
    (doctor, "scripts/node/README.md"),
):
    app.command(epilog=read_on(page))(verb)


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


def _program() -> None:
    from flowcheck import __main__ as program

    program.main()


def main() -> None:
    """The console script."""
    from flowcheck.cli.usage_errors import run_app
    from flowcheck.ops.command_errors import exit_on_error

    def run() -> None:
        with naming_options(sys.argv[1:]):
            run_app(app)

    set_private_umask()
    start_ahead(sys.argv[1:], _program)
    drop_privileges.note_program()
    exit_on_error(run)
