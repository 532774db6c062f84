"""A wait for all of something that comes in pieces."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class Deadlined(io.RawIOBase):
    """A socket's bytes, all of a request's head within one time: however slowly it drips."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection, self._limit_s = connection, limit_s
        self._until_s = time.monotonic() + limit_s

    def again(self) -> None:
        """The next request may take as long."""
        self._until_s = time.monotonic() + self._limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        before_s = self._connection.gettimeout()
        self._connection.settimeout(left_s)
        try:
            return self._connection.recv_into(into)
        finally:
            self._connection.settimeout(before_s)
