"""The watcher's HTTP server: few connections, each in a thread, all answers off one reading."""

from __future__ import annotations

from collections.abc import Callable

from flowcheck.config import WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.ops.watch.handler import Handler
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.scrapes import Scrapes
from flowcheck.vault.serve.bounded import BoundedServer
from flowcheck.vault.serve.server import read_token
from flowcheck.vault.serve.tls import stated_tls


class Server(BoundedServer):
    """Listens once it is made; serves between `start` and `stop`."""

    request_queue_size = 32

    def __init__(
        self, reader: Reader, config: WatchConfig, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Raises ConfigError where it cannot listen there, has no word it needs, or a certificate
        that is none."""
        self.reader, self.timeout_s = reader, config.timeout_s
        self.is_loopback, self.scrapes = config.is_loopback, Scrapes()
        self.token = read_token(config.token_file) if config.token_file is not None else None
        tls = stated_tls(config, "watch", say)
        try:
            super().__init__(config.host, config.port, config.connections, Handler, tls)
        except OSError as error:
            why = f"cannot be listened at: {error.strerror}"
            raise ConfigError("watch.listen", config.listen, why) from error
