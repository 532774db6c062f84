"""`flowcheck switch apply` and `remove`: their arguments and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowcheck.cli.shared_options import Bridge, Erspan, Form, Json, Monitor, Os, SessionId, Sources

if TYPE_CHECKING:
    from flowcheck.findings.finding import Finding
    from flowcheck.ops.switch.apply.reconciler import ApplyResult, CommandStep

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="unix:FILE|tcp:HOST:PORT",
        help="Open vSwitch only: its database; default this machine's.",
    ),
]
JournalFolder = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        help="Folder that records what FlowCheck made and cannot mark as its own.",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(metavar="[USER@]HOST", help="SONiC only (required): the switch, as for ssh."),
]
SshConfig = Annotated[
    Path | None,
    typer.Option(
        "--ssh-config", help="SONiC only: configuration file of ssh (-F); default your own."
    ),
]
Save = Annotated[
    bool,
    typer.Option(
        "--save",
        help="SONiC only: save the switch's configuration, with pending changes of others.",
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        help="Accept a monitor port slower than its sources together: copies may be lost.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the difference and the commands; change nothing.")
]


def apply(
    os: Os,
    source: Sources,
    monitor: Monitor = None,
    erspan: Erspan = None,
    session: SessionId = None,
    bridge: Bridge = None,
    database: Database = None,
    host: Host = None,
    ssh_config: SshConfig = None,
    save: Save = False,
    form: Form = None,
    journal: JournalFolder = None,
    oversubscribe: Oversubscribe = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set up a mirror session on Open vSwitch, Linux tc or SONiC: read, print, change, check.

    A second run changes nothing. If a command fails, the earlier ones are undone. Mirrors and
    filters of others are never touched.

    Exit code 0: the switch is as requested; 1: a command failed and all changes were undone; 2:
    refused and nothing was changed, or the undo failed (the message has the commands that repair
    it).

    Example: `flowcheck switch apply --os openvswitch --bridge br0 --source eth1 --monitor eth9`
    """
    from flowcheck.ops.switch import mirror_session_options
    from flowcheck.ops.switch.apply import switch_backends

    where = switch_backends.ApplyOptions(
        database=database,
        host=host,
        ssh_config=ssh_config,
        save=save,
        form=form,
        journal=journal,
        oversubscribe=oversubscribe,
    )
    platform = switch_backends.check_supported(os, where)
    request = mirror_session_options.parse_session(
        platform, source, monitor=monitor, erspan=erspan, session=session, bridge=bridge
    )
    said = _ApplyPrinter(as_json=as_json)
    result = switch_backends.apply(
        os, request, where, dry_run=dry_run, warn=said.warn, tell=said.difference
    )
    said.end(result)


def remove(
    os: Os,
    session: Annotated[
        str, typer.Option("--session", metavar="NAME", help="Name that `apply` gave the session.")
    ] = "flowcheck",
    database: Database = None,
    host: Host = None,
    ssh_config: SshConfig = None,
    save: Save = False,
    keep_hook: Annotated[
        bool,
        typer.Option(
            "--keep-hook",
            help="Linux tc only: keep the empty qdisc clsact, since removing it drops packets.",
        ),
    ] = False,
    journal: JournalFolder = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the mirror session that `flowcheck switch apply` made, and nothing else.

    No ports are needed: FlowCheck marks what it makes. Exit codes are those of `apply`. Linux
    drops what a port sends for some milliseconds when tc's qdisc clsact is removed: --keep-hook
    keeps it.

    Example: `flowcheck switch remove --os openvswitch`
    """
    from flowcheck.ops.switch.apply import switch_backends

    where = switch_backends.ApplyOptions(
        database=database,
        host=host,
        ssh_config=ssh_config,
        save=save,
        keep_hooks=keep_hook,
        journal=journal,
    )
    said = _ApplyPrinter(as_json=as_json)
    said.end(switch_backends.remove(os, session, where, dry_run=dry_run, tell=said.difference))


class _ApplyPrinter:
    """For a person as it happens, for a program at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._notes: list[Finding] = []

    def warn(self, note: Finding) -> None:
        from flowcheck.ops.switch.apply import apply_report

        self._notes.append(note)
        if not self._as_json:
            apply_report.print_warning(note)

    def difference(self, steps: list[CommandStep]) -> None:
        from flowcheck.ops.switch.apply import apply_report

        if not self._as_json:
            apply_report.print_changes(steps)

    def end(self, result: ApplyResult) -> None:
        from flowcheck.ops.switch.apply import apply_report, reconciler

        if self._as_json:
            print(json.dumps(apply_report.as_json(result, self._notes), indent=2))
        else:
            apply_report.print_outcome(result)
        raise typer.Exit(reconciler.EXIT_CODES.get(result.outcome, 0))
