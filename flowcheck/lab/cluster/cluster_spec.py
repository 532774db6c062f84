"""Specification of a virtual cluster: hosts, mirrored ports, MTU, and the names and addresses
that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import (
    CLUSTER_NAME,
    ERSPAN_NEEDS_OVS,
    MIRROR_FORM,
    MIRROR_OF_HOST,
    MIRRORS_ONCE,
    MTU_CHOICES,
    NICS_SHARED_OUT,
    SWITCH_KIND,
    WITHIN,
)

Direction = Literal["rx", "tx"]
SwitchKind = Literal["bridge", "ovs"]
HOSTS_MAX = 64
"""Largest number of hosts. A choice: each is a network namespace with processes on one machine."""
MTUS = (4200, 9000)
"""Supported IP MTUs in bytes: RoCE's path MTU 4096 with headers, and the usual jumbo frame."""
MONITOR_ROOM = 128
"""Bytes by which the monitor link's MTU exceeds the hosts': outer IPv4 20, GRE 8, ERSPAN 12, inner
Ethernet 18, and a reserve. A mirror silently drops frames that do not fit."""
NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
GPUS_MAX = 16
"""Largest number of emulated GPUs of a host. A choice: each is a process with its own model."""
PORTS_MAX = 128
"""Largest number of ports. A choice: each is a veth pair, and its number is part of an address."""
UPLINK = "eth0"
"""Name of the first mirrored interface of a host, and of the checkpoint node's that takes the
copies."""
MONITOR = "mon0"
"""Name of the switch's interface to the checkpoint node."""
BRIDGE = "br0"
MANAGEMENT = "mgmt"
"""Name of the end of a management link: in a host alone, on the checkpoint node with the host's
number."""


