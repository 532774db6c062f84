"""A job's layout as its operator states it: nodes, cables, monitor ports, sizes, figures."""

from __future__ import annotations

import ipaddress
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

from flowcheck.config.strict import Section, at_least, convert
from flowcheck.errors import ConfigError
from flowcheck.ops.ports.figures import Replica, Traffic, check_speed
from flowcheck.ops.ports.ranges import expanded, numbered
from flowcheck.wire.terms import Protocol, Rule, rule_of

MOST_RANKS = 4096
"""As `flowcheck plan` (ops/planning/cost.py, MOST_RANKS)."""
MOST_FILE_BYTES = 4 << 20
MOST_CHANNELS = 64
"""NCCL src/include/device.h, MAXCHANNELS."""
SIZES = ("tp", "cp", "dp", "pp")
NOT_RINGS = {
    "nvls": "NVLink SHARP sums inside a node, and its trees between nodes are not followed",
    "collnet": "the switch itself sums (SHARP): no port carries what a ring would",
    "pat": "its sums are not followed",
}


class Algorithm(StrEnum):
    """NCCL_ALGO of the gradients' all-reduces; `both` where NCCL's tuner takes turns."""

    RING = "ring"
    TREE = "tree"
    BOTH = "both"
    NVLS = "nvls"
    COLLNET = "collnet"
    PAT = "pat"


class Sharding(StrEnum):
    """Who has a parameter's optimizer state."""

    NONE = "none"
    FSDP = "fsdp"
    ZERO = "zero"


class Cable(Section, frozen=True):
    """One NIC of each of some nodes, and where it is plugged in."""

    nic: int
    """NCCL's number of it: 2 in `NET/IB/2`."""
    switch: str
    ports: str | tuple[str, ...]
    """A port for each node in turn: a list, or a name with a range, `Ethernet{1-16}/1`."""
    gbps: float
    nodes: str | None = None
    """`0-15` or `0,2,4`; None: every node."""
    gpus: tuple[int, ...] | None = None
    """Of the node: those whose traffic goes by this NIC; None: by number."""
    hosts: str | tuple[str, ...] = ()
    """Addresses of the servers at those ports, as `ports`: for `[[mirror]]` tables alone."""


class Monitor(Section, frozen=True):
    """A port that copies leave by, or a tunnel, to the machine with FlowCheck."""

    switch: str
    gbps: float
    machine: str = "flowcheck"
    """Where it ends: all copies of one data-parallel group end at one machine."""
    port: str | None = None
    """With erspan only where a system's tunnel names the port it leaves by."""
    erspan: str | None = None
    """`src=A,dst=B`, as for `flowcheck switch`."""
    session: str | int | None = None
    """A free number, or a name, of the mirror session that will hold it."""

    @property
    def called(self) -> str:
        return f"erspan {self.erspan}" if self.erspan is not None else str(self.port)


class Switch(Section, frozen=True):
    """What is said of a switch, where anything is."""

    name: str
    os: str | None = None
    bridge: str | None = None
    host: str | None = None
    """Of SONiC, as ssh reaches it."""


class Topology(Section, frozen=True):
    """The whole file."""

    nodes: int
    gpus: int
    """Of each node."""
    cable: tuple[Cable, ...]
    monitor: tuple[Monitor, ...]
    switch: tuple[Switch, ...] = ()
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    order: str = "tp-cp-dp-pp"
    """Which rank differs first: Megatron-LM's order, the fastest first."""
    channels: int | None = None
    """Of the communicator; None: one for each NIC of a group's GPUs, doubled."""
    algorithm: Algorithm = Algorithm.RING
    sharding: Sharding = Sharding.NONE
    protocol: Protocol | None = None
    nccl: str | None = None
    pmtu: int = 4096
    traffic: Traffic | None = None
    replica: Replica | None = None

    def __post_init__(self) -> None:
        for key in ("nodes", "gpus", "tp", "cp", "pp"):
            at_least(key, getattr(self, key), 1)
        if self.ranks > MOST_RANKS:
            why = f"{MOST_RANKS:,} ranks are the most that are planned for"
            raise ConfigError("nodes", self.nodes, why)
        if self.ep != 1:
            why = "experts' gradients go by rings of their own, which are not planned: state 1"
            raise ConfigError("ep", self.ep, why)
        if self.ranks % (self.tp * self.cp * self.pp):
            why = f"tp * cp * pp does not divide the {self.ranks} ranks"
            raise ConfigError("tp", self.tp, why)
        if sorted(self.order.split("-")) != sorted(SIZES):
            raise ConfigError("order", self.order, f"names each of {', '.join(SIZES)} once")
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise ConfigError("channels", self.channels, f"is 1 to {MOST_CHANNELS}")
        if self.algorithm in NOT_RINGS:
            why = f"{NOT_RINGS[self.algorithm]}: NCCL_ALGO=Ring makes rings of it"
            raise ConfigError("algorithm", str(self.algorithm), why)
        if self.pmtu not in (256, 512, 1024, 2048, 4096):
            raise ConfigError("pmtu", self.pmtu, "is one of 256, 512, 1024, 2048, 4096")
        try:
            _ = self.rule
        except ValueError as error:
            raise ConfigError("nccl", self.nccl, 'state it as "2.21" or "2.21.5"') from error

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def dp(self) -> int:
        return self.ranks // (self.tp * self.cp * self.pp)

    @property
    def rule(self) -> Rule:
        """Of the stated NCCL release, else of the newest."""
        return Rule.V2_29 if self.nccl is None else rule_of(self.nccl)


