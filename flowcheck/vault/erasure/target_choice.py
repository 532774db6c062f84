"""The storage target that `[persist]` names: a folder, a store of fsspec, or several of these."""

from __future__ import annotations

from pathlib import Path

from flowcheck.config import PersistConfig
from flowcheck.config.persist_serve_config import is_local_place
from flowcheck.vault.erasure.block_store import open_store
from flowcheck.vault.erasure.isal_code import check_isal
from flowcheck.vault.erasure.striped_target import StripedTarget
from flowcheck.vault.persist.local_folder import LocalFolder
from flowcheck.vault.persist.object_store import ObjectStore
from flowcheck.vault.persist.storage_target import (
    StorageTarget,
    file_system_class,
    local_path,
    open_file_system,
)


def open_target(config: PersistConfig, journal: Path) -> StorageTarget:
    """The target that [persist] names. Sends no request yet. journal: a local folder for the upload
    journals. Raises ConfigError for a URL that no installed package can open; StateError for
    several stores where ISA-L is missing."""
    if config.targets:
        return open_striped_target(config, journal)
    if config.is_local:
        return LocalFolder(local_path(config.target))
    fs = open_file_system(config.target, config.options, config.timeout_s, "persist")
    return ObjectStore(config.target, fs, journal)


def open_striped_target(
    config: PersistConfig, staging: Path, journals: Path | None = None
) -> StripedTarget:
    """The stores of `targets`. journals: a folder for the upload journals, by default `staging`.
    Raises as `open_target` does."""
    assert config.data_blocks is not None and config.parity_blocks is not None
    journals = journals or staging
    stores = [
        open_store(url, config.options, config.timeout_s, journals / f"store-{number}", "persist")
        for number, url in enumerate(config.targets)
    ]
    data, parity = config.data_blocks, config.parity_blocks
    return StripedTarget(stores, data, parity, staging, limit_s=config.timeout_s)


def check_target(config: PersistConfig) -> None:
    """Raises ConfigError if a URL's scheme is unknown or its package is not installed; StateError
    for several stores where ISA-L is missing."""
    if config.targets:
        check_isal()
    for url in config.targets or (config.target,):
        if not is_local_place(url):
            file_system_class(url, "persist.targets" if config.targets else "persist.target")
