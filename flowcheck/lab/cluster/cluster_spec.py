"""Specification of a virtual cluster: hosts, mirrored ports, MTU, and the names and addresses
that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flowcheck.errors import ConfigError

Direction = Literal["rx", "tx"]
SwitchKind = Literal["bridge", "ovs"]
HOSTS_MAX = 64
"""Hosts. A choice: each is a network namespace with processes on one machine."""
MTUS = (4200, 9000)
"""Bytes of IP: RoCE's path MTU 4096 with its headers, and the usual jumbo frame."""
MONITOR_ROOM = 128
"""Bytes the monitor link carries beyond the hosts' MTU: outer IPv4 20, GRE 8, ERSPAN 12, inner
Ethernet 18, and some to spare. A mirror drops silently what does not fit."""
NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
UPLINK = "eth0"
"""The only interface of a host, and of the checkpoint node."""
MONITOR = "mon0"
"""The switch's end of the link to the checkpoint node."""
BRIDGE = "br0"


@dataclass(frozen=True, slots=True, order=True)
class Mirror:
    """One direction of one port, named as a switch does: rx is what the host sent."""

    port: int
    direction: Direction

    def __str__(self) -> str:
        return f"{port_name(self.port)}:{self.direction}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Everything `up` makes follows from this. Raises ConfigError for what cannot be made."""

    name: str = "lab"
    hosts: int = 2
    switch: SwitchKind = "bridge"
    mirrors: tuple[Mirror, ...] = (Mirror(0, "rx"), Mirror(0, "tx"))
    mtu: int = 4200
    """Bytes of IP per frame between hosts."""
    erspan: bool = False
    """Copies travel in ERSPAN type II, made by the switch."""
    network: int = 0
    """n of the hosts' addresses 10.77.n.0/24."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 2 <= self.hosts <= HOSTS_MAX:
            raise ConfigError("hosts", self.hosts, f"2 to {HOSTS_MAX}")
        if self.switch not in ("bridge", "ovs"):
            raise ConfigError("switch", self.switch, "bridge or ovs")
        if self.mtu not in MTUS:
            raise ConfigError("mtu", self.mtu, " or ".join(map(str, MTUS)))
        if not 0 <= self.network <= 255:
            raise ConfigError("network", self.network, "0 to 255")
        if not self.mirrors or len(set(self.mirrors)) != len(self.mirrors):
            raise ConfigError("mirror", self.words, "at least one port, each direction once")
        for mirror in self.mirrors:
            if not 0 <= mirror.port < self.hosts or mirror.direction not in ("rx", "tx"):
                right = f"a port of p0 to p{self.hosts - 1}, rx or tx"
                raise ConfigError("mirror", str(mirror), right)
        if self.erspan and self.switch != "ovs":
            right = "needs --switch ovs: a Linux bridge copies frames as they are"
            raise ConfigError("erspan", self.erspan, right)

    @property
    def words(self) -> str:
        """The chosen mirrors, as one writes them."""
        return " ".join(map(str, self.mirrors))

    @property
    def monitor_mtu(self) -> int:
        return self.mtu + MONITOR_ROOM

    @property
    def switch_namespace(self) -> str:
        return f"{prefix(self.name)}sw"

    @property
    def checkpoint_namespace(self) -> str:
        return f"{prefix(self.name)}ck"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them, the switch's first."""
        hosts = (self.host_namespace(host) for host in range(self.hosts))
        return (self.switch_namespace, self.checkpoint_namespace, *hosts)

    def host_namespace(self, host: int) -> str:
        return f"{prefix(self.name)}h{host}"

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"10.77.{self.network}.{host + 1}"

    def mac(self, host: int) -> str:
        return f"02:77:{self.network:02x}:00:00:{host + 1:02x}"

    @property
    def checkpoint_mac(self) -> str:
        """Where ERSPAN's outer frames are addressed to."""
        return f"02:77:{self.network:02x}:00:01:01"

    def copies(self, source: int, target: int) -> int:
        """How often a frame from one host to another arrives at the checkpoint node.

        tc copies at every point a frame passes; Open vSwitch once, however many of the mirror's
        ports it passes (ofproto-dpif-xlate.c, mirror_packet: a mirror is taken once per packet).
        """
        points = {Mirror(source, "rx"), Mirror(target, "tx")} & set(self.mirrors)
        return min(len(points), 1) if self.switch == "ovs" else len(points)


def check_name(name: str) -> None:
    """Raises ConfigError for a name that could not be part of a namespace's."""
    if not NAME.fullmatch(name):
        raise ConfigError("name", name, "1 to 12 lower case letters and digits, a letter first")


def prefix(name: str) -> str:
    """How the namespaces of cluster `name` begin; no other cluster's begin so."""
    return f"fcl-{name}-"


def port_name(port: int) -> str:
    return f"p{port}"


def parse_mirrors(words: list[str]) -> tuple[Mirror, ...]:
    """`["p0:both", "p1:rx"]` as mirrors. Raises ConfigError for a word that is not PORT:WHAT."""
    found: list[Mirror] = []
    for word in words:
        match = re.fullmatch(r"p(\d{1,3}):(rx|tx|both)", word)
        if match is None:
            raise ConfigError("mirror", word, "PORT:rx, PORT:tx or PORT:both, e.g. p0:both")
        directions: tuple[Direction, ...] = ("rx", "tx")
        found += (Mirror(int(match[1]), d) for d in directions if match[2] in (d, "both"))
    return tuple(dict.fromkeys(found))
