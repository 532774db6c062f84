"""An HTTP server of few connections, each in a thread: more are told to come back.

The standard library's: checkpoints are served by sendfile(2), for which its threads hardly wake.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class BoundedServer(ThreadingHTTPServer):
    """Listens once it is made; serves between `start` and `stop`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, host: str, port: int, connections: int, handler: type[BaseHTTPRequestHandler]
    ) -> None:
        """connections: at once. Raises OSError where it cannot listen there."""
        self._free = threading.BoundedSemaphore(connections)
        self._thread: threading.Thread | None = None
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def start(self) -> None:
        """Serves in a thread."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No new connections; those there are end with the process."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def refused(self) -> None:
        """A client was told to come back."""

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.refused()
            request.settimeout(1.0)
            with suppress(OSError):  # it is gone
                request.sendall(FULL)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's business."""
