"""A client's HTTP answer whose head and body have deadlines."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from flowcheck.vault.http_support.socket_deadline import DeadlineReader

HEAD_S = 60.0
"""Seconds for the whole head of an answer; a server may need a while for it. A choice: longer
delays the error."""


class BoundedResponse(http.client.HTTPResponse):
    """An HTTP answer whose whole head must arrive within HEAD_S."""

    def __init__(self, sock: socket.socket, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        self.fp.close()
        self.within = DeadlineReader(sock, HEAD_S, sock.makefile("rb", buffering=0))
        self.fp = io.BufferedReader(self.within)
