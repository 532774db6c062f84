"""TLS contexts: a server's certificate, read again when it is renewed, and the authority a
client trusts."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol
from urllib.parse import urlsplit

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_downloads as findings

FileStamps = tuple[tuple[int, int, int], ...]
"""Of each file: what changes when it is written anew."""


class ServerTls:
    """What connections are wrapped in."""

    def __init__(
        self, certificate: str, key: str | None, table: str, say: Callable[[str], None]
    ) -> None:
        """certificate: a PEM file, the server's own certificate first, then those between it and
        the authority; key: the file of its private key, None where it is in the same one; table: of
        the job file, that states them.

        Raises ConfigError where they cannot be read, or do not belong together.
        """
        self._certificate, self._key, self._say = certificate, key, say
        self._names = (f"{table}.tls_certificate", f"{table}.tls_key")
        self._lock = Lock()
        self._stamp = self._stamped()
        self._context = self._read()

    def wrapped(self, connection: socket.socket, limit_s: float) -> ssl.SSLSocket:
        """The connection, after the TLS handshake. Raises OSError where the client does not finish
        it within `limit_s` seconds."""
        connection.settimeout(limit_s)
        return self._fresh().wrap_socket(connection, server_side=True)

    def _fresh(self) -> ssl.SSLContext:
        """A certificate that was renewed serves those who come after."""
        with self._lock:
            try:
                stamp = self._stamped()
                if stamp != self._stamp:
                    self._context, self._stamp = self._read(), stamp
                    self._say(f"{self._certificate}: read again")
            except ConfigError as error:  # half of it is written yet
                self._say(f"{error}; the one before is still used")
            return self._context

    def _stamped(self) -> FileStamps:
        files = [self._certificate, *([self._key] if self._key is not None else [])]
        told = []
        for name, file in zip(self._names, files, strict=False):
            try:
                found = Path(file).stat()
            except OSError as error:
                raise ConfigError(name, file, findings.FILE_UNREADABLE(error.strerror)) from error
            told.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(told)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=_none)
        except (OSError, ValueError) as error:  # SSLError is one; which file, OpenSSL does not say
            right = findings.CERTIFICATE_AND_OWN_KEY(error)
            if self._key:
                right = findings.CERTIFICATE_AND_KEY(key=self._key, error=error)
            raise ConfigError(self._names[0], self._certificate, right) from error
        return context


def _none() -> str:
    """A server has nobody to ask."""
    return ""


class TlsSettings(Protocol):
    """A server's settings."""

    @property
    def tls_certificate(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...


def server_tls(
    config: TlsSettings, table: str, say: Callable[[str], None] = lambda _: None
) -> ServerTls | None:
    """What a table of the job file states; None: connections in clear. Raises ConfigError as
    `ServerTls` does."""
    if config.tls_certificate is None:
        return None
    return ServerTls(config.tls_certificate, config.tls_key, table, say)


def client_tls_context(url: str, authority: str | None) -> ssl.SSLContext | None:
    """A client's context: trusts certificates of `authority`, a PEM file; None: of the authorities
    that this machine trusts. Returns None for a URL that is not https. Raises ConfigError where the
    file is not PEM, or the URL is not https and a file is given."""
    if urlsplit(url).scheme != "https":
        if authority is not None:
            raise ConfigError("--ca", authority, findings.CA_WITHOUT_TLS(url))
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        right = findings.INVALID_CA(error.strerror or str(error))
        raise ConfigError("--ca", authority, right) from error
