"""One deadline for all bytes of an HTTP head, however slowly they drip. (Shared by server,
client and status page.)"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class DeadlineReader(io.RawIOBase):
    """A socket's bytes, all of a request's head within one time: however slowly it drips."""

    def __init__(
        self, connection: socket.socket, limit_s: float, raw: io.RawIOBase | None = None
    ) -> None:
        """raw: what is closed with this, and keeps the connection open until then."""
        self._connection, self._limit_s, self._raw = connection, limit_s, raw
        self._until_s = time.monotonic() + limit_s

    def restart(self, limit_s: float | None = None) -> None:
        """What comes next may take as long, or so long."""
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
