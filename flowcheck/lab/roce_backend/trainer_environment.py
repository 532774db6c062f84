"""Settings of the emulated NIC and of NCCL from a trainer's environment variables. Names are
NCCL's where NCCL has one (docs.nvidia.com/deeplearning/nccl, environment variables); others begin
with FLOWCHECK_LAB_. An invalid value ends the process with a message, since its traffic would not
have the requested form."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flowcheck.lab.roce_backend.rank_places import nic_of

INTERFACE = "FLOWCHECK_LAB_INTERFACE"
"""Interface of the emulated NIC, or those of a host's several NICs with commas between, of which a
rank takes the one nearest to its GPU. Without this variable nothing of this package is loaded into
a trainer."""

PROTOCOLS = {"LL": 0, "LL128": 1, "SIMPLE": 2}
"""NCCL_PROTO value -> enum fcl_protocol (dpdk_ext/lab/fcl_comm.h)."""
ANY_PROTOCOL = 3
"""FCL_ANY_PROTOCOL of enum fcl_protocol: without NCCL_PROTO the message size decides."""
ALL_BYTES = 1 << 62
"""More than any all-reduce has."""
ALGORITHMS = {"RING": (0, ALL_BYTES), "TREE": (ALL_BYTES, ALL_BYTES), "NVLSTREE": (0, 0)}
"""NCCL_ALGO value -> bytes below which all-reduces use trees, bytes from which on NVLS trees."""

NCCL2 = "TORCH_DIST_USE_NCCL2"
"""What chooses torch's backend nccl2, from torch 2.14 on."""
FUSES_BROADCASTS = 22900
"""The first release of NCCL that makes one gather of grouped broadcasts (src/enqueue.cc)."""
VERSIONS = tuple(range(19, 31))
"""Minor releases of NCCL 2 that can be emulated."""

PATH_MTUS = (4096, 2048, 1024, 512, 256)
"""Path MTUs of InfiniBand in bytes, largest first (IB specification vol. 1, chapter 9)."""
HEADERS_BYTES = 64
"""Header bytes of a frame: IPv4 20, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4."""

MOST_CHANNELS = 32
"""Largest number of channels. A choice below NCCL's limit of 64 (src/include/device.h,
MAXCHANNELS): the lab needs no more queue pairs."""
MOST_QPS = 8
"""Largest number of queue pairs per connection. A choice: the lab needs no more."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendSettings:
    """Settings of one trainer; field names as in struct fcl_net_settings and fcl_comm_settings."""

    interface: str
    """Of this rank's NIC."""
    nic: int
    """Number of that NIC on its host."""
    first_interface: str
    """Of the host's first NIC, which has the host's route."""
    nccl_version: int
    """NCCL release as a number: 21900 for 2.19."""
    pmtu_bytes: int
    protocol: int
    channels: int
    buffer_bytes: int
    """NCCL_BUFFSIZE in bytes; 0: NCCL's default."""
    tree_below: int
    """All-reduces of fewer bytes use trees: all with NCCL_ALGO=Tree, none with Ring. NCCL's tuner
    uses a model of the machine instead."""
    nvls_from: int
    """All-reduces of so many bytes and more use NVLS trees, where NCCL of this release has them:
    all with NCCL_ALGO=NVLSTree, none with Ring or Tree, or NCCL_NVLS_ENABLE=0."""
    qps_per_connection: int
    split_data: int
    adaptive: int
    random_qpn: int
    traffic_class: int
    timeout_ms: int
    retries: int
    loss: float
    reorder: float
    seed: int
    nccl2: int
    """1: what torch's nccl2 asks of NCCL in place of what its older backend asks."""
    truth: Path | None
    """Folder for the ground truth of every collective (JSON lines); None: none is written."""


def _stop(name: str, value: str, right: str) -> SystemExit:
    return SystemExit(f"flowcheck lab: {name}={value} is not understood: {right}")


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not re.fullmatch(r"\d{1,19}", text) or not low <= int(text) <= high:
            raise _stop(name, text, f"a whole number from {low} to {high} is needed")
        return int(text)

    return read


def _probability(name: str, text: str) -> float:
    if not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", text) or not 0 <= float(text) < 1:
        raise _stop(name, text, "a probability from 0 to less than 1 is needed")
    return float(text)


def _version(name: str, text: str) -> int:
    match = re.fullmatch(r"2\.(\d{1,2})(?:\.(\d{1,2}))?", text)
    if match is None or int(match[1]) not in VERSIONS:
        raise _stop(name, text, f"2.{VERSIONS[0]} to 2.{VERSIONS[-1]} are emulated")
    return 20000 + int(match[1]) * 100 + int(match[2] or 0)


def _protocol(name: str, text: str) -> int:
    if text.upper() not in PROTOCOLS:
        raise _stop(name, text, "LL, LL128 or Simple is needed")
    return PROTOCOLS[text.upper()]


