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
from flowcheck.vault.serve.step_request_handler import SINGLE_JOB, StepRequestHandler

TOKEN_BYTES_MIN = 16
"""Fewest bytes of a token: 128 bits if it is random. A shorter token can be guessed."""
OVERLOAD_S = 5.0
"""Seconds after a refused client in which the server closes each connection after its answer, since
other clients wait for one. A choice: longer costs clients more connections."""


class StepServer(BoundedHttpServer):
    """The server of steps. It listens from its construction on and serves between `start` and
    `stop`."""

    request_queue_size = 128

    def __init__(
        self,
        catalogue: StepCatalog | Mapping[str, StepCatalog],
        config: ServeConfig,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """catalogue: the steps of one job, or {name: steps} of several jobs. say: writes a line to
        the log. Raises ConfigError if the server cannot listen, or if the token or TLS files cannot
        be used."""
        self.jobs = (
            {SINGLE_JOB: catalogue} if isinstance(catalogue, StepCatalog) else dict(catalogue)
        )
        self.timeout_s, self.say = config.timeout_s, say
        tls = server_tls(config, "serve", say)
        self.token = read_token(config.token_file) if config.token_file is not None else None
        self.is_loopback = config.host in LOOPBACK
        self._refused_s = -OVERLOAD_S
        try:
            super().__init__(config.host, config.port, config.connections, StepRequestHandler, tls)
        except OSError as error:
            right = downloads.CANNOT_LISTEN(host=config.host, error=error.strerror)
            raise ConfigError("serve.port", config.port, right) from error

    def stop(self) -> None:
        super().stop()
        self.end_leases(all_of_them=True)

    def end_leases(self, *, all_of_them: bool = False) -> None:
        """Unlocks the folders that are no longer read. all_of_them: unlocks all folders."""
        for catalogue in self.jobs.values():
            catalogue.leases.release(all_of_them=all_of_them)

    @property
    def is_overloaded(self) -> bool:
        """Whether clients were refused lately. Connections then end after each answer."""
        return time.monotonic() - self._refused_s < OVERLOAD_S

    def refused(self) -> None:
        self._refused_s = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Notes a broken connection in the log; its client notices by itself."""
        self.say(f"{client_address[0]} went away")


def read_token(path: str) -> bytes:
    """The bearer token in a file. Raises ConfigError if the file cannot be read, or if its content
    is not one line of ASCII with at least TOKEN_BYTES_MIN bytes."""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError("token_file", path, downloads.FILE_UNREADABLE(error.strerror)) from error
    if len(token) < TOKEN_BYTES_MIN or b"\n" in token or not token.isascii():
        raise ConfigError("token_file", path, downloads.TOKEN_FILE(TOKEN_BYTES_MIN))
    return token
