"""The HTTP server: connections, each in a thread, as many as are allowed.

The standard library's: what it serves is files by sendfile(2), for which its threads hardly wake.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flowcheck.config import ServeConfig
from flowcheck.errors import ConfigError
from flowcheck.vault.serve.catalogue import Catalogue
from flowcheck.vault.serve.handler import Handler
from flowcheck.vault.serve.jobs import ALONE

TOKEN_BYTES_MIN = 16
PRESSED_S = 5.0
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class Server(ThreadingHTTPServer):
    """Listens once it is made; serves between `start` and `stop`."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self,
        catalogue: Catalogue | Mapping[str, Catalogue],
        config: ServeConfig,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """catalogue: of several jobs by their names. Raises ConfigError where it cannot listen
        there, or has no word it needs."""
        self.jobs = {ALONE: catalogue} if isinstance(catalogue, Catalogue) else dict(catalogue)
        self.timeout_s, self.say = config.timeout_s, say
        self.token = read_token(config.token_file) if config.token_file is not None else None
        self._free = threading.BoundedSemaphore(config.connections)
        self._refused_s = -PRESSED_S
        self._thread: threading.Thread | None = None
        if ":" in config.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((config.host, config.port), Handler)
        except OSError as error:
            raise ConfigError(
                "serve.port", config.port, f"{config.host} cannot be listened at: {error.strerror}"
            ) from error

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
        self.end_leases(all_of_them=True)

    def end_leases(self, *, all_of_them: bool = False) -> None:
        """Lets go of what nobody reads any more."""
        for catalogue in self.jobs.values():
            catalogue.leases.end(all_of_them=all_of_them)

    @property
    def pressed(self) -> bool:
        """Others wait for a connection: nobody keeps one beyond an answer."""
        return time.monotonic() - self._refused_s < PRESSED_S

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._refused_s = time.monotonic()
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
        self.say(f"{client_address[0]} went away")


def read_token(path: str) -> bytes:
    """The word in a file. Raises ConfigError where there is none, or one that could be guessed."""
    try:
        word = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError("token_file", path, f"cannot be read: {error.strerror}") from error
    if len(word) < TOKEN_BYTES_MIN or b"\n" in word or not word.isascii():
        right = (
            f"must hold one word of {TOKEN_BYTES_MIN} characters or more, such as "
            "`head -c 24 /dev/urandom | base64` makes"
        )
        raise ConfigError("token_file", path, right)
    return word
