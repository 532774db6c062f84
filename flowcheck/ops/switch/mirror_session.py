"""A mirror session: watched ports with directions, monitor port or ERSPAN tunnel."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address

import msgspec


class MirrorDirection(StrEnum):
    """As the switch sees it: `rx` is what it receives from the server, which is what that server
    sends; `tx` is what it sends to the server."""

    RX = "rx"
    TX = "tx"
    BOTH = "both"

    def ways(self) -> tuple[MirrorDirection, ...]:
        """The single directions in it."""
        return (MirrorDirection.RX, MirrorDirection.TX) if self is MirrorDirection.BOTH else (self,)


class MirrorSource(msgspec.Struct, frozen=True, kw_only=True):
    """A watched port."""

    port: str
    direction: MirrorDirection = MirrorDirection.RX

    def __str__(self) -> str:
        return f"{self.port}:{self.direction}"


class ErspanTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """Copies go through ERSPAN to a machine that is not at the monitor port."""

    source: IPv4Address
    """The switch's own address."""
    destination: IPv4Address
    """The capture node's."""
    number: int = 1
    """ERSPAN's session id, 0 to 1023 (10 bits of its header, draft-foschiano-erspan-03, 4.2)."""
    ttl: int = 64
    dscp: int = 0

    def __str__(self) -> str:
        return f"src={self.source},dst={self.destination}"


class MirrorSession(msgspec.Struct, frozen=True, kw_only=True):
    """One mirror session. Copies go to `monitor` or through `tunnel`; both are there only where
    a platform names the port its tunnel leaves by."""

    name: str
    """For switches that name sessions."""
    number: int | None
    """For switches that number them; None where it has to be stated and was not."""
    sources: tuple[MirrorSource, ...]
    monitor: str | None
    tunnel: ErspanTunnel | None = None
    bridge: str | None = None
    """Of Open vSwitch."""
