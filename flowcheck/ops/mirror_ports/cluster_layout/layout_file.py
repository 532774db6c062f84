"""The layout file (TOML) of `flowcheck ports`: nodes, cables, monitor ports, parallel sizes,
traffic figures."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from flowcheck.config.config_decoding import ConfigSection, at_least, convert, refuse_unknown_keys
from flowcheck.config.setting_line import naming_file_and_line
from flowcheck.config.toml_file import read_toml
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    ALGORITHM_REFUSED,
    AT_MOST,
    EXPERTS,
    HOSTS_FOR_PORTS,
    INDIVISIBLE,
    IP_ADDRESS,
    IS_JOB_FILE,
    MONITOR_TWICE,
    NCCL_RELEASE,
    NO_CABLE_ENDS_THERE,
    NO_CABLES,
    NO_MONITORS,
    NODE_NUMBERS,
    NODE_TWICE,
    NOT_TOML,
    ONE_OF,
    ONE_RANGE,
    ORDER_OF_SIZES,
    PARAMETERS_OR_JOB,
    PORT_OR_ERSPAN,
    PORTS_FOR_NODES,
    SPEED,
    SWITCH_TWICE,
    TOO_LARGE,
    TOO_MANY_RANKS,
    UNREADABLE,
    WITHIN,
)
from flowcheck.optimizer_rules.torch_optimizers import PLAN_DEFAULT
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import followed_algorithms, spec_of
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, era_of

RANGE = re.compile(r"\{(\d{1,5})-(\d{1,5})(?::(\d{1,5}))?\}", re.ASCII)
"""A range in a name: first, last, and optionally the stride: "{1-16}", "{1-16:2}"."""


def expand_numbers(key: str, text: str | None, count: int) -> tuple[int, ...]:
    """Numbers of a text such as `0-3,8` -> (0, 1, 2, 3, 8). None: all numbers below `count`.
    Raises ConfigError for other text, and for numbers of `count` or more. key: name of the
    setting, for the message."""
    if text is None:
        return tuple(range(count))
    found: list[int] = []
    for part in text.split(","):
        told = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        last = int(told[2] or told[1]) if told else 0
        if told is None or last < int(told[1]) or last >= count:
            raise ConfigError(key, text, NODE_NUMBERS(count - 1))
        found += range(int(told[1]), last + 1)
    if len(set(found)) != len(found):
        raise ConfigError(key, text, NODE_TWICE())
    return tuple(found)


def expand_range(key: str, ports: str | Sequence[str], most: int) -> tuple[str, ...]:
    """Names that a range stands for, in order; a list of names is returned as it is. Raises
    ConfigError for more than `most` names. key: name of the setting, for the message."""
    if not isinstance(ports, str):
        return tuple(ports)
    told = RANGE.search(ports)
    if told is None:
        return (ports,)
    first, last, stride = int(told[1]), int(told[2]), int(told[3] or 1)
    names = range(first, last + 1, stride) if stride else range(0)
    if not 0 < len(names) <= most or RANGE.search(ports, told.end()):
        raise ConfigError(key, ports, ONE_RANGE(most))
    return tuple(f"{ports[: told.start()]}{number}{ports[told.end() :]}" for number in names)


BYTES_OR_PARAMETERS_MAX = 1 << 50
"""Largest accepted number of bytes or parameters. A choice that catches typing errors."""


class TrafficFigures(ConfigSection, frozen=True):
    """The [traffic] table: figures of the job for rate estimates. They do not decide which ports
    are chosen."""

    gradient_bytes: int
    """Gradient bytes that one rank all-reduces per step."""
    step_s: float
    bucket_bytes: int = 25 << 20
    """torch DistributedDataParallel's bucket_cap_mb in bytes."""
    element_bytes: int = 4
    other_gbps: float = 0.0
    """Mean rate of other traffic (tensor, pipeline and expert parallel, storage) in each direction
    of a port, Gb/s."""

    def __post_init__(self) -> None:
        at_least("traffic.gradient_bytes", self.gradient_bytes, 1)
        at_least("traffic.bucket_bytes", self.bucket_bytes, self.element_bytes)
        _at_most("traffic.gradient_bytes", self.gradient_bytes)
        if self.element_bytes not in (1, 2, 4, 8):
            raise ConfigError("traffic.element_bytes", self.element_bytes, ONE_OF((1, 2, 4, 8)))
        check_speed("traffic.step_s", self.step_s, 1e6)
        if self.other_gbps:
            check_speed("traffic.other_gbps", self.other_gbps)


