"""Settings of checkpoint storage and of the checkpoint server: [persist] and [serve]."""

from __future__ import annotations

from typing import Any, Protocol
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
from flowcheck.findings.catalog.striped_saves import (
    BLOCKS_TOO_MANY,
    CODE_WITHOUT_TARGETS,
    SECRET_IN_URL,
    STORES_COUNT,
    STORES_TWICE,
    TARGET_OR_TARGETS,
)

STORES_MAX = 32
"""Most stores of a job, and blocks k + m of a stripe. A choice: more than a job has; the code's
field would take 255 (vault/erasure/isal_code.py)."""
LOCAL_SCHEMES = ("", "file", "local")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_local_place(target: str) -> bool:
    """Whether a target of `[persist]` is a folder, as a path or a URL."""
    return urlsplit(target).scheme in LOCAL_SCHEMES


class ServerSettings(Protocol):
    """What tables of servers that give a replica's state have in common."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def token_file(self) -> str | None: ...
    @property
    def tls_certificate(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...
    @property
    def connections(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...


def check_server(table: str, own: ServerSettings) -> None:
    """Raises ConfigError where such a server cannot be, or would answer strangers. table: of the
    job file."""
    if not 0 <= own.port <= 65535:
        raise ConfigError(f"{table}.port", own.port, FROM_TO(least=0, most=65535))
    at_least(f"{table}.connections", own.connections, 1)
    if not own.timeout_s > 0:
        raise ConfigError(f"{table}.timeout_s", own.timeout_s, ABOVE(0))
    if own.tls_key is not None and own.tls_certificate is None:
        right = NEEDS_OTHER(f"{table}.tls_certificate")
        raise ConfigError(f"{table}.tls_key", own.tls_key, right)
    if own.token_file is None and own.host not in LOOPBACK:
        right = TOKEN_NEEDED(token_file=f"{table}.token_file", loopback=LOOPBACK[0])
        raise ConfigError(f"{table}.host", own.host, right)


class PersistConfig(ConfigSection, frozen=True, kw_only=True):
    """Checkpoints that a process of its own saves while the chain runs."""

    target: str = ""
    """Folder, or URL that fsspec knows: s3://bucket/job, gs://..., abfs://... With several jobs,
    each has a folder of its own below the target. With `targets` the first of them."""
    targets: tuple[str, ...] = ()
    """Several stores, each a folder or URL as `target`. A step is cut into `data_blocks` +
    `parity_blocks` blocks, one for each store; any `data_blocks` of the stores give it back."""
    data_blocks: int | None = None
    """Stores that are needed to read a step, with `targets`."""
    parity_blocks: int | None = None
    """Stores that may be lost, with `targets`. None: 1."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of fsspec's file system: {endpoint_url = "http://..."}. With `targets` of several
    kinds, a table for each kind: {s3 = {endpoint_url = "http://..."}}. Leave credentials to the
    environment and to the files that the cloud's own library reads."""
    every_steps: int | None = None
    """A checkpoint is saved of each step whose number is a multiple of this. If memory no longer
    holds that step, the newest step is saved instead."""
    every_minutes: float | None = None
    """Minutes from the start of one save to the start of the next."""
    format: str = "flowcheck"
    """Checkpoint format, one of those that `flowcheck restore --format` knows."""
    format_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of the format: fields of FormatOptions
    (vault/checkpoint_formats/format_registry.py)."""
    keep_last: int = 3
    """Number of newest checkpoints that stay. An older one is deleted only when a newer one is
    durable, and never the newest one that is exact while newer ones are in doubt. A choice: more
    takes storage."""
    keep_every: int | None = None
    """The first checkpoint at or after each multiple of this number of steps is never deleted.
    None: only `keep_last` applies."""
    rate_limit_bytes_s: int | None = None
    """Most bytes per second that are written to the target. None: no limit."""
    staging: str | None = None
    """Folder on a local disk for checkpoints on their way to a remote target. It holds at most one
    checkpoint. None: a folder below the run directory."""
    scrub_every_hours: float = 168.0
    """With `targets`: hours between two readings of all blocks that folders have; what is damaged
    or missing is made again from the others. Of object stores heads and lengths of files are read.
    A choice, a week: shorter reads more, longer finds damage later."""
    scrub_bytes_s: int = 100_000_000
    """Most bytes a second that are read to find or make again such blocks. A choice: more disturbs
    who else uses the stores."""
    timeout_s: float = 60.0
    """Seconds without progress after which an attempt to save has failed and the next one begins. A
    choice: longer reports a dead store later, shorter gives up a slow one."""

    @property
    def is_local(self) -> bool:
        """Whether the target is a local folder that has whole checkpoints."""
        return not self.targets and is_local_place(self.target)

    def __post_init__(self) -> None:
        self._check_stores()
        if not self.target:
            raise ConfigError("persist.target", None, PERSIST_TARGET())
        if self.every_steps is None and self.every_minutes is None:
            raise ConfigError("persist.every_steps", None, PERSIST_INTERVAL())
        at_least("persist.keep_last", self.keep_last, 1)
        wholes = ("every_steps", "keep_every", "rate_limit_bytes_s")
        for key in wholes:
            if getattr(self, key) is not None:
                at_least(f"persist.{key}", getattr(self, key), 1)
        at_least("persist.scrub_bytes_s", self.scrub_bytes_s, 1)
        for key in ("every_minutes", "timeout_s", "scrub_every_hours"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"persist.{key}", value, ABOVE(0))

    def _check_stores(self) -> None:
        if not self.targets:
            for key in ("data_blocks", "parity_blocks"):
                if getattr(self, key) is not None:
                    raise ConfigError(f"persist.{key}", getattr(self, key), CODE_WITHOUT_TARGETS())
            return
        if self.target not in ("", self.targets[0]):
            raise ConfigError("persist.target", self.target, TARGET_OR_TARGETS())
        parity = 1 if self.parity_blocks is None else self.parity_blocks
        data = len(self.targets) - parity if self.data_blocks is None else self.data_blocks
        at_least("persist.parity_blocks", parity, 1)
        at_least("persist.data_blocks", data, 1)
        if data + parity > STORES_MAX:
            raise ConfigError("persist.data_blocks", data, BLOCKS_TOO_MANY(STORES_MAX))
        stores = len(self.targets)
        if stores != data + parity:
            right = STORES_COUNT(stores=stores, blocks=data + parity)
            raise ConfigError("persist.targets", list(self.targets), right)
        if "" in self.targets:
            raise ConfigError("persist.targets", "", PERSIST_TARGET())
        plain = [one.rstrip("/") for one in self.targets]
        for one in plain:
            if "@" in urlsplit(one).netloc and urlsplit(one).password is not None:
                raise ConfigError("persist.targets", "...", SECRET_IN_URL(urlsplit(one).hostname))
            if plain.count(one) > 1:
                raise ConfigError("persist.targets", list(self.targets), STORES_TWICE(one))
        msgspec.structs.force_setattr(self, "target", self.targets[0])
        msgspec.structs.force_setattr(self, "data_blocks", data)
        msgspec.structs.force_setattr(self, "parity_blocks", parity)


class ServeConfig(ConfigSection, frozen=True, kw_only=True):
    """HTTP server of steps, for `flowcheck restore --from http://...` and other HTTP clients."""

    host: str = "127.0.0.1"
    """Address or name that the server listens on."""
    port: int = 7377
    """TCP port. 0: a free port; the log and `flowcheck status` show which."""
    token_file: str | None = None
    """File that holds the bearer token of clients. Without it the server must listen on loopback
    and answers only its own user and root."""
    tls_certificate: str | None = None
    """PEM file with the certificate. If stated, the server speaks https instead of http. The server
    reads the file again when it changes."""
    tls_key: str | None = None
    """PEM file with the private key, where `tls_certificate` does not contain it."""
    connections: int = 256
    """Most connections at a time; further clients are asked to retry later. A choice: each
    connection takes a thread."""
    timeout_s: float = 30.0
    """Seconds after which a client that neither reads nor sends is disconnected. A choice: longer
    lets dead clients hold steps, shorter cuts off bad links."""
    staging: str | None = None
    """Folder where the server writes steps that are only in memory. None: a folder below the run
    directory."""
    staged: int = 2
    """Most steps in the folder `staging`. A choice: each takes the room of a whole checkpoint."""

    def __post_init__(self) -> None:
        at_least("serve.staged", self.staged, 1)
        check_server("serve", self)