def load(path: Path) -> Topology:
    """A layout, checked. Raises ConfigError naming the key and what would be right."""
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ConfigError("FILE", str(path), f"is larger than {MOST_FILE_BYTES:,} bytes")
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError("FILE", str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("FILE", str(path), f"is not TOML: {error}") from error
    return topology_from(tree)


def topology_from(tree: dict[str, Any]) -> Topology:
    """The checked layout of a parsed file. Raises ConfigError."""
    for key, what in (("cable", "where each NIC is plugged in"), ("monitor", "a monitor port")):
        if not tree.get(key):
            raise ConfigError(key, "not stated", f"state at least one [[{key}]]: {what}")
    topology = convert(tree, Topology)
    for number, cable in enumerate(topology.cable):
        _check_cable(f"cable[{number}]", cable, topology)
    names = [one.name for one in topology.switch]
    if again := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError("switch.name", again, "is said of two switches")
    known = {cable.switch for cable in topology.cable}
    if wrong := next((name for name in names if name not in known), None):
        why = f"no cable ends there; cables end at {', '.join(sorted(known))}"
        raise ConfigError("switch.name", wrong, why)
    seen: set[tuple[str, str]] = set()
    for number, monitor in enumerate(topology.monitor):
        key = f"monitor[{number}]"
        if monitor.switch not in known:
            why = f"no cable ends there; cables end at {', '.join(sorted(known))}"
            raise ConfigError(f"{key}.switch", monitor.switch, why)
        if monitor.port is None and monitor.erspan is None:
            raise ConfigError(f"{key}.port", "not stated", "state it, or erspan")
        check_speed(f"{key}.gbps", monitor.gbps)
        if (monitor.switch, monitor.called) in seen:
            raise ConfigError(key, monitor.called, f"is stated twice, of {monitor.switch}")
        seen.add((monitor.switch, monitor.called))
    return topology


def _check_cable(key: str, cable: Cable, topology: Topology) -> None:
    at_least(f"{key}.nic", cable.nic, 0)
    check_speed(f"{key}.gbps", cable.gbps)
    nodes = numbered(f"{key}.nodes", cable.nodes, topology.nodes)
    ports = expanded(f"{key}.ports", cable.ports, topology.nodes)
    if len(nodes) != len(ports):
        why = f"names {len(ports)} ports, for {len(nodes)} nodes"
        raise ConfigError(f"{key}.ports", cable.ports, why)
    _check_hosts(f"{key}.hosts", cable, topology)
    if wrong := [gpu for gpu in cable.gpus or () if not 0 <= gpu < topology.gpus]:
        raise ConfigError(f"{key}.gpus", wrong[0], f"is 0 to {topology.gpus - 1}")


def _check_hosts(key: str, cable: Cable, topology: Topology) -> None:
    hosts = expanded(key, cable.hosts, topology.nodes)
    ports = expanded(key, cable.ports, topology.nodes)
    if len(hosts) not in (0, len(ports)):
        raise ConfigError(key, cable.hosts, f"names {len(hosts)} servers, at {len(ports)} ports")
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise ConfigError(key, host, "must be an IP address") from error
