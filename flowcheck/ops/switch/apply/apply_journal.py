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
"""Seconds to wait for another run's lock: longer than a command goes on that outlived its run
(ovs_state.py, TIMEOUT_S)."""
LOOK_S = 0.1
"""Seconds between two tries of the lock. A choice: shorter costs processor time."""


def default_folder() -> Path:
    """Of the machine for root, of the user for others."""
    if os.geteuid() == 0:
        return Path("/var/lib/flowcheck/switch")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home) / "flowcheck/switch"


class ApplyJournal:
    """One file of a folder: what is noted of one switch."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """What is noted; empty without a file. Raises StateError for a file of another kind."""
        try:
            with naming_file(self._path):
                noted = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except DECODE_ERRORS as error:
            raise StateError(NOT_A_JOURNAL(path=self._path, error=error)) from error
        return noted

    def write(self, noted: dict[str, Any]) -> None:
        """On disk when this returns; an empty journal removes the file."""
        with naming_file(self._path):
            if noted:
                write_atomically(self._path, msgspec.json.encode(noted))
            else:
                self._path.unlink(missing_ok=True)


@contextmanager
def apply_lock(folder: Path, lock: str = "lock") -> Iterator[None]:
    """One at a time on this machine, and a folder that can be written.

    Programs started meanwhile hold it too: of a run that was killed, the command it had begun may
    still be at work, and what was looked at before its end would not be so for long.

    Raises ConfigError where it cannot, StateError where another holds it for LOCK_S.
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
