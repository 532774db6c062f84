"""An HTTP server with a limit on connections, and the user at the other end of a connection.

Each connection has a thread; further connections are answered with status 503. The server is based
on the standard library's: checkpoints are sent with sendfile(2), for which its threads hardly wake.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flowcheck.vault.http_support.tls_context import ServerTls

HANDSHAKE_S = 10.0
"""Seconds that a client may take to agree on TLS. A choice: longer lets silent clients hold
connections, shorter cuts off bad links."""
REFUSE_S = 1.0
"""Seconds to send status 503 to a client beyond the limit. A choice: shorter cuts off slow clients
without a reason."""
REFUSED_AT_ONCE = 16
"""Clients that are sent status 503 over TLS at a time, since a handshake takes a while; further
ones are cut off. A choice that bounds threads."""
SERVER_FULL_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)
TCP_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
ESTABLISHED = "01"
"""State of a connection whose owner is known (include/net/tcp_states.h). In other states the owner
may be gone, and the kernel reports user 0."""

Address = tuple[str, int]


class BoundedHttpServer(ThreadingHTTPServer):
    """Listens from its construction on and serves between `start` and `stop`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        host: str,
        port: int,
        connections: int,
        handler: type[BaseHTTPRequestHandler],
        tls: ServerTls | None = None,
    ) -> None:
        """connections: most connections at a time. tls: if given, the server speaks https. Raises
        OSError if it cannot listen on this address."""
        self._free = threading.BoundedSemaphore(connections)
        self._refusing = threading.BoundedSemaphore(REFUSED_AT_ONCE)
        self._tls = tls
        self._thread: threading.Thread | None = None
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"

    def start(self) -> None:
        """Starts to serve, in a thread of its own."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accepts no new connections. Open connections end with the process."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def refused(self) -> None:
        """Called when a client is refused because the server is full."""

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.refused()
            self._refuse(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                try:
                    request = self._tls.wrapped(request, HANDSHAKE_S)
                except OSError:
                    self.handle_error(request, client_address)
                    self.shutdown_request(request)
                    return
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def _refuse(self, request: Any) -> None:
        """Answers with status 503. Over TLS this takes a thread of its own, so that other clients
        are accepted meanwhile."""
        if self._tls is None:
            _tell_full(request)
        elif self._refusing.acquire(blocking=False):
            threading.Thread(target=self._refuse_wrapped, args=(request,), daemon=True).start()
            return
        self.shutdown_request(request)

    def _refuse_wrapped(self, request: Any) -> None:
        assert self._tls is not None
        try:
            with suppress(OSError):
                request = self._tls.wrapped(request, REFUSE_S)
                request.recv(1 << 16)  # what is answered before it is read, is cut off
                _tell_full(request)
        finally:
            self.shutdown_request(request)
            self._refusing.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a broken connection: its client notices."""


def _tell_full(request: Any) -> None:
    request.settimeout(REFUSE_S)
    with suppress(OSError):  # it is gone
        request.sendall(SERVER_FULL_RESPONSE)


def owner_of_peer(peer: Address, own: Address) -> int | None:
    """The number of the user who owns the socket `peer`, which is connected to `own`, both on this
    machine. None: the kernel does not report it. Reads the table of all TCP connections of the
    machine (proc(5))."""
    wanted = _written(peer), _written(own)
    version = ipaddress.ip_address(peer[0]).version
    try:
        lines = TCP_TABLES[version].read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
        if (local, remote) == wanted and state == ESTABLISHED and int(inode):
            return int(user)
    return None


def is_own_user(peer: Address, own: Address) -> bool:
    """Whether the other end belongs to this process's user or to root."""
    return owner_of_peer(peer, own) in {0, os.geteuid()}


def _written(address: Address) -> str:
    """An address as /proc/net/tcp writes it: 32-bit words in the machine's byte order, then the
    port, in hexadecimal."""
    packed = ipaddress.ip_address(address[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    order = sys.byteorder
    return "".join(f"{int.from_bytes(word, order):08X}" for word in words) + f":{address[1]:04X}"
