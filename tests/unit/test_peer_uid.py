"""Who holds the other end of a loopback connection: judged by sockets of real users."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from flowcheck.vault.http_support.bounded_http_server import owner_of_peer

SOMEBODY = 61180
CLIENT = 'exec 3<>"/dev/tcp/$0/$1"; read -r'
"""Of bash, which any user may run, as not every interpreter."""


@contextmanager
def connected(
    host: str, user: int | None
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """The server's end of a connection that a process of `user` made."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        server.bind((host, 0))
        server.listen()
        server.settimeout(60)
        client = stack.enter_context(
            subprocess.Popen(
                ["/bin/bash", "-c", CLIENT, host, str(server.getsockname()[1])],
                stdin=subprocess.PIPE,
                user=user,
                cwd="/",
            )
        )
        stack.callback(client.kill)
        own, _ = server.accept()
        yield stack.enter_context(own), client


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_own_user_is_told(host: str) -> None:
    with connected(host, None) as (own, _):
        assert owner_of_peer(own.getpeername()[:2], own.getsockname()[:2]) == os.geteuid()


def test_another_user_is_told() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root begins processes of other users")
    with connected("127.0.0.1", SOMEBODY) as (own, _):
        assert owner_of_peer(own.getpeername()[:2], own.getsockname()[:2]) == SOMEBODY


def test_a_socket_whose_owner_is_gone_is_nobodys() -> None:
    with connected("127.0.0.1", None) as (own, client):
        client.kill()
        client.wait(60)
        own.settimeout(60)
        assert own.recv(1) == b""  # its end arrived
        assert owner_of_peer(own.getpeername()[:2], own.getsockname()[:2]) is None
