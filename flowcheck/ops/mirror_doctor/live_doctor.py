"""`flowcheck doctor --live`: watches ports for some seconds, then says what has to change.

What is opened belongs to this process alone: rings without names, packet sockets, promiscuous mode
by such a socket. Whatever ends the process, nothing of it stays.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from flowcheck.errors import CaptureError, FlowCheckError
from flowcheck.findings.catalog.mirror_port import CHAIN_HAS_PORT
from flowcheck.ops.mirror_doctor.capturing_chains import CapturingChain, chain_at
from flowcheck.ops.mirror_doctor.chain_watch import ChainWatch
from flowcheck.ops.mirror_doctor.doctor_report import (
    DoctorReport,
    PortReport,
    print_json,
    print_port_report,
)
from flowcheck.ops.mirror_doctor.live_port import LivePort, promiscuous_socket, start_dpdk
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind, named_ports
from flowcheck.ops.mirror_doctor.port_figures import PortFigures, hosts_of, joined_links, losses_of
from flowcheck.ops.mirror_doctor.port_verdict import checks_of, checks_of_all
from flowcheck.ops.mirror_doctor.port_watch import PortWatch
from flowcheck.ops.mirror_doctor.switch_words import switch_words
from flowcheck.stages.privilege.drop_privileges import give_up_capabilities

SECONDS_DEFAULT = 10.0
"""A choice: some steps of most trainings."""
SECONDS_LEAST, SECONDS_MOST = 0.1, 600.0
"""Bounds of the watch. The longest bounds memory: a sum is kept for each millisecond."""
IDLE_S = 0.001
"""Seconds of a pause while nothing waits. A choice: the rings have room for more."""


def run(
    names: Sequence[str],
    *,
    seconds: float = SECONDS_DEFAULT,
    os: str | None = None,
    as_json: bool = False,
) -> int:
    """Watches the ports and prints the report; 1 if something has to change, else 0.

    names: interfaces, PCI addresses, capture files. seconds: how long live ports are watched. os:
    switch system whose words and commands are printed too. Raises ConfigError for a name or system
    that is unknown, CaptureError where a port cannot be watched.
    """
    words = None if os is None else switch_words(os)
    began_s = time.monotonic()
    with ended_by_signal() as stop:
        figures = watch_ports(named_ports(names), seconds, stop)
    took_s = time.monotonic() - began_s
    ports = [PortReport(figures=one, checks=checks_of(one, seconds=one.seconds)) for one in figures]
    report = DoctorReport(
        seconds=round(took_s, 3),
        ports=ports,
        checks=checks_of_all(figures),
        hosts=hosts_of(joined_links(figures)),
        switch=words,
    )
    (print_json if as_json else print_port_report)(report)
    return int(not report.usable)


@contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set in place of what they do: the watch ends early, and
    tells what it saw so far."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()

    taken = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in taken]
    try:
        yield stop
    finally:
        for number, handler in zip(taken, before, strict=True):
            signal.signal(number, handler)


@dataclass
class _Watches:
    """All that is watched, in the order of the command line."""

    order: list[NamedPort]
    seen: dict[NamedPort, PortWatch] = field(default_factory=dict)
    of_chains: dict[NamedPort, ChainWatch] = field(default_factory=dict)
    beside: dict[NamedPort, tuple[CapturingChain, dict[str, int]]] = field(default_factory=dict)
    """Chain that captures the same interface, and its capture counters at the beginning."""


def watch_ports(ports: list[NamedPort], seconds: float, stop: threading.Event) -> list[PortFigures]:
    """The figures of each port, in their order."""
    with ExitStack() as opened:
        watches = _Watches(ports)
        own = _split(watches)
        for port in [*own, *(one for one in ports if not one.live)]:
            watches.seen[port] = opened.enter_context(PortWatch(port))
        began_s = _start(watches, own, opened)
        until_s = began_s + (seconds if any(port.live for port in ports) else float("inf"))
        _look_until(watches, until_s, stop)
        took_s = time.monotonic() - began_s
        for seen in watches.seen.values():
            seen.finish()
        return [_figures(watches, port, took_s) for port in ports]


def _split(watches: _Watches) -> list[NamedPort]:
    """The live ports that are opened here; of the others a chain's counters are watched."""
    own = []
    for port in watches.order:
        chain = chain_at(port)
        if chain is not None and port.kind is PortKind.PCI:
            try:
                watches.of_chains[port] = ChainWatch(port, chain)
            except (FlowCheckError, OSError) as error:
                why = CHAIN_HAS_PORT(port=port.name, run=chain.run, why=error)
                raise CaptureError(0, why) from error
        elif port.live:
            own.append(port)
            if chain is not None:
                watches.beside[port] = (chain, chain.counters()["capture"])
    return own


def _start(watches: _Watches, own: Sequence[NamedPort], opened: ExitStack) -> float:
    """Opens the ports and gives up what rights that took; when the watch began."""
    for port in own:
        if port.kind is PortKind.INTERFACE:
            opened.enter_context(promiscuous_socket(port.name))
    mbufs = start_dpdk(own) if own else 0
    live = [
        opened.enter_context(LivePort(port, number, watches.seen[port].ring, mbufs))
        for number, port in enumerate(own)
    ]
    if all(port.kind is PortKind.INTERFACE for port in own):
        give_up_capabilities()  # a NIC under DPDK needs them to be closed
    began_s = time.monotonic()
    for port, receiving in zip(own, live, strict=True):
        watches.seen[port].attach(receiving)
    return began_s


def _look_until(watches: _Watches, until_s: float, stop: threading.Event) -> None:
    """Serves all ports in turn until the time is over or, of files, all were read."""
    pending = dict(watches.seen)
    live = bool(watches.of_chains) or any(port.live for port in pending)
    while not stop.is_set() and time.monotonic() < until_s:
        done = 0
        for port, seen in list(pending.items()):
            done += seen.turn()
            if seen.ended:
                seen.check_end()
                del pending[port]
        for chain in watches.of_chains.values():
            chain.look()
        if not live and not pending:
            return
        if not done:
            stop.wait(IDLE_S)


def _figures(watches: _Watches, port: NamedPort, took_s: float) -> PortFigures:
    if port in watches.of_chains:
        return watches.of_chains[port].figures(took_s)
    seen = watches.seen[port]
    found = seen.figures(took_s)
    if not port.live and seen.was_rewritten:
        found = _without_icrc(port, found)
    if port in watches.beside:
        chain, before = watches.beside[port]
        found.chain = str(chain.run)
        now = chain.counters()["capture"]
        found.chain_losses = losses_of({name: now[name] - before.get(name, 0) for name in now})
    return found


def _without_icrc(port: NamedPort, found: PortFigures) -> PortFigures:
    """A file is read again from its beginning: its first frames were left out as wrong ones."""
    with PortWatch(port, icrc_every=0) as again:
        while not again.ended:
            again.turn()
        second = again.figures(found.seconds)
    second.icrc_checked, second.icrc_every = found.icrc_checked, 0
    return second
