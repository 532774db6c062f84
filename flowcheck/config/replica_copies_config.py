"""Settings of copies of a replica: [copies] of the chain that is copied, [gradients] of a chain
whose gradients come from others."""

from __future__ import annotations

from urllib.parse import urlsplit

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.config.persist_serve_config import check_server
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    CHAIN_URL,
    FROM_TO,
    LOGS_OR_CHAINS,
    NEEDS_OTHER,
    NO_LOGS,
)


class CopiesConfig(ConfigSection, frozen=True, kw_only=True):
    """Gives each change of the replica to chains on other machines that keep a copy of it. The
    replica never waits for a copy: one that is too slow is brought up by a whole state."""

    host: str = "127.0.0.1"
    """Address or name that the server listens on."""
    port: int = 7378
    """TCP port. 0: a free port; the log and `flowcheck status` show which."""
    token_file: str | None = None
    """File that holds the bearer token of copies. Without it the server must listen on loopback and
    answers only its own user and root."""
    tls_certificate: str | None = None
    """PEM file with the certificate. If stated, the server speaks https instead of http. The server
    reads the file again when it changes."""
    tls_key: str | None = None
    """PEM file with the private key, where `tls_certificate` does not contain it."""
    connections: int = 16
    """Most connections at a time. A choice: each copy takes one, each connection a thread."""
    timeout_s: float = 30.0
    """Seconds after which a copy that neither reads nor sends is disconnected. A choice: longer
    holds memory for dead copies, shorter cuts off bad links."""
    memory_bytes: int = 256 << 20
    """Bytes of shared memory for the newest changes. At least 3 fit, whatever is stated, and 64 are
    the most. A choice: a copy that is farther behind is brought up by a whole state."""
    epoch: int = 0
    """Raise it where this chain takes the place of another machine's: copies refuse what comes from
    a chain with a lower one once they have seen a higher one."""

    def __post_init__(self) -> None:
        at_least("copies.memory_bytes", self.memory_bytes, 0)
        if not 0 <= self.epoch < 1 << 32:
            raise ConfigError("copies.epoch", self.epoch, FROM_TO(least=0, most=(1 << 32) - 1))
        check_server("copies", self)


class GradientsConfig(ConfigSection, frozen=True, kw_only=True):
    """`[gradients]`, in place of `[[source]]`: the replica reads gradients from other chains. This
    chain captures nothing."""

    logs: tuple[str, ...] = ()
    """Gradient logs, in any order: the files that other chains of the job name in `[gradient_log]`
    as `file`. They may overlap, and their chains may still write them."""
    chains: tuple[str, ...] = ()
    """In place of `logs`: URLs of chains with `[copies]`, "https://10.0.0.9:7378". The replica is a
    copy of the first one that answers; the others take its place when it is gone."""
    token_file: str | None = None
    """File that holds the bearer token of these chains."""
    ca: str | None = None
    """CA bundle (PEM) to trust for https. None: the CAs that this machine trusts."""
    timeout_s: float = 10.0
    """Seconds without a byte after which a chain counts as gone; at least 2, as an idle chain
    answers each second. A choice: longer finds a dead machine later, shorter gives up slow ones."""

    def __post_init__(self) -> None:
        if not self.logs and not self.chains:
            raise ConfigError("gradients.logs", (), NO_LOGS())
        if self.logs and self.chains:
            raise ConfigError("gradients.chains", self.chains, LOGS_OR_CHAINS())
        for url in self.chains:
            if not _is_server(url):
                raise ConfigError("gradients.chains", url, CHAIN_URL("https://10.0.0.9:7378"))
        for key in ("token_file", "ca"):
            if getattr(self, key) is not None and not self.chains:
                raise ConfigError(
                    f"gradients.{key}", getattr(self, key), NEEDS_OTHER("gradients.chains")
                )
        if not 2 <= self.timeout_s <= 3600:
            raise ConfigError("gradients.timeout_s", self.timeout_s, FROM_TO(least=2, most=3600))


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
