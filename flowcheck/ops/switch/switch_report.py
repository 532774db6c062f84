"""Prints switch platforms, rendered commands and check findings: notes on stderr, what is
pasted on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from flowcheck.ops.switch import monitor_capacity, session_check
from flowcheck.ops.switch.config_rendering import CommandPart, RenderedLine, paste_order
from flowcheck.ops.switch.mirror_session import ErspanTunnel, MirrorSession
from flowcheck.ops.switch.session_rules import RuleResult
from flowcheck.ops.switch.switch_platforms import EVIDENCE, Platform, all_platforms

WEAKEST = (
    "SPAN, ERSPAN: the weakest letter of any line of set-up, in any direction; "
    "`flowcheck switch check` says your session's, and which lines are from memory."
)
UNTRIED = "FlowCheck's authors have tried none of them on a switch."
EVERY = (
    "Nothing else on the monitor port: no STP, LLDP, address or VLAN; flow control and PFC "
    "off at both ends of it (a capture card that pauses the switch harms the training).",
)
HEADINGS = {
    CommandPart.LOOK: "Look first. Go on only if {absent}:",
    CommandPart.SETUP: "Set up:",
    CommandPart.CHECK: "Check:",
    CommandPart.SAVE: "Save over a reboot, others' pending changes too:",
    CommandPart.REMOVE: (
        "Remove, once `--part check` shows these very ports in it (another's would go):"
    ),
}
NOTHING = "Nothing to do: what is configured is saved already, or cannot be."


def print_platforms() -> None:
    """Prints a table of the platforms on stdout."""
    rows = [("--os", "system", "session", "a port", "SPAN", "ERSPAN")]
    for name, one in all_platforms().items():
        called = "{}-{}".format(*one.numbers) if one.numbers else one.identity
        rows.append((name, one.title, called, one.example, one.span, one.erspan or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(" ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip())
    print("; ".join(f"{key} = {what}" for key, what in EVIDENCE.items()))
    print(WEAKEST)
    print(UNTRIED)


def heading(platform: Platform, session: MirrorSession) -> list[str]:
    """The notes to read before pasting: from the platform's template, and about the session's
    ports."""
    what = [f"{platform.title}: {platform.tried}"]
    for source in session.sources:
        told = {"rx": "sends", "tx": "receives", "both": "sends and receives"}[source.direction]
        what.append(f"{source}: what the server at {source.port} {told}")
    cut = f"Copies must not be cut. This does it, and stays unset: {platform.truncation}."
    if session.tunnel is None:
        return [*what, *EVERY, cut, *platform.remarks, *platform.span_remarks]
    needed, formula = monitor_capacity.outer_bytes(platform, session_check.ROCE_MTUS[-1])
    path = (
        f"Every hop of the tunnel's route must carry IP packets of {needed} bytes, {formula}, for "
        "a path MTU of RoCE of 4096: larger ones than it carries are lost or come in pieces."
    )
    return [
        *what,
        path,
        *_unsaid(platform, session),
        cut,
        *platform.remarks,
        *platform.erspan_remarks,
    ]


def _unsaid(platform: Platform, session: MirrorSession) -> list[str]:
    """Words of the tunnel the platform's commands have no place for, where they were chosen."""
    one = session.tunnel
    if one is None:
        return []
    default = ErspanTunnel(source=one.source, destination=one.destination)
    given = {
        "src": str(one.source),
        "id": None if one.number == default.number else str(one.number),
        "ttl": None if one.ttl == default.ttl else str(one.ttl),
        "dscp": None if one.dscp == default.dscp else str(one.dscp),
    }
    words = [f"{key}={given[key]}" for key in platform.erspan_unsaid if given[key]]
    if not words:
        return []
    return [f"Not said to the switch, no word for it is known here: {', '.join(words)}."]


def print_commands(
    platform: Platform,
    session: MirrorSession,
    lines: Sequence[RenderedLine],
    parts: Sequence[CommandPart],
    *,
    bare: bool,
) -> None:
    """Prints the commands on stdout; headings and the evidence of each line go to stderr. bare:
    only the commands."""
    from flowcheck.ops.console_output import SentenceConsole

    console = SentenceConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not bare:
        for note in heading(platform, session):
            console.print(f"* {note}", style="dim")
    groups = {part: list(some) for part, some in groupby(lines, lambda line: line.part)}
    absent = platform.go_on_if(tunnel=session.tunnel is not None)
    for part in paste_order(parts):
        if not bare:
            console.print(f"\n{HEADINGS[part].format(absent=absent)}", style="bold")
            if part not in groups:
                console.print(NOTHING)
        for line in groups.get(part, []):
            print(line.command)
        sys.stdout.flush()
    if not bare:
        _evidence(console, lines)


def _evidence(console: Any, lines: Sequence[RenderedLine]) -> None:
    from rich.table import Table

    table = Table("line", "evidence", "command", box=None)
    for number, line in enumerate(lines, start=1):
        table.add_row(str(number), line.evidence, line.command)
    meaning = "; ".join(f"{key} = {what}" for key, what in EVIDENCE.items())
    console.print(f"\nEvidence of each line: {meaning}", style="bold")
    console.print(table)


def print_results(results: Sequence[RuleResult]) -> None:
    """Prints one line per rule on stdout, and below it what to do where one refuses or warns."""
    width = max(len(found.rule) for found in results)
    for found in results:
        print(f"{found.verdict:<6}  {found.rule:<{width}}  {found.why}")
        if found.why.remedy:
            print(f"{'':<{width + 10}}{found.why.remedy}")
