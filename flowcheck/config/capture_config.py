"""Settings of capture: [[source]], [services], [[mirror]], [ring], [parse] and [staging]."""

from __future__ import annotations

import ipaddress
from typing import Literal

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    ABOVE,
    NOT_AN_ADDRESS,
    ONE_SOURCE_KIND,
    RING_SLOT_BYTES,
    RING_SLOTS,
    SWITCH_PORT_NAME,
    USER_NAME,
)

SLOTS_MAX = 1 << 26
"""Slots of a ring. A choice that stops slips of the pen: with the default slot size 2^26 slots take
272 GiB."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line of x86-64 and most arm64 processors: frames begin on one."""


class SourceConfig(ConfigSection, frozen=True, kw_only=True):
    """Where frames come from: exactly one of pci, vdev, interface, file."""

    pci: str | None = None
    """A NIC port by PCI address, "0000:3b:00.0"."""
    vdev: str | None = None
    """A DPDK virtual device with its arguments, "net_pcap0,rx_pcap=x.pcap"."""
    interface: str | None = None
    """A kernel interface by name, captured through net_af_packet."""
    file: str | None = None
    """A pcap or pcapng file; waits for the chain instead of dropping."""
    queues: int = 1
    """RX queues; each feeds a ring of its own."""
    engines: tuple[str, ...] = ()
    """Copy engines (dmadev names or PCI addresses); none: the CPU copies."""
    speed: float | None = None
    """Files only: pace by the time stamps, 1.0 as recorded; None: as fast as it goes."""
    idle_us: int = 50
    """Microseconds that an idle capture loop sleeps; 0 spins, for a core of its own. At a quiet
    kernel interface it grows to a millisecond. A choice: longer needs more room in the NIC,
    shorter costs processor time."""
    frames: int | None = None
    """End after so many frames; a file through DPDK has no end of its own."""

    @property
    def live(self) -> bool:
        """A full ring means drop and count, not wait."""
        return self.file is None and not (self.vdev or "").startswith("net_pcap")

    def __post_init__(self) -> None:
        kinds = [k for k in ("pci", "vdev", "interface", "file") if getattr(self, k) is not None]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ConfigError("source", found, ONE_SOURCE_KIND())
        at_least("source.queues", self.queues, 1)
        at_least("source.idle_us", self.idle_us, 0)
        if self.speed is not None and not self.speed > 0:
            raise ConfigError("source.speed", self.speed, ABOVE(0))
        if self.frames is not None:
            at_least("source.frames", self.frames, 0)


class ServicesConfig(ConfigSection, frozen=True, kw_only=True):
    """Whom the chain's processes are, where root starts it (stages/README.md has the table)."""

    user: str | None = None
    """By name or number; None: the system user flowcheck, or a number that is nobody's where there
    is none. "root": all of it keeps root's rights, code of the user's as well."""

    def __post_init__(self) -> None:
        if self.user is not None and not self.user.strip():
            raise ConfigError("services.user", self.user, USER_NAME())


class MirrorConfig(ConfigSection, frozen=True, kw_only=True):
    """A switch port that is mirrored, as its operator calls it. Shown to people only."""

    port: str
    """With the switch's name, "leaf0 Ethernet1/1"."""
    host: str
    """Address of the server at that port, as the job's connections have it."""
    direction: Literal["rx", "tx", "both"] = "rx"
    """The switch's: rx is what it receives from the server, so what that one sends."""

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError as error:
            raise ConfigError("mirror.host", self.host, NOT_AN_ADDRESS()) from error
        if not self.port.strip():
            raise ConfigError("mirror.port", self.port, SWITCH_PORT_NAME())


class RingConfig(ConfigSection, frozen=True, kw_only=True):
    """Shared memory between capture and extraction, one ring per RX queue."""

    slots: int = 1 << 16
    """Frames a ring holds; a power of two so that positions mask to slots. A choice: 272 MiB
    bridge 23 ms of 25 Gb/s in frames of 1,102 bytes; more bridges longer pauses of the
    extractor."""
    slot_bytes: int = 4352
    """Room for one frame and its 64-byte header; path MTU 4096 with encapsulation fits."""

    def __post_init__(self) -> None:
        if self.slots & (self.slots - 1) or not 2 <= self.slots <= SLOTS_MAX:
            raise ConfigError("ring.slots", self.slots, RING_SLOTS(SLOTS_MAX))
        if self.slot_bytes % CACHE_LINE_BYTES or not 128 <= self.slot_bytes <= 65536:
            raise ConfigError("ring.slot_bytes", self.slot_bytes, RING_SLOT_BYTES())


class ParseConfig(ConfigSection, frozen=True, kw_only=True):
    """How frames are read."""

    icrc_every: int = 1
    """Check the ICRC of every n-th frame; 0 of none."""

    def __post_init__(self) -> None:
        at_least("parse.icrc_every", self.icrc_every, 0)


class StagingConfig(ConfigSection, frozen=True, kw_only=True):
    """Where payloads wait until their plan is proved."""

    size_bytes: int = 256 << 20
    """Bytes, per ring. Must hold the start-up broadcast and iteration 0 as they lie on the
    wire. A choice: more takes memory and less fits small models only; `flowcheck plan` tells
    what a model needs."""

    def __post_init__(self) -> None:
        at_least("staging.size_bytes", self.size_bytes, 1 << 20)
