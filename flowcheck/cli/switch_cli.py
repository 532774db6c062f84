"""`flowcheck switch list`, `render` and `check`: their arguments and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from flowcheck.cli import switch_apply_cli
from flowcheck.cli.shared_options import (
    Bridge,
    Erspan,
    Form,
    Json,
    Monitor,
    Os,
    SessionId,
    Sources,
    read_on,
)
from flowcheck.ops.command_app import CommandApp

MORE = read_on("switch_configs/README.md")

app = CommandApp(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog=MORE,
    help="""Set up port mirroring on a switch: check a session, print its commands, or apply it.

Directions are the switch's: `rx` is what it receives from a server, which is what that server
sends. Mirror `rx` of two neighbours in the NCCL ring; `flowcheck ports` chooses the ports.

* `flowcheck switch list` - the supported switch systems

* `flowcheck switch check --os eos --source Ethernet1/1 --monitor Ethernet32/1 --source-gbps 100
  --monitor-gbps 100` - whether the copies fit the monitor port

* `flowcheck switch render --os eos --source Ethernet1/1 --monitor Ethernet32/1` - the commands,
  ready to paste

* `flowcheck switch apply --os tc --source eth1 --monitor eth9` - sets it up directly: Open
  vSwitch, Linux tc, SONiC over ssh

* `flowcheck switch remove --os tc` - removes what `apply` made
""",
)
app.command(epilog=MORE)(switch_apply_cli.apply)
app.command(epilog=MORE)(switch_apply_cli.remove)


@app.command("list", epilog=MORE)
def list_(as_json: Json = False) -> None:
    """List the switch systems: the name for --os, how ports are written, SPAN, ERSPAN, evidence.

    Evidence says where the commands were learned: V in the vendor's pages, D in a copy of a manual,
    M from memory.

    Example: `flowcheck switch list`
    """
    from flowcheck.ops.switch import switch_platforms, switch_report

    if as_json:
        found = {
            name: msgspec.to_builtins(one) for name, one in switch_platforms.all_platforms().items()
        }
        print(json.dumps(found, indent=2))
        return
    switch_report.print_platforms()


@app.command(epilog=MORE)
def render(
    os: Os,
    source: Sources,
    monitor: Monitor = None,
    erspan: Erspan = None,
    session: SessionId = None,
    bridge: Bridge = None,
    form: Form = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Part to print: look, setup, check, save or remove; repeatable; default setup and "
            "check."
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Print only the commands, without remarks on stderr.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the commands that set up a mirror session; nothing is sent to a switch.

    stdout has the commands, ready to paste. stderr has what to look at first, and where each line
    was learned: V in the vendor's pages, D in a copy of a manual, M from memory. `--part remove`
    prints the commands that undo it.

    Example: `flowcheck switch render --os nxos --session 1 --source ethernet1/1 --monitor
    ethernet1/32`
    """
    from flowcheck.errors import ConfigError
    from flowcheck.findings.catalog.refused_options import NOT_A_PART
    from flowcheck.ops.switch import config_rendering as made
    from flowcheck.ops.switch import mirror_session_options, switch_platforms, switch_report

    platform = switch_platforms.platform_named(os)
    wanted = []
    for word in part or ["setup", "check"]:
        if word not in tuple(made.CommandPart):
            raise ConfigError("--part", word, NOT_A_PART(", ".join(made.CommandPart)))
        wanted.append(made.CommandPart(word))
    request = mirror_session_options.parse_session(
        platform, source, monitor=monitor, erspan=erspan, session=session, bridge=bridge
    )
    lines = made.render(os, request, wanted, form)
    if as_json:
        absent = platform.go_on_if(tunnel=request.tunnel is not None)
        told = {"os": os, "notes": switch_report.heading(platform, request), "absent": absent}
        print(json.dumps(told | {"lines": msgspec.to_builtins(lines)}, indent=2))
        return
    switch_report.print_commands(platform, request, lines, wanted, bare=bare)


@app.command(epilog=MORE)
def check(
    os: Os,
    source: Sources,
    source_gbps: Annotated[float, typer.Option(help="Line rate of each mirrored port, Gb/s.")],
    monitor_gbps: Annotated[
        float, typer.Option(help="Line rate of the monitor port (or of the tunnel's route), Gb/s.")
    ],
    monitor: Monitor = None,
    erspan: Erspan = None,
    session: SessionId = None,
    bridge: Bridge = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the switch's present sessions as [[session]] tables, to find "
            "overlaps."
        ),
    ] = None,
    measured_gbps: Annotated[
        float | None,
        typer.Option(help="Mean rate of the job in one direction of a port, measured, Gb/s."),
    ] = None,
    gradient_bytes: Annotated[
        int | None,
        typer.Option(
            help="To compute that mean: bytes of gradient that a rank sums in a step; needs "
            "--members and --step-s."
        ),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="To compute that mean: number of ranks in the ring.")
    ] = None,
    step_s: Annotated[
        float | None, typer.Option(help="To compute that mean: duration of a step, seconds.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="NCCL protocol of the gradients: simple, ll or ll128.")
    ] = "simple",
    ports_json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take that mean from this output of `flowcheck ports layout.toml --json`.",
        ),
    ] = None,
    roce_mtu: Annotated[
        int, typer.Option(help="RoCE path MTU, bytes: 256, 512, 1024, 2048 or 4096.")
    ] = 4096,
    path_mtu: Annotated[
        int | None,
        typer.Option(
            help="With --erspan: smallest IP MTU on the tunnel's route, bytes; default: unchecked."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether a mirror session can work before it is made; prints one line per rule.

    Line rates decide, because an all-reduce runs in bursts at line rate. The job's mean rate
    (--measured-gbps, or --gradient-bytes, --members and --step-s, or --ports-json) can turn a
    refusal into a warning. Exit code 0: no rule refuses; 1: a rule refuses, with the reason.

    Example: `flowcheck switch check --os eos --source Ethernet1/1 --monitor Ethernet32/1
    --source-gbps 100 --monitor-gbps 100`
    """
    from flowcheck.errors import ConfigError
    from flowcheck.findings.catalog.refused_options import ONE_SOURCE_OF_RATES
    from flowcheck.ops.switch import (
        mirror_session_options,
        ports_json_reader,
        switch_platforms,
        switch_report,
    )
    from flowcheck.ops.switch import session_check as held

    platform = switch_platforms.platform_named(os)
    request = mirror_session_options.parse_session(
        platform, source, monitor=monitor, erspan=erspan, session=session, bridge=bridge
    )
    figures = held.job_figures(measured_gbps, gradient_bytes, members, step_s, protocol)
    if ports_json is not None:
        if figures is not None:
            raise ConfigError("--ports-json", str(ports_json), ONE_SOURCE_OF_RATES())
        figures = ports_json_reader.rates_in_ports_json(ports_json, platform, request.sources)
    speeds = held.line_rates(source_gbps, monitor_gbps)
    sizes = held.mtu_sizes(roce_mtu, path_mtu)
    results = held.check(os, request, speeds, figures, sizes, state)
    code = held.exit_code(results)
    if as_json:
        print(json.dumps({"exit_code": code, "findings": msgspec.to_builtins(results)}, indent=2))
    else:
        switch_report.print_results(results)
    raise typer.Exit(code)
