"""A mirror session: watched ports with directions, monitor port or ERSPAN tunnel."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address

import msgspec


class MirrorDirection(StrEnum):
    """Direction of mirrored frames as the switch sees it: `rx` is what the switch receives from
    the server (what that server sends); `tx` is what it sends to the server."""

    RX = "rx"
    TX = "tx"
    BOTH = "both"

    def ways(self) -> tuple[MirrorDirection, ...]:
        """The single directions: (rx, tx) for BOTH, else the direction itself."""
        return (MirrorDirection.RX, MirrorDirection.TX) if self is MirrorDirection.BOTH else (self,)


class MirrorSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source port of a mirror session, with its direction."""

    port: str
    direction: MirrorDirection = MirrorDirection.RX

    def __str__(self) -> str:
        return f"{self.port}:{self.direction}"


class ErspanTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """An ERSPAN tunnel that carries the copies to a machine that is not connected to the monitor
    port."""

    source: IPv4Address
    """The switch's own IPv4 address."""
    destination: IPv4Address
    """The capture machine's IPv4 address."""
    number: int = 1
    """ERSPAN session id, 0 to 1023 (10 bits of the header, draft-foschiano-erspan-03, 4.2)."""
    ttl: int = 64
    dscp: int = 0

    def __str__(self) -> str:
        return f"src={self.source},dst={self.destination}"


class MirrorSession(msgspec.Struct, frozen=True, kw_only=True):
    """One mirror session. Copies go to `monitor` or through `tunnel`; both are set only for
    platforms that name the port through which the tunnel leaves."""

    name: str
    """Session name, for switches that identify sessions by name."""
    number: int | None
    """Session number, for switches that identify sessions by number; None: not stated."""
    sources: tuple[MirrorSource, ...]
    monitor: str | None
    tunnel: ErspanTunnel | None = None
    bridge: str | None = None
    """Bridge of Open vSwitch."""
