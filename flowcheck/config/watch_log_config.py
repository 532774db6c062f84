"""Settings of the metrics server and of the log: [watch] and [log]."""

from __future__ import annotations

from typing import Literal

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.config.persist_serve_config import LOOPBACK
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    ABOVE,
    ADDRESS_AND_PORT,
    AN_ADDRESS_SUCH_AS,
    NEEDS_OTHER,
    TOKEN_NEEDED,
)

LISTEN = "127.0.0.1:9464"
"""On this machine only, unless another address is stated."""


class WatchConfig(ConfigSection, frozen=True, kw_only=True):
    """Metrics, health, state and the page over HTTP, by a process of their own."""

    listen: str = LISTEN
    """Address and port, "[::1]:9464" of IPv6; port 0: one that is free, told in the log."""
    token_file: str | None = None
    """A file with the word that clients send, as bearer token or as a password; must be there
    beyond this machine."""
    tls_certificate: str | None = None
    """A file of PEM: https instead of http. It is read again when it is renewed."""
    tls_key: str | None = None
    """The file of its private key, where that is not in the same one."""
    connections: int = 32
    """Connections at once; more are told to come back. A choice: each is a thread."""
    timeout_s: float = 10.0
    """Seconds. A client that takes or sends nothing for so long is let go. A choice: longer
    lets dead clients hold connections."""

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def url(self) -> str:
        """Of the page; its port may be 0."""
        return f"{'http' if self.tls_certificate is None else 'https'}://{self.listen}/"

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError("watch.listen", self.listen, ADDRESS_AND_PORT(LISTEN))
        at_least("watch.connections", self.connections, 1)
        if not self.timeout_s > 0:
            raise ConfigError("watch.timeout_s", self.timeout_s, ABOVE(0))
        if self.tls_key is not None and self.tls_certificate is None:
            raise ConfigError("watch.tls_key", self.tls_key, NEEDS_OTHER("watch.tls_certificate"))
        if self.token_file is None and not self.is_loopback:
            loopback = AN_ADDRESS_SUCH_AS(LISTEN)
            right = TOKEN_NEEDED(token_file="watch.token_file", loopback=loopback)
            raise ConfigError("watch.listen", self.listen, right)


class LogConfig(ConfigSection, frozen=True, kw_only=True):
    """What `flowcheck up` prints on stderr."""

    format: Literal["text", "json"] = "text"
    """json: each line is an object {"time_ns", "level", "message"}. The stages' own logs are what
    DPDK, torch and Python print, and stay text."""