@dataclass(frozen=True, slots=True, order=True)
class Mirror:
    """One direction of one port, named from the switch: rx is what the host sends."""

    port: int
    direction: Direction

    def __str__(self) -> str:
        return f"{port_name(self.port)}:{self.direction}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Specification of a cluster; all names and addresses follow from it. Construction raises
    ConfigError for one that cannot be built."""

    name: str = "lab"
    hosts: int = 2
    gpus: int = 1
    """Emulated GPUs of each host, a rank each."""
    nics: int = 1
    """NICs of each host, a switch port each."""
    switch: SwitchKind = "bridge"
    mirrors: tuple[Mirror, ...] = (Mirror(0, "rx"), Mirror(0, "tx"))
    mtu: int = 4200
    """MTU of the hosts: bytes of an IP packet."""
    erspan: bool = False
    """True: the switch sends the copies through an ERSPAN type II tunnel."""
    network: int = 0
    """n in the hosts' addresses 10.77.n.0/24."""
    management: bool = False
    """True: each host has a second link, to the checkpoint node and past the switch, so that it is
    never mirrored. In 10.78.n.0/24."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 2 <= self.hosts <= HOSTS_MAX:
            raise ConfigError("hosts", self.hosts, WITHIN(least=2, most=HOSTS_MAX))
        if not 1 <= self.gpus <= GPUS_MAX:
            raise ConfigError("gpus-per-host", self.gpus, WITHIN(least=1, most=GPUS_MAX))
        if self.nics < 1 or self.gpus % self.nics:
            raise ConfigError("nics-per-host", self.nics, NICS_SHARED_OUT(self.gpus))
        if self.ports > PORTS_MAX:
            most = PORTS_MAX // self.hosts
            raise ConfigError("nics-per-host", self.nics, WITHIN(least=1, most=most))
        if self.switch not in ("bridge", "ovs"):
            raise ConfigError("switch", self.switch, SWITCH_KIND())
        if self.mtu not in MTUS:
            raise ConfigError("mtu", self.mtu, MTU_CHOICES(first=MTUS[0], second=MTUS[1]))
        if not 0 <= self.network <= 255:
            raise ConfigError("network", self.network, WITHIN(least=0, most=255))
        if not self.mirrors or len(set(self.mirrors)) != len(self.mirrors):
            raise ConfigError("mirror", self.words, MIRRORS_ONCE())
        for mirror in self.mirrors:
            if not 0 <= mirror.port < self.ports or mirror.direction not in ("rx", "tx"):
                raise ConfigError("mirror", str(mirror), MIRROR_OF_HOST(self.ports - 1))
        if self.erspan and self.switch != "ovs":
            raise ConfigError("erspan", self.erspan, ERSPAN_NEEDS_OVS())

    @property
    def ranks(self) -> int:
        """Number of emulated GPUs of all hosts."""
        return self.hosts * self.gpus

    @property
    def ports(self) -> int:
        """Number of switch ports of all hosts, p0, p1, ...: a host's follow each other."""
        return self.hosts * self.nics

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Interfaces of a host, by NIC."""
        return tuple(f"{UPLINK[:-1]}{nic}" for nic in range(self.nics))

    @property
    def words(self) -> str:
        """The mirrors as the --mirror option writes them."""
        return " ".join(map(str, self.mirrors))

    @property
    def monitor_mtu(self) -> int:
        """MTU of the link to the checkpoint node, bytes."""
        return self.mtu + MONITOR_ROOM

    @property
    def switch_namespace(self) -> str:
        """Network namespace of the switch."""
        return f"{prefix(self.name)}sw"

    @property
    def checkpoint_namespace(self) -> str:
        """Network namespace of the checkpoint node."""
        return f"{prefix(self.name)}ck"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All network namespaces, the switch's first."""
        hosts = (self.host_namespace(host) for host in range(self.hosts))
        return (self.switch_namespace, self.checkpoint_namespace, *hosts)

    def host_namespace(self, host: int) -> str:
        """Network namespace of a host."""
        return f"{prefix(self.name)}h{host}"

    def host_of_port(self, port: int) -> int:
        """The host at a switch port."""
        return port // self.nics

    def port_address(self, port: int) -> str:
        """IPv4 address of the NIC at a switch port."""
        return f"10.77.{self.network}.{port + 1}"

    def address(self, host: int) -> str:
        """IPv4 address of a host: of its first NIC."""
        return self.port_address(host * self.nics)

    def management_address(self, host: int) -> str:
        """IPv4 address of a host on its management link."""
        return f"10.78.{self.network}.{host + 1}"

    @property
    def checkpoint_management_address(self) -> str:
        """IPv4 address of the checkpoint node on all management links."""
        return f"10.78.{self.network}.254"

    def mac(self, port: int) -> str:
        """MAC address of the NIC at a switch port."""
        return f"02:77:{self.network:02x}:00:00:{port + 1:02x}"

    @property
    def checkpoint_mac(self) -> str:
        """MAC address of the checkpoint node, destination of ERSPAN's outer frames."""
        return f"02:77:{self.network:02x}:00:01:01"

    def copies(self, source: int, target: int) -> int:
        """How often a frame from one port to another arrives at the checkpoint node. tc copies it
        at each mirrored point that it passes; Open vSwitch copies it once, whatever the number of
        ports (ofproto-dpif-xlate.c, mirror_packet: each mirror is applied once per packet)."""
        points = {Mirror(source, "rx"), Mirror(target, "tx")} & set(self.mirrors)
        return min(len(points), 1) if self.switch == "ovs" else len(points)


def check_name(name: str) -> None:
    """Raises ConfigError for a name that cannot be part of a namespace's name."""
    if not NAME.fullmatch(name):
        raise ConfigError("name", name, CLUSTER_NAME())


def prefix(name: str) -> str:
    """Prefix of the namespaces of cluster `name`, different for each cluster."""
    return f"fcl-{name}-"


def port_name(port: int) -> str:
    """Name of the switch's interface to a host."""
    return f"p{port}"


def parse_mirrors(words: list[str]) -> tuple[Mirror, ...]:
    """Mirrors from texts such as `["p0:both", "p1:rx"]`. Raises ConfigError for other text."""
    found: list[Mirror] = []
    for word in words:
        match = re.fullmatch(r"p(\d{1,3}):(rx|tx|both)", word)
        if match is None:
            raise ConfigError("mirror", word, MIRROR_FORM())
        directions: tuple[Direction, ...] = ("rx", "tx")
        found += (Mirror(int(match[1]), d) for d in directions if match[2] in (d, "both"))
    return tuple(dict.fromkeys(found))
