"""`flowcheck switch apply` and `remove`: their arguments and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowcheck.cli.shared_options import Bridge, Erspan, Form, Json, Monitor, Os, SessionId, Sources

if TYPE_CHECKING:
    from flowcheck.ops.switch.apply.reconciler import ApplyResult, CommandStep

Database = Annotated[
    str | None,
    typer.Option("--db", metavar="unix:FILE|tcp:HOST:PORT", help="Of Open vSwitch, if not here."),
]
JournalFolder = Annotated[
    Path | None,
    typer.Option("--journal", help="Where is noted what can carry no mark of ours."),
]
Host = Annotated[
    str | None, typer.Option(metavar="[USER@]HOST", help="Of SONiC: the switch, as ssh knows it.")
]
SshConfig = Annotated[
    Path | None, typer.Option("--ssh-config", help="Of SONiC: ssh's -F, in place of your own.")
]
Save = Annotated[
    bool,
    typer.Option("--save", help="Of SONiC: save over a reboot, others' pending changes too."),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe", help="Also where the sources' line rates exceed the monitor port's."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell the difference, do nothing.")]


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
    """Make a mirror session: look, tell the difference, act, look again.

    Twice is once. What it did is undone where it fails in the middle; mirrors and filters of
    others are never touched. Exit code 0: it is as asked; 1: it failed, and all was undone; 2: it
    was refused and nothing touched, or something is left, with the commands that mend it.

    Example: `flowcheck switch apply --os openvswitch --bridge br0 --source eth1 --monitor eth9`
    """
    from flowcheck.ops.switch import session_parser
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
    request = session_parser.parse_session(
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
        str, typer.Option("--session", metavar="NAME", help="What the session is called.")
    ] = "flowcheck",
    database: Database = None,
    host: Host = None,
    ssh_config: SshConfig = None,
    save: Save = False,
    keep_hook: Annotated[
        bool,
        typer.Option("--keep-hook", help="Of tc: leave the empty qdisc clsact where it is."),
    ] = False,
    journal: JournalFolder = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take away the session that apply made under this name, and nothing of anybody else.

    Ports are not named: what is ours is found by its mark. Exit codes as for apply. Linux drops
    what a port sends for some milliseconds when tc's hook goes: --keep-hook leaves it.

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
        self._notes: list[str] = []

    def warn(self, sentence: str) -> None:
        from flowcheck.ops.switch.apply import apply_report

        self._notes.append(sentence)
        if not self._as_json:
            apply_report.warned(sentence)

    def difference(self, steps: list[CommandStep]) -> None:
        from flowcheck.ops.switch.apply import apply_report

        if not self._as_json:
            apply_report.difference(steps)

    def end(self, result: ApplyResult) -> None:
        from flowcheck.ops.switch.apply import apply_report, reconciler

        if self._as_json:
            print(json.dumps(apply_report.as_json(result, self._notes), indent=2))
        else:
            apply_report.ended(result)
        raise typer.Exit(reconciler.EXIT_CODES.get(result.outcome, 0))
