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
    SEVERAL_SOURCE_KINDS,
    SWITCH_PORT_NAME,
    USER_NAME,
)

SLOTS_MAX = 1 << 26
"""Slots of a ring. A choice that stops slips of the pen: with the default slot size 2^26 slots take
272 GiB."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line of x86-64 and most arm64 processors: frames begin on one."""


class SourceConfig(ConfigSection, frozen=True, kw_only=True):
    """A source of frames. The table states exactly one of pci, vdev, interface and file."""

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
    """Copy engines, by dmadev name or PCI address. Empty: the CPU copies."""
    speed: float | None = None
    """Speed at which a file is replayed, by its time stamps: 1.0 is the recorded speed, 2.0 twice
    as fast. None: as fast as possible. Other sources ignore it."""
    idle_us: int = 50
    """Microseconds that an idle capture loop sleeps. 0: the loop spins and needs a core of its own.
    While a kernel interface is quiet, the sleep grows to a millisecond. A choice: longer needs more
    room in the NIC, shorter costs processor time."""
    frames: int | None = None
    """Capture ends after this number of frames. DPDK does not report the end of a pcap file (vdev),
    so such a source needs a number here to end."""

    @property
    def live(self) -> bool:
        """True: when the ring is full, frames are dropped and counted. False: the source waits."""
        return self.file is None and not (self.vdev or "").startswith("net_pcap")

    def __post_init__(self) -> None:
        kinds = [k for k in ("pci", "vdev", "interface", "file") if getattr(self, k) is not None]
        if len(kinds) != 1:
            if not kinds:
                raise ConfigError("source.interface", None, ONE_SOURCE_KIND())
            raise ConfigError("source", None, SEVERAL_SOURCE_KINDS(" and ".join(kinds)))
        at_least("source.queues", self.queues, 1)
        at_least("source.idle_us", self.idle_us, 0)
        if self.speed is not None and not self.speed > 0:
            raise ConfigError("source.speed", self.speed, ABOVE(0))
        if self.frames is not None:
            at_least("source.frames", self.frames, 0)


class ServicesConfig(ConfigSection, frozen=True, kw_only=True):
    """The user that the chain's processes run as when root starts it (table: stages/README.md)."""

    user: str | None = None
    """User name or number. None: the system user `flowcheck`; if there is no such user, a number
    that no user has. "root": all processes keep root's rights, and so does code that the job file
    names (factories, losses, rounding functions)."""

    def __post_init__(self) -> None:
        if self.user is not None and not self.user.strip():
            raise ConfigError("services.user", self.user, USER_NAME())


class MirrorConfig(ConfigSection, frozen=True, kw_only=True):
    """A mirrored switch port, by the name that operators use. FlowCheck only displays it."""

    port: str
    """Names of the switch and the port: "leaf0 Ethernet1/1"."""
    host: str
    """IP address of the server behind the port, as it appears in the job's packets."""
    direction: Literal["rx", "tx", "both"] = "rx"
    """Direction as the switch sees it: "rx" is what the switch receives and the server sends."""

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
    """Frames that a ring holds. A power of two, so that a position is masked to its slot. A choice:
    the default takes 272 MiB and holds 23 ms of 25 Gb/s in frames of 1,102 bytes; more slots bridge
    longer pauses of the extractor."""
    slot_bytes: int = 4352
    """Bytes for one frame and its 64-byte slot header. A frame of path MTU 4096 fits, with the
    mirror session's encapsulation."""

    def __post_init__(self) -> None:
        if self.slots & (self.slots - 1) or not 2 <= self.slots <= SLOTS_MAX:
            raise ConfigError("ring.slots", self.slots, RING_SLOTS(SLOTS_MAX))
        if self.slot_bytes % CACHE_LINE_BYTES or not 128 <= self.slot_bytes <= 65536:
            raise ConfigError("ring.slot_bytes", self.slot_bytes, RING_SLOT_BYTES())


class ParseConfig(ConfigSection, frozen=True, kw_only=True):
    """How frames are parsed."""

    icrc_every: int = 1
    """The ICRC of every n-th frame is checked. 0: no ICRC is checked."""

    def __post_init__(self) -> None:
        at_least("parse.icrc_every", self.icrc_every, 0)


class StagingConfig(ConfigSection, frozen=True, kw_only=True):
    """Staging: shared memory where payloads wait until FlowCheck knows where they belong."""

    size_bytes: int = 256 << 20
    """Bytes of staging per ring. It must hold the payloads of the start-up broadcast and of
    iteration 0. A choice: more takes memory, less fits small models only. `flowcheck plan` prints
    what a model needs."""

    def __post_init__(self) -> None:
        at_least("staging.size_bytes", self.size_bytes, 1 << 20)