def _algorithms(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """What NCCL_ALGO says; None: it is not set."""
    text = environment.get("NCCL_ALGO", "").strip()
    if text and text.upper() not in ALGORITHMS:
        raise _stop("NCCL_ALGO", text, "Ring, Tree or NVLSTree is needed")
    return ALGORITHMS[text.upper()] if text else None


def largest_path_mtu(interface: str, sysfs: Path = Path("/sys/class/net")) -> int:
    """Largest RoCE path MTU in bytes whose frames fit the interface's MTU."""
    try:
        room = int((sysfs / interface / "mtu").read_text())
    except (OSError, ValueError):
        raise SystemExit(
            f"flowcheck lab: {INTERFACE}={interface}: there is no such network interface here"
        ) from None
    fitting = [mtu for mtu in PATH_MTUS if mtu + HEADERS_BYTES <= room]
    if not fitting:
        raise SystemExit(f"flowcheck lab: {interface} has an MTU of {room}, too small for RoCE")
    return fitting[0]


def _interfaces(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """The host's interfaces, and the number of this rank's, by torchrun's LOCAL_RANK and
    LOCAL_WORLD_SIZE."""
    told = environment[INTERFACE].strip()
    interfaces = told.split(",")
    if not all(re.fullmatch(r"[^\s/,]{1,15}", one) for one in interfaces):
        raise _stop(INTERFACE, told, "the name of a network interface is needed")
    ranks = int(environment.get("LOCAL_WORLD_SIZE") or 1)
    local = int(environment.get("LOCAL_RANK") or 0)
    return interfaces, nic_of(local, max(ranks, local + 1), len(interfaces))


def read_settings(environment: Mapping[str, str] = os.environ) -> BackendSettings:
    """Settings of this process. Raises SystemExit with a message for an invalid value."""

    def value(name: str, parse: Callable[[str, str], Number], default: Number) -> Number:
        text = environment.get(name, "").strip()
        return parse(name, text) if text else default

    interfaces, nic = _interfaces(environment)
    interface = interfaces[nic]
    version = value("FLOWCHECK_LAB_NCCL", _version, 22900)
    least = value("NCCL_MIN_NCHANNELS", _number(1, MOST_CHANNELS), 1)
    most = value("NCCL_MAX_NCHANNELS", _number(1, MOST_CHANNELS), MOST_CHANNELS)
    pmtu = value("FLOWCHECK_LAB_PMTU", _number(1, PATH_MTUS[0]), 0)
    if pmtu not in (0, *PATH_MTUS):
        raise _stop("FLOWCHECK_LAB_PMTU", str(pmtu), "256, 512, 1024, 2048 or 4096 is needed")
    truth = environment.get("FLOWCHECK_LAB_TRUTH", "").strip()
    switch, some_bytes = _number(0, 1), _number(0, ALL_BYTES)
    tree_below, nvls_from = _algorithms(environment) or (
        value("FLOWCHECK_LAB_TREE_BELOW", some_bytes, 0),
        value("FLOWCHECK_LAB_NVLS_FROM", some_bytes, ALL_BYTES),
    )
    nccl2 = value(NCCL2, switch, 0)
    if nccl2 and version < FUSES_BROADCASTS:
        raise _stop(NCCL2, str(nccl2), "grouped broadcasts are emulated from NCCL 2.29 on")
    return BackendSettings(
        interface=interface,
        nic=nic,
        first_interface=interfaces[0],
        nccl_version=version,
        pmtu_bytes=pmtu or largest_path_mtu(interface),
        protocol=value("NCCL_PROTO", _protocol, ANY_PROTOCOL),
        # One ring is found on such a machine, and the first duplication is always done.
        channels=max(1, min(max(2, least), most)),
        tree_below=tree_below,
        nvls_from=nvls_from if value("NCCL_NVLS_ENABLE", _number(0, 2), 2) else ALL_BYTES,
        buffer_bytes=value("NCCL_BUFFSIZE", _number(1, 1 << 26), 0),
        qps_per_connection=value("NCCL_IB_QPS_PER_CONNECTION", _number(1, MOST_QPS), 1),
        split_data=value("NCCL_IB_SPLIT_DATA_ON_QPS", switch, int(version < 22000)),
        adaptive=value("NCCL_IB_ADAPTIVE_ROUTING", switch, 0),
        random_qpn=value("FLOWCHECK_LAB_RANDOM_QPN", switch, 0),
        traffic_class=value("NCCL_IB_TC", _number(0, 255), 0),
        # Seconds, as NCCL sets them, would only make a lossy lab slow.
        timeout_ms=value("FLOWCHECK_LAB_TIMEOUT_MS", _number(1, 60_000), 200),
        retries=value("NCCL_IB_RETRY_CNT", _number(1, 1000), 50),
        loss=value("FLOWCHECK_LAB_LOSS", _probability, 0.0),
        reorder=value("FLOWCHECK_LAB_REORDER", _probability, 0.0),
        seed=value("FLOWCHECK_LAB_SEED", _number(0, 2**63 - 1), 0),
        nccl2=nccl2,
        truth=Path(truth) if truth else None,
    )