class ReplicaFigures(ConfigSection, frozen=True):
    """The [replica] table: size of the model, for memory estimates."""

    parameters: int | None = None
    """Trained parameters of one data-parallel group."""
    job: str | None = None
    """Job file of each machine, with [model] factory; replaces the other keys of this table."""
    optimizer: str = PLAN_DEFAULT
    element_bytes: int = 4

    def __post_init__(self) -> None:
        if (self.parameters is None) == (self.job is None):
            raise ConfigError("replica.parameters", self.parameters, PARAMETERS_OR_JOB())
        at_least("replica.parameters", 1 if self.parameters is None else self.parameters, 1)
        _at_most("replica.parameters", self.parameters or 1)
        if self.element_bytes not in (2, 4, 8):
            raise ConfigError("replica.element_bytes", self.element_bytes, ONE_OF((2, 4, 8)))


def _at_most(key: str, value: int) -> None:
    if value > BYTES_OR_PARAMETERS_MAX:
        raise ConfigError(key, value, AT_MOST(BYTES_OR_PARAMETERS_MAX))


def check_speed(key: str, value: float, most: float = 1e5) -> None:
    """Raises ConfigError unless 0 < `value` <= `most`. key: name of the setting; the value is a
    rate in Gb/s or a time in seconds."""
    if not 0 < value <= most:  # NaN is neither
        raise ConfigError(key, value, SPEED(most))


MOST_RANKS = 4096
"""Largest supported number of ranks, as in `flowcheck plan` (ops/planning/wire_traffic.py,
MOST_RANKS)."""
MOST_FILE_BYTES = 4 << 20
"""Largest layout file, bytes. A choice: 1,024 for each of 4,096 ranks; a larger file is refused
unread."""
MOST_CHANNELS = 64
"""Largest number of channels: NCCL src/include/device.h, MAXCHANNELS."""
PATH_MTUS = (256, 512, 1024, 2048, 4096)
"""Path MTUs of RoCE in bytes (InfiniBand specification vol. 1, 9.4.3.1)."""
PARALLEL_SIZES = ("tp", "cp", "dp", "pp")
SEVERAL_ALGORITHMS = {
    "both": tuple(spec.name for spec in followed_algorithms() if not spec.all_ports_of_a_node)
}
"""Values of the `algorithm` key that stand for several algorithms, between which NCCL's tuner
switches."""


class Sharding(StrEnum):
    """How optimizer states are sharded: not at all, or over which ranks."""

    NONE = "none"
    FSDP = "fsdp"
    ZERO = "zero"


class Cable(ConfigSection, frozen=True):
    """A [[cable]] table: one NIC of each of some nodes, and the switch ports that they are cabled
    to."""

    nic: int
    """NCCL's number of the NIC: 2 in `NET/IB/2`."""
    switch: str
    ports: str | tuple[str, ...]
    """One port per node: a list, or a name with a range such as `Ethernet{1-16}/1`."""
    gbps: float
    nodes: str | None = None
    """Nodes as `0-15` or `0,2,4`; None: all nodes."""
    gpus: tuple[int, ...] | None = None
    """GPUs of the node that use this NIC; None: assigned by number."""
    hosts: str | tuple[str, ...] = ()
    """Addresses of the servers at those ports, in the form of `ports`. Used only for [[mirror]]
    tables."""


