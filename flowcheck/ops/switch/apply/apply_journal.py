"""On-disk journal of what apply creates and cannot mark as its own, and the lock that
serializes apply and remove."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, ConfigError, StateError, naming_file
from flowcheck.findings.catalog.refused_mirror_sessions import JOURNAL_UNWRITABLE
from flowcheck.findings.catalog.switch_changes import LOCKED, NOT_A_JOURNAL
from flowcheck.private_files import make_folder

LOCK_S = 15.0
"""Seconds to wait for the lock of another run. Longer than TIMEOUT_S (ovs_state.py): a command of
a killed run may go on for that long."""
LOOK_S = 0.1
"""Seconds between two attempts to take the lock. A choice: a shorter time costs CPU time."""


def default_folder() -> Path:
    """Where journals are stored: /var/lib/flowcheck/switch for root, else
    $XDG_STATE_HOME/flowcheck/switch (~/.local/state)."""
    if os.geteuid() == 0:
        return Path("/var/lib/flowcheck/switch")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home) / "flowcheck/switch"


class ApplyJournal:
    """A JSON file that lists what FlowCheck created on one switch."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """The entries of the journal; empty if there is no file. Raises StateError for a file that
        is not a journal."""
        try:
            with naming_file(self._path):
                noted = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except DECODE_ERRORS as error:
            raise StateError(NOT_A_JOURNAL(path=self._path, error=error)) from error
        return noted

    def write(self, noted: dict[str, Any]) -> None:
        """Writes the entries to disk (synced when this returns). An empty journal removes the
        file."""
        with naming_file(self._path):
            if noted:
                write_atomically(self._path, msgspec.json.encode(noted))
            else:
                self._path.unlink(missing_ok=True)


@contextmanager
def apply_lock(folder: Path, lock: str = "lock") -> Iterator[None]:
    """Allows one apply or remove at a time on this machine, and checks that `folder` is writable.

    Commands started inside inherit the lock: if this process is killed, its running command holds
    the lock until it ends, so that the next run does not read a state that is still changing.

    Raises ConfigError if the folder cannot be written, StateError if another run holds the lock
    for LOCK_S seconds.
    """
    try:
        make_folder(folder)
        descriptor = os.open(folder / lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        right = JOURNAL_UNWRITABLE(error.strerror)
        raise ConfigError("--journal", str(folder), right) from error
    try:
        _lock(descriptor, folder)
        os.set_inheritable(descriptor, True)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise StateError(LOCKED(folder=folder, limit_s=LOCK_S)) from None
            Event().wait(LOOK_S)
        else:
            return
