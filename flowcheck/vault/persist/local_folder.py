"""A local folder as storage target. A checkpoint appears complete, by a rename."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from flowcheck.atomic_write import atomic_path_per_process, fsync_path, write_atomically
from flowcheck.errors import StateError, naming_file
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, MANIFEST_MAX_BYTES
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, verify_checkpoint
from flowcheck.vault.persist.rate_limit import TransferPace

LEFTOVERS = ".step-*.tmp"
"""Folders that a killed process left incomplete. They are deleted, since the next save is of
another step."""
COPY_BYTES = 4 << 20
"""Bytes of one read and write. A choice: smaller costs calls."""


class LocalFolder:
    """A local folder as `StorageTarget`, which describes the methods."""

    lacking, short = 0, None

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)

    def read(self, path: str, most_bytes: int = MANIFEST_MAX_BYTES) -> bytes | None:
        try:
            with (self.root / path).open("rb") as file:
                data = file.read(most_bytes + 1)
        except FileNotFoundError:
            return None
        if len(data) > most_bytes:
            raise StateError(stores.LONGER_THAN(place=self.root / path, limit=most_bytes))
        return data

    def write(self, path: str, data: bytes) -> None:
        place = self.root / path
        with naming_file(place):
            make_folder(place.parent)
            write_atomically(place, data)

    def holds(self, name: str) -> bool:
        return os.path.lexists(self.root / name)

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        final = self.root / name
        if final.exists():
            pace.note_skipped(listing.size_bytes)
            return
        with naming_file(final):
            make_folder(self.root)
            with atomic_path_per_process(final, leftovers=LEFTOVERS, folder=True) as place:
                for file in listing.files:
                    make_folder((place / file.name).parent)
                    copy_file_durably(folder / file.name, place / file.name, pace)

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        pace.heartbeat()
        try:
            if verify_checkpoint(self.root / name) != listing:
                raise StateError(stores.MANIFEST_DIFFERS(place=self.root / name, manifest=MANIFEST))
        except StateError:
            self.remove(name)
            raise
        pace.heartbeat()

    def remove(self, name: str) -> bool:
        place = self.root / name
        if not place.is_dir():
            return True
        held = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False  # it is being served
            except OSError:  # NFS locks no folder
                pass
            (place / MANIFEST).unlink(missing_ok=True)
            fsync_path(place)
            shutil.rmtree(place)
            fsync_path(self.root)
        finally:
            os.close(held)
        return True


def copy_file_durably(source: Path, to: Path, pace: TransferPace) -> None:
    """Copies a file, durably. Raises Stopped, OSError."""
    with source.open("rb") as reader, to.open("wb") as writer:
        while data := reader.read(COPY_BYTES):
            pace.wait_to_send(len(data))
            writer.write(data)
            pace.note_moved(len(data))
        writer.flush()
        os.fsync(writer.fileno())
    fsync_path(to.parent)