class Monitor(ConfigSection, frozen=True):
    """A [[monitor]] table: a monitor port or an ERSPAN tunnel that carries copies to a FlowCheck
    machine."""

    switch: str
    gbps: float
    machine: str = "flowcheck"
    """Name of the FlowCheck machine. All copies of a data-parallel group must reach one machine."""
    port: str | None = None
    """Monitor port. With `erspan`, only for switches whose tunnel names its egress port."""
    erspan: str | None = None
    """Tunnel as `src=A,dst=B`, in the form of `flowcheck switch`."""
    session: str | int | None = None
    """Free session number or name for the mirror session."""

    @property
    def label(self) -> str:
        """The monitor port, or the tunnel's options, for display."""
        return f"erspan {self.erspan}" if self.erspan is not None else str(self.port)


class Switch(ConfigSection, frozen=True):
    """A [[switch]] table: system and connection of one switch."""

    name: str
    os: str | None = None
    bridge: str | None = None
    host: str | None = None
    """SONiC: host name as ssh knows it."""


class ClusterLayout(ConfigSection, frozen=True):
    """The whole layout file."""

    nodes: int
    gpus: int
    """GPUs per node."""
    cable: tuple[Cable, ...]
    monitor: tuple[Monitor, ...]
    switch: tuple[Switch, ...] = ()
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    order: str = "tp-cp-dp-pp"
    """Order of the parallel dimensions, the one whose rank changes fastest first (Megatron-LM's
    --rank order)."""
    channels: int | None = None
    """Channels of each communicator; None: two per NIC of a group's GPUs."""
    algorithm: str = str(Algorithm.RING)
    """NCCL_ALGO of the gradient all-reduces: a name of an algorithm, or a key of
    SEVERAL_ALGORITHMS."""
    sharding: Sharding = Sharding.NONE
    protocol: Protocol | None = None
    nccl: str | None = None
    pmtu: int = 4096
    traffic: TrafficFigures | None = None
    replica: ReplicaFigures | None = None

    def __post_init__(self) -> None:
        for key in ("nodes", "gpus", "tp", "cp", "pp"):
            at_least(key, getattr(self, key), 1)
        if self.ranks > MOST_RANKS:
            raise ConfigError("nodes", self.nodes, TOO_MANY_RANKS(MOST_RANKS))
        if self.ep != 1:
            raise ConfigError("ep", self.ep, EXPERTS())
        product = self.tp * self.cp * self.pp
        if self.ranks % product:
            raise ConfigError("tp", self.tp, INDIVISIBLE(product=product, ranks=self.ranks))
        if sorted(self.order.split("-")) != sorted(PARALLEL_SIZES):
            raise ConfigError("order", self.order, ORDER_OF_SIZES(PARALLEL_SIZES))
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise ConfigError("channels", self.channels, WITHIN(least=1, most=MOST_CHANNELS))
        self._check_algorithm()
        if self.pmtu not in PATH_MTUS:
            raise ConfigError("pmtu", self.pmtu, ONE_OF(PATH_MTUS))
        try:
            _ = self.era
        except ValueError as error:
            raise ConfigError("nccl", self.nccl, NCCL_RELEASE()) from error

    def _check_algorithm(self) -> None:
        """Raises ConfigError for what is no algorithm, or is not followed."""
        followed = [str(spec.name) for spec in followed_algorithms()]
        words = dict.fromkeys([*followed, *SEVERAL_ALGORITHMS, *map(str, Algorithm)])
        if self.algorithm not in words:
            raise ConfigError("algorithm", self.algorithm, ONE_OF(tuple(words)))
        for spec in map(spec_of, self.algorithms):
            if not spec.followed:
                why = ALGORITHM_REFUSED(spec.refused_because)
                raise ConfigError("algorithm", self.algorithm, why)

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """All algorithms that the gradient all-reduces use."""
        return SEVERAL_ALGORITHMS.get(self.algorithm) or (Algorithm(self.algorithm),)

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.gpus

    @property
    def dp(self) -> int:
        """Size of the data-parallel dimension."""
        return self.ranks // (self.tp * self.cp * self.pp)

    @property
    def era(self) -> NcclEra:
        """Era of the stated NCCL release; without one, the newest."""
        return NcclEra.V2_29 if self.nccl is None else era_of(self.nccl)


