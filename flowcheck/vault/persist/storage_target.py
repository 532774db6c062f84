"""Storage targets for checkpoints: what each kind must do, and which kind a URL names (folder
or fsspec)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_stores as findings
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
"""What `pip install` is given, by the URL's scheme."""
CONNECT_S = 10.0
"""Seconds to connect to a store. A choice: longer delays the error of one that is down."""


class StorageTarget(Protocol):
    """A target. Paths are relative to it, with / between folders. What fails is a StateError or an
    OSError with a sentence for the operator."""

    url: str

    def read(self, path: str, most_bytes: int = ...) -> bytes | None:
        """A small file; None where there is none. Raises StateError where it is longer than
        `most_bytes`, by default what a manifest may have."""

    def write(self, path: str, data: bytes) -> None:
        """A small file: the old content or the new one at every instant, durable behind this."""

    def holds(self, name: str) -> bool:
        """Something of that name is there, whoever put it there."""

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """Makes `name` of the files in `folder`, the manifest last; what a call before this one
        sent of the same files is not sent again."""

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """Raises StateError where a file of `name` is not there with its size and its sum."""

    def remove(self, name: str) -> bool:
        """All of a checkpoint, whole or not, its manifest first. False: somebody reads it just now
        and it stays."""


def open_place(config: PersistConfig, journal: Path) -> StorageTarget:
    """The target of a setting; nothing is asked of it yet. journal: a folder on this machine for
    what was sent. Raises ConfigError for a URL that nothing here can open."""
    if config.is_local:
        from flowcheck.vault.persist.local_folder import LocalFolder

        return LocalFolder(local_path(config.target))
    from flowcheck.vault.persist.object_store import ObjectStore

    return ObjectStore(config.target, file_system(config), journal)


def local_path(target: str) -> Path:
    """Of a folder, named as it is or as file://..."""
    parts = urlsplit(target)
    return Path(target if not parts.scheme else parts.netloc + parts.path)


def check_target(config: PersistConfig) -> None:
    """Raises ConfigError where the URL's scheme is unknown or its package is missing here."""
    if not config.is_local:
        file_system_class(config.target, "persist.target")


def file_system_class(url: str, key: str) -> Any:
    """fsspec's class for a URL. Raises ConfigError, naming what to install."""
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


def file_system(config: PersistConfig) -> Any:
    """fsspec's file system of the target, with a limit to every wait where it takes one."""
    return opened(config.target, config.options, config.timeout_s, "persist")


def opened(url: str, options: dict[str, Any], timeout_s: float, key: str) -> Any:
    """fsspec's file system of a URL. key: the table of settings, for what is wrong with them."""
    kind = file_system_class(url, f"{key}.target")
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
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        right = findings.OPTIONS_REFUSED(error)
        raise ConfigError(f"{key}.options", sorted(options), right) from error


def _limits(scheme: str, timeout_s: float) -> dict[str, Any]:
    """How long a request may take, in each library's own options."""
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
