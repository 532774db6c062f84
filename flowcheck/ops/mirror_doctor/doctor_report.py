"""The report of `doctor --live`: lines and a table for people, one document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table

from flowcheck.findings.finding import code_in_words
from flowcheck.ops.console_output import SentenceConsole, printable
from flowcheck.ops.mirror_doctor.copy_causes import CopyCause, copy_causes
from flowcheck.ops.mirror_doctor.port_figures import Host, Link, PortFigures
from flowcheck.ops.mirror_doctor.port_verdict import PortCheck, PortQuestion
from flowcheck.ops.mirror_doctor.switch_words import SwitchWords
from flowcheck.wire.learn.verdict.collect import short

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
LEVEL_CELLS = 4
"""The widest level."""
SAID_AS = {
    PortQuestion.HALVES: "both halves",
    PortQuestion.ICRC: "ICRC",
    PortQuestion.LOSS: "loss on the way",
    PortQuestion.LOSS_RUNS: "lost in a row",
}
LINKS_MOST = 24
"""Links that the table shows; the JSON has all. A choice of layout."""


class PortReport(msgspec.Struct, frozen=True, kw_only=True):
    """One port's figures and lines."""

    figures: PortFigures
    checks: list[PortCheck]


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one watch."""

    seconds: float
    """How long it took."""
    ports: list[PortReport]
    checks: list[PortCheck]
    """Of all ports together."""
    hosts: list[Host]
    switch: SwitchWords | None

    @property
    def usable(self) -> bool:
        """Nothing has to change."""
        lines = [*self.checks, *(line for port in self.ports for line in port.checks)]
        return all(line.level != "fail" for line in lines)


def print_json(report: DoctorReport) -> None:
    """One document on stdout."""
    document: dict[str, Any] = {
        "usable": report.usable,
        "seconds": report.seconds,
        "ports": [
            {**msgspec.to_builtins(port.figures), "checks": msgspec.to_builtins(port.checks)}
            for port in report.ports
        ],
        "checks": msgspec.to_builtins(report.checks),
        "hosts": msgspec.to_builtins(report.hosts),
        "switch": msgspec.to_builtins(report.switch),
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


def print_port_report(report: DoctorReport) -> None:
    """For people, on stdout."""
    out = SentenceConsole()
    for port in report.ports:
        shown = f"[bold]{escape(printable(port.figures.port))}[/]"
        out.print(f"{shown}, {port.figures.seconds:.3g} s", highlight=False)
        print_lines(out, port.checks)
        if port.figures.links:
            out.print(_links(port.figures.links))
            ends = [(one.source, one.destination) for one in port.figures.links[:LINKS_MOST]]
            addresses = dict.fromkeys(address for pair in ends for address in pair)
            out.print(", ".join(f"{short(one)} = {one}" for one in addresses), highlight=False)
    if report.checks:
        out.print("[bold]All ports together[/]" if len(report.ports) > 1 else "[bold]The ring[/]")
        print_lines(out, report.checks)
    if report.switch is not None:
        out.print(escape(str(report.switch.found)), highlight=False)
        for command in report.switch.commands:
            out.print(f"    {escape(command)}", highlight=False, soft_wrap=True)
    if report.usable:
        out.print("usable: nothing has to change")
    else:
        out.print("[red]something has to change[/]: see each line `fail`")


def print_lines(out: SentenceConsole, checks: Sequence[PortCheck]) -> None:
    names = [code_in_words(line.check, SAID_AS) for line in checks]
    width = max(map(len, names), default=0)
    indent = LEVEL_CELLS + 2 + width + 2
    for line, name in zip(checks, names, strict=True):
        mark = f"[{COLOURS[line.level]}]{line.level:<{LEVEL_CELLS}}[/]"
        found = escape(printable(str(line.found)))
        out.print(f"{mark}  {name:<{width}}  {found}", indent=indent, highlight=False)
        if line.level == "ok":
            continue
        for text in (line.found.cause, line.found.remedy):
            arrow = "-> " if text == line.found.remedy else ""
            if text:
                shown = f"{' ' * indent}[dim]{arrow}{escape(printable(text))}[/]"
                out.print(shown, indent=indent, highlight=False)


def _links(links: Sequence[Link]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("link", no_wrap=True)
    for heading in ("QPs", "data", "bytes", "grants", "acks", "missing", "twice"):
        table.add_column(heading, justify="right", no_wrap=True)
    causes = {(one.source, one.destination): cause for one, cause in copy_causes(links)}
    for link in sorted(links, key=lambda one: -one.data_bytes)[:LINKS_MOST]:
        table.add_row(
            f"{short(link.source)}->{short(link.destination)}",
            str(link.queue_pairs),
            f"{link.data_packets:,}",
            f"{link.data_bytes:,}",
            f"{link.control_packets:,}",
            f"{link.ack_packets:,}",
            _loud(link.missing_packets),
            _loud(link.duplicate_packets)
            if causes.get((link.source, link.destination)) is CopyCause.MIRRORED_TWICE
            else f"{link.duplicate_packets:,}",
        )
    return table


def _loud(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "0"
