"""One store of several: a `StorageTarget`, and parts of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from flowcheck.atomic_write import atomic_path_per_process, fsync_path
from flowcheck.config.persist_serve_config import is_local_place
from flowcheck.errors import FlowCheckError, StateError, naming_file
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.striped_saves import NOT_THERE, STRANGERS_FILE
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing
from flowcheck.vault.persist.local_folder import LocalFolder, copy_file_durably
from flowcheck.vault.persist.object_store import ObjectStore
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.storage_target import StorageTarget, local_path, open_file_system
from flowcheck.vault.persist.store_errors import store_error_finding

SHARD = "blocks.stripe"
"""Name of the file with a shard, in the checkpoint's folder at a store."""
OWN_FILES = (SHARD, MANIFEST)
Made = TypeVar("Made")


class BlockStore(Protocol):
    """What is needed of a store. `part` and `size` raise StateError, also where there is no such
    file; their answers may be wrong or short."""

    url: str
    target: StorageTarget
    is_local: bool

    def part(self, path: str, begin: int, size: int) -> bytes: ...
    def size(self, path: str) -> int: ...
    def withdraw(self, name: str) -> None:
        """Takes the manifest of a checkpoint away, if there is one."""

    def place_shard(
        self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace
    ) -> None:
        """Gives the checkpoint `name` the file of blocks in `folder`, which takes the place of one
        that is there at once. Raises StateError for a folder with what FlowCheck did not write."""


class FolderStore:
    """A folder as `BlockStore`."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)
        self.target: StorageTarget = LocalFolder(root)

    def part(self, path: str, begin: int, size: int) -> bytes:
        place = self.root / path
        try:
            held = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(held).st_mode):
                    raise StateError(NOT_THERE(place))
                return os.pread(held, size, begin)
            finally:
                os.close(held)
        except OSError as error:
            raise StateError(_missing_or(error, place)) from error

    def size(self, path: str) -> int:
        place = self.root / path
        try:
            return place.stat().st_size
        except OSError as error:
            raise StateError(_missing_or(error, place)) from error

    def withdraw(self, name: str) -> None:
        place = self.root / name / MANIFEST
        if place.exists():
            place.unlink(missing_ok=True)
            fsync_path(place.parent)

    def place_shard(
        self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace
    ) -> None:
        refuse_stranger(self, name)
        final = self.root / name / SHARD
        if not final.parent.is_dir():
            self.target.send(folder, name, listing, pace)
            return
        with naming_file(final), atomic_path_per_process(final) as place:
            copy_file_durably(folder / SHARD, place, pace)


class RemoteStore:
    """A store of fsspec as `BlockStore`."""

    is_local = False

    def __init__(self, url: str, fs: Any, journal: Path) -> None:
        self.url, self._fs = url.rstrip("/"), fs
        self._base = str(fs._strip_protocol(self.url)).rstrip("/")
        self.target: StorageTarget = ObjectStore(url, fs, journal)

    def part(self, path: str, begin: int, size: int) -> bytes:
        if not size:
            return b""
        return self._telling(
            path, lambda: bytes(self._fs.cat_file(f"{self._base}/{path}", begin, begin + size))
        )

    def size(self, path: str) -> int:
        found = self._telling(path, lambda: self._fs.info(f"{self._base}/{path}").get("size"))
        return found if isinstance(found, int) else 0

    def withdraw(self, name: str) -> None:
        path = f"{name}/{MANIFEST}"

        def gone() -> None:
            if self._fs.exists(f"{self._base}/{path}"):
                self._fs.rm_file(f"{self._base}/{path}")

        self._telling(path, gone)

    def place_shard(
        self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace
    ) -> None:
        self.target.send(folder, name, listing, pace)
        self.target.verify(name, listing, pace)

    def _telling(self, path: str, ask: Callable[[], Made]) -> Made:
        try:
            return ask()
        except FileNotFoundError as error:
            raise StateError(NOT_THERE(f"{self.url}/{path}")) from error
        except FlowCheckError:
            raise
        except Exception as error:
            why = store_error_finding(error)
            raise StateError(stores.AT_PATH(path=f"{self.url}/{path}", why=why)) from error


def open_store(
    url: str, options: dict[str, Any], timeout_s: float, journal: Path, key: str
) -> BlockStore:
    """The store at a URL. options: as `options_of` takes them. key: as in `open_file_system`.
    Raises ConfigError for a URL that cannot be opened."""
    if is_local_place(url):
        return FolderStore(local_path(url).absolute())
    return RemoteStore(
        url, open_file_system(url, options_of(url, options), timeout_s, key), journal
    )


def refuse_stranger(store: BlockStore, name: str) -> None:
    """Raises StateError where a folder of a checkpoint's name has what FlowCheck does not write:
    nothing of it may be taken away."""
    if isinstance(store, FolderStore) and (store.root / name).is_dir():
        for one in (store.root / name).iterdir():
            if one.name not in OWN_FILES and not one.match(f".{SHARD}.*.tmp"):
                raise StateError(STRANGERS_FILE(one))


def options_of(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of one store: the table under its URL or its scheme, where there is one, else all that
    are no tables of stores."""
    for key in (url, urlsplit(url).scheme):
        if isinstance(found := options.get(key), dict):
            return dict(found)
    return {key: one for key, one in options.items() if "://" not in key}


def _missing_or(error: OSError, place: Path) -> Finding:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NOT_THERE(place)
    return ERROR_TEXT(kind="system", text=plain_error_text(error))
