"""The `flowcheck switch` command lines that mirror the chosen ports, one for each monitor port."""

from __future__ import annotations

import shlex

import msgspec

from flowcheck.ops.mirror_ports.search.branch_and_bound import load_by_monitor
from flowcheck.ops.mirror_ports.search.monitor_port_limits import (
    MonitorPort,
    MonitorPorts,
    mirror_sources,
)
from flowcheck.ops.mirror_ports.search.port_choice import PortChoice
from flowcheck.ops.switch.switch_platforms import platform_named


class SwitchCommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """`flowcheck switch` commands for one monitor port, ready to paste."""

    switch: str
    os: str
    monitor: str
    render: str
    apply: str | None = None
    """`flowcheck switch apply` command, for systems that it supports; None: not supported."""


def command_lines(choice: PortChoice, monitors: MonitorPorts) -> tuple[SwitchCommandLine, ...]:
    """The commands for all switches whose system is known."""
    from flowcheck.ops.switch.apply.switch_backends import APPLY_SYSTEMS

    found: list[SwitchCommandLine] = []
    for number, pairs in sorted(load_by_monitor(choice.placed).items()):
        spot = monitors.monitor_ports[number]
        if spot.os is None:
            continue
        platform = platform_named(spot.os)
        words = ["--os", spot.os]
        for source in mirror_sources(platform, pairs):
            words += ["--source", str(source)]
        if spot.monitor.port is not None:
            words += ["--monitor", platform.canonical_port(spot.monitor.port, monitor=True)]
        if spot.monitor.erspan is not None:
            words += ["--erspan", spot.monitor.erspan]
        if spot.session is not None:
            words += ["--session", spot.session]
        if spot.bridge is not None:
            words += ["--bridge", spot.bridge]
        found.append(
            SwitchCommandLine(
                switch=spot.monitor.switch,
                os=spot.os,
                monitor=spot.monitor.label,
                render=shlex.join(["flowcheck", "switch", "render", *words]),
                apply=_apply(spot, words) if spot.os in APPLY_SYSTEMS else None,
            )
        )
    return tuple(found)


def _apply(spot: MonitorPort, words: list[str]) -> str | None:
    """Where a switch is reached over ssh, only if it is said where it is."""
    if spot.os != "sonic":
        return shlex.join(["flowcheck", "switch", "apply", *words])
    if spot.host is None:
        return None
    return shlex.join(["flowcheck", "switch", "apply", *words, "--host", spot.host])
