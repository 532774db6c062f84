"""`flowcheck switch list`, `render` and `check`: their arguments and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from flowcheck.cli import switch_apply_cli
from flowcheck.cli.shared_options import Bridge, Erspan, Form, Json, Monitor, Os, SessionId, Sources

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Port mirroring: the commands for each switch, checked before anybody types them.

Directions are the switch's: `rx` is what it receives from a server, which is what that server
sends. Mirror `rx` of two neighbours of the ring.

* `flowcheck switch list` - which switches, how a port is written, what is known of each

* `flowcheck switch render --os eos --source Ethernet1/1 --monitor Ethernet32/1` - what to paste
* `flowcheck switch check --os eos --source Ethernet1/1 --monitor Ethernet32/1 --source-gbps 100
  --monitor-gbps 100` - whether its copies fit

* `flowcheck switch apply --os tc --source eth1 --monitor eth9` - done, not printed: Open vSwitch,
  Linux tc, SONiC over ssh; `flowcheck switch remove --os tc` undoes it
""",
)
app.command()(switch_apply_cli.apply)
app.command()(switch_apply_cli.remove)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the switch systems: names for --os, how a port is written, SPAN, ERSPAN, evidence."""
    from flowcheck.ops.switch import switch_platforms, switch_report

    if as_json:
        found = {
            name: msgspec.to_builtins(one) for name, one in switch_platforms.all_platforms().items()
        }
        print(json.dumps(found, indent=2))
        return
    switch_report.print_platforms()


@app.command()
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
            help="look, setup (looks first), check, save or remove; repeatable [setup, check]."
        ),
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="Only the commands.")] = False,
    as_json: Json = False,
) -> None:
    """Print the commands that make a mirror session: nothing is sent to any switch.

    Commands go to stdout as they are pasted; what to look at first, and where each line was
    learned (V vendor's page, D copy of a manual, M memory), to stderr. `--part remove` undoes it.

    Example: `flowcheck switch render --os nxos --session 1 --source ethernet1/1 --monitor
    ethernet1/32`
    """
    from flowcheck.errors import ConfigError
    from flowcheck.ops.switch import config_rendering as made
    from flowcheck.ops.switch import mirror_session_options, switch_platforms, switch_report

    platform = switch_platforms.platform_named(os)
    wanted = []
    for word in part or ["setup", "check"]:
        if word not in tuple(made.CommandPart):
            raise ConfigError("--part", word, f"is one of {', '.join(made.CommandPart)}")
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


@app.command()
def check(
    os: Os,
    source: Sources,
    source_gbps: Annotated[float, typer.Option(help="Line rate of a watched port, Gb/s.")],
    monitor_gbps: Annotated[
        float, typer.Option(help="Line rate of the monitor port, or of the tunnel's route, Gb/s.")
    ],
    monitor: Monitor = None,
    erspan: Erspan = None,
    session: SessionId = None,
    bridge: Bridge = None,
    state: Annotated[
        Path | None,
        typer.Option(help="TOML: a [[session]] with session, sources, monitor for each there is."),
    ] = None,
    measured_gbps: Annotated[
        float | None, typer.Option(help="The job's mean, one direction of one port, Gb/s.")
    ] = None,
    gradient_bytes: Annotated[
        int | None, typer.Option(help="Or its gradient, with --members and --step-s.")
    ] = None,
    members: Annotated[int | None, typer.Option(help="Of the ring.")] = None,
    step_s: Annotated[float | None, typer.Option(help="Seconds a step.")] = None,
    protocol: Annotated[str, typer.Option(help="NCCL's: simple, ll or ll128.")] = "simple",
    ports_json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or what `flowcheck ports --json` told of these ports."),
    ] = None,
    roce_mtu: Annotated[int, typer.Option(help="Payload of a RoCE frame, bytes.")] = 4096,
    path_mtu: Annotated[
        int | None, typer.Option(help="Smallest IP MTU on a tunnel's route, bytes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell whether a mirror session can work before it is made: a line for each rule.

    Line rates decide, because an all-reduce runs in bursts at line rate; figures of the job turn a
    refusal into a warning at most. Exit code 0: nothing is refused; 1: something is, and why.
    """
    from flowcheck.errors import ConfigError
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
    figures = held.figures(measured_gbps, gradient_bytes, members, step_s, protocol)
    if ports_json is not None:
        if figures is not None:
            raise ConfigError("--ports-json", str(ports_json), "is in place of other figures")
        figures = ports_json_reader.rates_in_ports_json(ports_json, platform, request.sources)
    speeds = held.speeds(source_gbps, monitor_gbps)
    sizes = held.sizes(roce_mtu, path_mtu)
    results = held.check(os, request, speeds, figures, sizes, state)
    code = held.exit_code(results)
    if as_json:
        print(json.dumps({"exit_code": code, "findings": msgspec.to_builtins(results)}, indent=2))
    else:
        switch_report.print_results(results)
    raise typer.Exit(code)
