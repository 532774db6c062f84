"""State file of a cluster, written before anything is created and removed last."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.atomic_write import temporary_path, write_atomically
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import LAB_LOCKED, NOT_A_CLUSTER_STATE
from flowcheck.lab.cluster.cluster_spec import Cluster
from flowcheck.lab.cluster.namespace_processes import ProcessIdentity

FOLDER = Path("/run/flowcheck/lab")
LOCK_LIMIT_S = 60.0
"""Seconds to wait for another command that changes a cluster. A choice: a longer limit waits for a
stuck command, a shorter one fails beside a slow one."""
LOOK_S = 0.05
"""Seconds between two attempts to take the lock. A choice: a shorter time costs CPU time, a longer
one starts later."""


class ClusterState(msgspec.Struct, kw_only=True):
    """State of one cluster. Names of namespaces, links and files follow from `cluster`."""

    cluster: Cluster
    whole: bool = False
    """True: everything was created. False while it is being created, and after a crash in that
    time."""
    processes: list[ProcessIdentity] = []
    said: list[str] = []
    """Sentences about settings of the machine that were changed."""


def state_file_path(name: str) -> Path:
    """Path of the state file of cluster `name`."""
    return FOLDER / f"{name}.json"


def folder_of(name: str) -> Path:
    """Folder for the files of the switch's processes."""
    return FOLDER / name


def save(state: ClusterState) -> None:
    """Writes the state file."""
    write_atomically(state_file_path(state.cluster.name), msgspec.json.encode(state), durable=False)


def load(name: str) -> ClusterState | None:
    """Reads the state of cluster `name`; None: there is no such cluster. Raises FlowCheckError for
    a file of another user or another kind."""
    try:
        return msgspec.json.decode(state_file_path(name).read_bytes(), type=ClusterState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FlowCheckError(
            NOT_A_CLUSTER_STATE(path=state_file_path(name), error=error)
        ) from error


def cluster_names() -> list[str]:
    """Names of the clusters that have a state file."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def remove_state_files(name: str) -> bool:
    """Removes all files of cluster `name`; True if there was one."""
    there = [state_file_path(name), temporary_path(state_file_path(name)), folder_of(name)]
    found = any(path.exists() for path in there)
    shutil.rmtree(folder_of(name), ignore_errors=True)
    for path in there[:2]:
        path.unlink(missing_ok=True)
    return found


@contextmanager
def cluster_command_lock() -> Iterator[None]:
    """Context manager that allows one `up` or `down` at a time on this machine, by a lock on the
    folder. A child process of a killed `up` holds the lock until it executes its program; then it
    is in its namespace and can be found there."""
    descriptor = _lock(time.monotonic() + LOCK_LIMIT_S)
    try:
        yield
    finally:
        with suppress(OSError):
            # Not empty while there is another cluster.
            FOLDER.rmdir()
        os.close(descriptor)


def _lock(deadline_s: float) -> int:
    while True:
        FOLDER.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _try_lock(descriptor):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline_s:
            raise FlowCheckError(LAB_LOCKED(folder=FOLDER, limit_s=LOCK_LIMIT_S))
        Event().wait(LOOK_S)


def _try_lock(descriptor: int) -> bool:
    """False also where the folder was removed between opening and locking it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == FOLDER.stat().st_ino
    except OSError:
        return False
