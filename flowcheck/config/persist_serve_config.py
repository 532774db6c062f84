"""Settings of checkpoint storage and of the checkpoint server: [persist] and [serve]."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    ABOVE,
    FROM_TO,
    NEEDS_OTHER,
    PERSIST_INTERVAL,
    PERSIST_TARGET,
    TOKEN_NEEDED,
)

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class PersistConfig(ConfigSection, frozen=True, kw_only=True):
    """Checkpoints that are written while the chain runs, by a process of their own."""

    target: str
    """A folder, or a URL that fsspec knows: s3://bucket/job, gs://..., abfs://...; several jobs
    have a folder each below it."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of fsspec's file system, {endpoint_url = "http://..."}. Credentials are better left
    to the environment and the files that the cloud's own library reads."""
    every_steps: int | None = None
    """A checkpoint of each step that is a multiple of it; where that one is gone from memory by
    then, of the newest."""
    every_minutes: float | None = None
    """So long from the begin of one to the begin of the next."""
    format: str = "flowcheck"
    """Of those that `flowcheck restore --format` knows."""
    format_options: dict[str, Any] = msgspec.field(default_factory=dict)
    keep_last: int = 3
    """Checkpoints that stay; an older one goes only once a newer one is durable. A choice: more
    takes storage."""
    keep_every: int | None = None
    """And for ever the first at or behind each multiple of so many steps."""
    rate_limit_bytes_s: int | None = None
    staging: str | None = None
    """A folder on a disk of this machine for what is sent elsewhere, by default below the run
    directory; holds one checkpoint at most."""
    timeout_s: float = 60.0
    """Seconds in which nothing moves: the attempt has failed, and another one begins. A choice:
    longer tells of a dead store later, shorter gives a slow one up."""

    @property
    def is_local(self) -> bool:
        """The target is a folder."""
        return urlsplit(self.target).scheme in ("", "file", "local")

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("persist.target", "", PERSIST_TARGET())
        if self.every_steps is None and self.every_minutes is None:
            raise ConfigError("persist.every_steps", None, PERSIST_INTERVAL())
        at_least("persist.keep_last", self.keep_last, 1)
        wholes = ("every_steps", "keep_every", "rate_limit_bytes_s")
        for key in wholes:
            if getattr(self, key) is not None:
                at_least(f"persist.{key}", getattr(self, key), 1)
        for key in ("every_minutes", "timeout_s"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"persist.{key}", value, ABOVE(0))


class ServeConfig(ConfigSection, frozen=True, kw_only=True):
    """Steps over HTTP, for `flowcheck restore --from http://...` and anyone who can fetch files."""

    host: str = "127.0.0.1"
    port: int = 7377
    """0: one that is free, told in the log and by `flowcheck status`."""
    token_file: str | None = None
    """A file with the token that clients send. Without it the server must be on loopback, and
    answers its own user and root alone."""
    tls_certificate: str | None = None
    """A file of PEM: https instead of http. It is read again when it is renewed."""
    tls_key: str | None = None
    """The file of its private key, where that is not in the same one."""
    connections: int = 256
    """Connections at once; more are told to come back. A choice: each is a thread."""
    timeout_s: float = 30.0
    """Seconds. A client that takes or sends nothing for so long is let go. A choice: longer
    lets dead clients hold steps, shorter cuts off bad links."""
    staging: str | None = None
    """A folder for steps that are in memory alone, by default below the run directory."""
    staged: int = 2
    """Steps that lie there at most. A choice: each takes a whole checkpoint's room."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("serve.port", self.port, FROM_TO(least=0, most=65535))
        at_least("serve.connections", self.connections, 1)
        at_least("serve.staged", self.staged, 1)
        if not self.timeout_s > 0:
            raise ConfigError("serve.timeout_s", self.timeout_s, ABOVE(0))
        if self.tls_key is not None and self.tls_certificate is None:
            raise ConfigError("serve.tls_key", self.tls_key, NEEDS_OTHER("serve.tls_certificate"))
        if self.token_file is None and self.host not in LOOPBACK:
            right = TOKEN_NEEDED(token_file="serve.token_file", loopback=LOOPBACK[0])
            raise ConfigError("serve.host", self.host, right)
