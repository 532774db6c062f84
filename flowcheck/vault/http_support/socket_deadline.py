"""One deadline for all bytes of an HTTP head, for server, client and status page."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class DeadlineReader(io.RawIOBase):
    """Reads a socket with one deadline for all reads, so that a peer that sends byte by byte gains
    no time."""

    def __init__(
        self, connection: socket.socket, limit_s: float, raw: io.RawIOBase | None = None
    ) -> None:
        """limit_s: seconds from now. raw: keeps the connection open, and is closed with this."""
        self._connection, self._limit_s, self._raw = connection, limit_s, raw
        self._until_s = time.monotonic() + limit_s

    def restart(self, limit_s: float | None = None) -> None:
        """Starts a new deadline: `limit_s` seconds from now, by default as long as the first."""
        self._until_s = time.monotonic() + (self._limit_s if limit_s is None else limit_s)

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        before_s = self._connection.gettimeout()
        self._connection.settimeout(left_s if before_s is None else min(left_s, before_s))
        try:
            return self._connection.recv_into(into)
        finally:
            self._connection.settimeout(before_s)
