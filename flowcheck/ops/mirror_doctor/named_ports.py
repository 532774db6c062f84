"""What the operator named: a kernel interface, a NIC by PCI address, or a capture file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flowcheck.config import SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_port import NAMED_TWICE, NEITHER_PORT_NOR_FILE, NOT_A_FILE
from flowcheck.ops.job_setup.capture_port_check import check_capture_ports, interfaces
from flowcheck.plane.frame_sources.dpdk_eal import PCI, Device, parse_device

KEY = "--live"
LIKE_A_PATH = re.compile(r"/|\.(pcap|pcapng|cap)$")
"""A name that can only be meant as a file: no interface's has a slash (dev_valid_name of the
kernel)."""


class PortKind(StrEnum):
    INTERFACE = "interface"
    PCI = "pci"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class NamedPort:
    """One port to watch."""

    name: str
    """As it is shown; a PCI address has its domain."""
    kind: PortKind

    @property
    def live(self) -> bool:
        return self.kind is not PortKind.FILE

    @property
    def source(self) -> SourceConfig:
        """As a job file would name it."""
        return SourceConfig(**{self.kind.value: self.name})  # type: ignore[arg-type]

    def device(self, number: int) -> Device:
        """As DPDK takes it. number: among the ports of this process."""
        if self.kind is PortKind.PCI:
            return parse_device(self.name)
        return parse_device(f"net_af_packet{number},iface={self.name}")


def named_ports(
    names: Sequence[str], there: Callable[[], Sequence[str]] = interfaces
) -> list[NamedPort]:
    """The ports of these names. there: interfaces of this machine. Raises ConfigError for what is
    neither a port nor a file, and for a port that is named twice."""
    found: list[NamedPort] = []
    for name in names:
        port = _named_port(name, there)
        if port in found:
            raise ConfigError(KEY, name, NAMED_TWICE())
        found.append(port)
    return found


def _named_port(name: str, there: Callable[[], Sequence[str]]) -> NamedPort:
    if PCI.fullmatch(name.lower()):
        port = NamedPort(parse_device(name).name, PortKind.PCI)
        check_capture_ports([port.source])
        return port
    known = there()
    if name in known and not LIKE_A_PATH.search(name):
        return NamedPort(name, PortKind.INTERFACE)
    if LIKE_A_PATH.search(name) or (name and os.path.lexists(name)):
        path = Path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise ConfigError(KEY, name, NOT_A_FILE())
        return NamedPort(str(path), PortKind.FILE)
    raise ConfigError(KEY, name, NEITHER_PORT_NOR_FILE(there=tuple(known) or ("none",)))