def load_layout(path: Path) -> ClusterLayout:
    """Reads and checks a layout file. Raises ConfigError that names the key and the accepted
    values."""
    tree = read_toml(
        path, "layout file", "FILE",
        most=(MOST_FILE_BYTES, TOO_LARGE), unreadable=UNREADABLE, not_toml=NOT_TOML,
    )  # fmt: skip
    if of_job := [f"[{key}]" for key in ("source", "optimizer", "gradients") if key in tree]:
        raise ConfigError("FILE", str(path), IS_JOB_FILE(of_job))
    with naming_file_and_line(path, ClusterLayout):
        return layout_from_toml(tree)


def layout_from_toml(tree: dict[str, Any]) -> ClusterLayout:
    """Checks a parsed layout file. Raises ConfigError as load_layout()."""
    refuse_unknown_keys(tree, ClusterLayout)  # first, for a misspelt table looks like a missing one
    for key, why in (("cable", NO_CABLES()), ("monitor", NO_MONITORS())):
        if not tree.get(key):
            raise ConfigError(key, None, why)
    topology = convert(tree, ClusterLayout)
    for number, cable in enumerate(topology.cable):
        _check_cable(f"cable[{number}]", cable, topology)
    names = [one.name for one in topology.switch]
    if again := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError("switch.name", again, SWITCH_TWICE())
    known = {cable.switch for cable in topology.cable}
    if wrong := next((name for name in names if name not in known), None):
        raise ConfigError("switch.name", wrong, NO_CABLE_ENDS_THERE(sorted(known)))
    seen: set[tuple[str, str]] = set()
    for number, monitor in enumerate(topology.monitor):
        key = f"monitor[{number}]"
        if monitor.switch not in known:
            why = NO_CABLE_ENDS_THERE(sorted(known))
            raise ConfigError(f"{key}.switch", monitor.switch, why)
        if monitor.port is None and monitor.erspan is None:
            raise ConfigError(f"{key}.port", None, PORT_OR_ERSPAN())
        check_speed(f"{key}.gbps", monitor.gbps)
        if (monitor.switch, monitor.label) in seen:
            raise ConfigError(key, monitor.label, MONITOR_TWICE(monitor.switch))
        seen.add((monitor.switch, monitor.label))
    return topology


def _check_cable(key: str, cable: Cable, topology: ClusterLayout) -> None:
    at_least(f"{key}.nic", cable.nic, 0)
    check_speed(f"{key}.gbps", cable.gbps)
    nodes = expand_numbers(f"{key}.nodes", cable.nodes, topology.nodes)
    ports = expand_range(f"{key}.ports", cable.ports, topology.nodes)
    if len(nodes) != len(ports):
        why = PORTS_FOR_NODES(ports=len(ports), nodes=len(nodes))
        raise ConfigError(f"{key}.ports", cable.ports, why)
    _check_hosts(f"{key}.hosts", cable, topology)
    if wrong := [gpu for gpu in cable.gpus or () if not 0 <= gpu < topology.gpus]:
        raise ConfigError(f"{key}.gpus", wrong[0], WITHIN(least=0, most=topology.gpus - 1))


def _check_hosts(key: str, cable: Cable, topology: ClusterLayout) -> None:
    hosts = expand_range(key, cable.hosts, topology.nodes)
    ports = expand_range(key, cable.ports, topology.nodes)
    if len(hosts) not in (0, len(ports)):
        why = HOSTS_FOR_PORTS(hosts=len(hosts), ports=len(ports))
        raise ConfigError(key, cable.hosts, why)
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise ConfigError(key, host, IP_ADDRESS()) from error
