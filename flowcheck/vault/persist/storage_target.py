"""Storage targets for checkpoints: the protocol of all kinds, and the file systems of URLs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_stores as findings
from flowcheck.findings.finding import Finding
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing
from flowcheck.vault.persist.rate_limit import TransferPace

PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
"""{scheme of a URL: the package that `pip install` needs}."""
CONNECT_S = 10.0
"""Seconds to connect to a store. A choice: longer delays the error of a store that is down."""


class StorageTarget(Protocol):
    """A storage target. Paths are relative to it, with / between folders. Methods raise StateError
    or OSError with a message for the operator."""

    url: str

    @property
    def lacking(self) -> int:
        """Stores that have not taken what was sent last; 0 where there is but one."""

    @property
    def short(self) -> Finding | None:
        """Which these are; None: there are none."""

    def read(self, path: str, most_bytes: int = ...) -> bytes | None:
        """The bytes of a small file; None if there is none. Raises StateError if it is longer than
        `most_bytes`, by default the limit of a manifest."""

    def write(self, path: str, data: bytes) -> None:
        """Writes a small file atomically: it has the old or the new content at every instant. The
        file is durable when this returns."""

    def holds(self, name: str) -> bool:
        """Whether anything of this name is there, from FlowCheck or not."""

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """Transfers the files in `folder` to the checkpoint `name`, the manifest last. Files that
        an earlier call transferred are not sent again."""

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """Raises StateError if a file of `name` is missing or has a wrong size or checksum."""

    def remove(self, name: str) -> bool:
        """Deletes a complete or incomplete checkpoint, its manifest first. Returns False if a
        client reads it at the moment; then it stays."""


def local_path(target: str) -> Path:
    """The path of a folder that is stated as a path or as a file:// URL."""
    parts = urlsplit(target)
    return Path(target if not parts.scheme else parts.netloc + parts.path)


def file_system_class(url: str, key: str) -> Any:
    """fsspec's class for a URL. key: the setting's name in errors. Raises ConfigError that says
    what to install."""
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(key, url, findings.NEEDS_FSSPEC()) from error
    scheme = urlsplit(url).scheme
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        package = PACKAGES.get(scheme)
        right = findings.NEEDS_PACKAGE(package) if package else findings.NEEDS_MORE(error)
        raise ConfigError(key, url, right) from error
    except ValueError as error:
        raise ConfigError(key, url, findings.UNKNOWN_SCHEME(scheme)) from error


def open_file_system(url: str, options: dict[str, Any], timeout_s: float, key: str) -> Any:
    """fsspec's file system of a URL. key: the table of the settings or the option of the command
    line that has the URL, for errors. Raises ConfigError."""
    kind = file_system_class(url, key if key.startswith("--") else f"{key}.target")
    scheme = urlsplit(url).scheme
    if scheme in ("gs", "gcs") and "endpoint_url" in options:
        import gcsfs.core

        kind = gcsfs.core.GCSFileSystem  # not the one that asks Google's own endpoint first
    always = {"use_listings_cache": False, "skip_instance_cache": True}
    limits = _limits(scheme, timeout_s)
    arguments = always | limits | options
    if "config_kwargs" in limits:
        arguments["config_kwargs"] = limits["config_kwargs"] | options.get("config_kwargs", {})
    try:
        # What is missing is found before an object is made, whose end would print a traceback.
        inspect.signature(kind.__init__).bind(None, **arguments)
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        names = _missing_options(kind, arguments)
        why = findings.OPTIONS_MISSING(scheme=scheme, names=names) if names else error
        if key.startswith("--"):
            raise ConfigError(key, url, findings.NEEDS_OPTIONS(why)) from error
        right = findings.OPTIONS_REFUSED(why)
        raise ConfigError(f"{key}.options", sorted(options), right) from error


def _missing_options(kind: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Names of those that fsspec's class `kind` needs and is not given."""
    try:
        own = list(inspect.signature(kind.__init__).parameters.values())[1:]  # without self
    except (TypeError, ValueError):  # of a class that has no signature
        return []
    named = (one for one in own if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return [one.name for one in named if one.default is one.empty and one.name not in arguments]


def _limits(scheme: str, timeout_s: float) -> dict[str, Any]:
    """The limits for a request, in the options of each library."""
    connect_s = min(timeout_s, CONNECT_S)
    if scheme in ("s3", "s3a"):
        return {"config_kwargs": {"connect_timeout": connect_s, "read_timeout": timeout_s}}
    if scheme in ("gs", "gcs"):
        from aiohttp import ClientTimeout

        return {"requests_timeout": ClientTimeout(total=timeout_s, sock_connect=connect_s)}
    if scheme in ("abfs", "abfss", "az"):
        whole_s = math.ceil(timeout_s)
        return {"connection_timeout": math.ceil(connect_s), "read_timeout": whole_s}
    return {}
