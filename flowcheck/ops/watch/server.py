"""The watcher's HTTP server: few connections, each in a thread, all answers off one reading."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

from flowcheck.config import WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.ops.watch.handler import Handler
from flowcheck.ops.watch.reading import Reader
from flowcheck.vault.serve.server import FULL, read_token


class Server(ThreadingHTTPServer):
    """Listens once it is made; serves between `start` and `stop`."""

    daemon_threads = True
    request_queue_size = 32
    allow_reuse_address = True

    def __init__(self, reader: Reader, config: WatchConfig) -> None:
        """Raises ConfigError where it cannot listen there, or has no word it needs."""
        self.reader, self.timeout_s = reader, config.timeout_s
        self.is_loopback = config.is_loopback
        self.token = read_token(config.token_file) if config.token_file is not None else None
        self._free = threading.BoundedSemaphore(config.connections)
        self._thread: threading.Thread | None = None
        if ":" in config.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((config.host, config.port), Handler)
        except OSError as error:
            why = f"cannot be listened at: {error.strerror}"
            raise ConfigError("watch.listen", config.listen, why) from error

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
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
