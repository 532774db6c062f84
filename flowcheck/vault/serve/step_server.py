"""The HTTP server of steps: its token, TLS, jobs and load."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowcheck.config import ServeConfig
from flowcheck.config.persist_serve_config import LOOPBACK
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.vault.http_support.bounded_http_server import BoundedHttpServer
from flowcheck.vault.http_support.tls_context import server_tls
from flowcheck.vault.serve.step_catalog import StepCatalog
from flowcheck.vault.serve.step_request_handler import ALONE, StepRequestHandler

TOKEN_BYTES_MIN = 16
"""Bytes of a token: 128 bits where it is random. Shorter ones can be guessed."""
PRESSED_S = 5.0
"""Seconds after a refusal in which nobody keeps a connection beyond an answer: others wait for one.
A choice: longer costs clients more connections."""


class StepServer(BoundedHttpServer):
    """Listens once it is made; serves between `start` and `stop`."""

    request_queue_size = 128

    def __init__(
        self,
        catalogue: StepCatalog | Mapping[str, StepCatalog],
        config: ServeConfig,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """catalogue: of several jobs by their names. Raises ConfigError where it cannot listen
        there, or has no word it needs."""
        self.jobs = {ALONE: catalogue} if isinstance(catalogue, StepCatalog) else dict(catalogue)
        self.timeout_s, self.say = config.timeout_s, say
        tls = server_tls(config, "serve", say)
        self.token = read_token(config.token_file) if config.token_file is not None else None
        self.is_loopback = config.host in LOOPBACK
        self._refused_s = -PRESSED_S
        try:
            super().__init__(config.host, config.port, config.connections, StepRequestHandler, tls)
        except OSError as error:
            right = downloads.CANNOT_LISTEN(host=config.host, error=error.strerror)
            raise ConfigError("serve.port", config.port, right) from error

    def stop(self) -> None:
        super().stop()
        self.end_leases(all_of_them=True)

    def end_leases(self, *, all_of_them: bool = False) -> None:
        """Lets go of what nobody reads any more."""
        for catalogue in self.jobs.values():
            catalogue.leases.end(all_of_them=all_of_them)

    @property
    def pressed(self) -> bool:
        """Others wait for a connection: nobody keeps one beyond an answer."""
        return time.monotonic() - self._refused_s < PRESSED_S

    def refused(self) -> None:
        self._refused_s = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's business."""
        self.say(f"{client_address[0]} went away")


def read_token(path: str) -> bytes:
    """The bearer token in a file. Raises ConfigError for a file without one, or with one
    that could be guessed."""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError("token_file", path, downloads.FILE_UNREADABLE(error.strerror)) from error
    if len(token) < TOKEN_BYTES_MIN or b"\n" in token or not token.isascii():
        raise ConfigError("token_file", path, downloads.TOKEN_FILE(TOKEN_BYTES_MIN))
    return token
