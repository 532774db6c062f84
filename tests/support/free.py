"""Ports of loopback for servers that must be told theirs before they begin."""

from __future__ import annotations

import random
import socket

FROM_BELOW = 10_000, 32_768
"""Below what Linux gives to those who ask for any (ip_local_port_range): nobody beside gets one of
these between the looking and the server's own listening."""


def free_port() -> int:
    for port in random.SystemRandom().sample(range(*FROM_BELOW), 100):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are taken")
