"""Settings of the metrics server, of audits of the trainer's files, of the hook in the trainer and
of the log: [watch], [audit], [hook] and [log]."""

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
    PORT_NUMBER,
    TOKEN_NEEDED,
    WATCHED_FOLDER,
)

LISTEN = "127.0.0.1:9464"
"""Default address of the metrics server: on loopback, so that only this machine reaches it."""


PORT_MAX = 65535
"""The highest number of a TCP port."""


class WatchConfig(ConfigSection, frozen=True, kw_only=True):
    """HTTP server of metrics, health, state and the web page, in a process of its own."""

    listen: str = LISTEN
    """Address and port to listen on: "127.0.0.1:9464", or "[::1]:9464" for IPv6. Port 0: a free
    port; the log shows which."""
    token_file: str | None = None
    """File that holds the token of clients, who send it as bearer token or as password. Required
    where the server does not listen on loopback."""
    tls_certificate: str | None = None
    """PEM file with the certificate. If stated, the server speaks https instead of http. The server
    reads the file again when it changes."""
    tls_key: str | None = None
    """PEM file with the private key, where `tls_certificate` does not contain it."""
    connections: int = 32
    """Most connections at a time; further clients are asked to retry later. A choice: each
    connection takes a thread."""
    timeout_s: float = 10.0
    """Seconds after which a client that neither reads nor sends is disconnected. A choice: longer
    lets dead clients hold connections."""

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def url(self) -> str:
        """URL of the web page, with the stated port, which may be 0."""
        return f"{'http' if self.tls_certificate is None else 'https'}://{self.listen}/"

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError("watch.listen", self.listen, ADDRESS_AND_PORT(LISTEN))
        if int(port) > PORT_MAX:
            right = PORT_NUMBER(port=port, most=PORT_MAX)
            raise ConfigError("watch.listen", self.listen, right)
        at_least("watch.connections", self.connections, 1)
        if not self.timeout_s > 0:
            raise ConfigError("watch.timeout_s", self.timeout_s, ABOVE(0))
        if self.tls_key is not None and self.tls_certificate is None:
            raise ConfigError("watch.tls_key", self.tls_key, NEEDS_OTHER("watch.tls_certificate"))
        if self.token_file is None and not self.is_loopback:
            loopback = AN_ADDRESS_SUCH_AS(LISTEN)
            right = TOKEN_NEEDED(token_file="watch.token_file", loopback=loopback)
            raise ConfigError("watch.listen", self.listen, right)


class AuditConfig(ConfigSection, frozen=True, kw_only=True):
    """A folder whose checkpoints are compared with the replica as the trainer writes them, in a
    process of its own."""

    folder: str
    """Folder to which the trainer writes its checkpoints, as this machine sees it."""
    existing: bool = False
    """True: files that are there when the chain starts are compared as well."""
    interval_s: float = 1.0
    """Seconds between two looks at the folder. A choice: a file is taken after it stood still
    from one look to the next; shorter takes a pause of a slow writer for its end."""
    wait_s: float = 600.0
    """Seconds that a file may stay incomplete, or ahead of the replica, before it is recorded as
    not compared. A choice: longer tells of a dead writer later."""

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("audit.folder", "", WATCHED_FOLDER())
        for key in ("interval_s", "wait_s"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"audit.{key}", getattr(self, key), ABOVE(0))


class HookConfig(ConfigSection, frozen=True, kw_only=True):
    """The hook in the trainer, which is asked for the values of tainted elements."""

    address: str | tuple[str, ...]
    """Address and port that the hook listens at: "10.0.0.7:9470". Of several jobs a list with each
    one's, in any order: exact values tell whose a hook is."""
    token_file: str
    """File that holds the token which the trainer has as well."""
    wait_s: float = 120.0
    """Seconds to wait for the end of the trainer's step. A choice: longer than a step takes."""
    pause_s: float = 2.0
    """Seconds between two requests. A choice: shorter asks more often while packets are lost."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them."""
        return (self.address,) if isinstance(self.address, str) else self.address

    def __post_init__(self) -> None:
        for each in self.addresses or ("",):
            host, _, port = each.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
                raise ConfigError("hook.address", each, ADDRESS_AND_PORT("10.0.0.7:9470"))
        for key in ("wait_s", "pause_s"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"hook.{key}", getattr(self, key), ABOVE(0))


class LogConfig(ConfigSection, frozen=True, kw_only=True):
    """What `flowcheck up` prints on stderr."""

    format: Literal["text", "json"] = "text"
    """"text", or "json": each line is an object {"time_ns", "level", "message"}. The logs of the
    stages hold what DPDK, torch and Python print, and are always text."""
