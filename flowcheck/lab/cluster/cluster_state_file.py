"""State file of a cluster, written before anything is made and removed last."""

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
"""Seconds to wait for another command that changes the cluster. A choice: longer hangs behind a
stuck one, shorter fails behind a slow one."""
LOOK_S = 0.05
"""Seconds between two tries of the lock. A choice: shorter costs processor time, longer starts
later."""


class ClusterState(msgspec.Struct, kw_only=True):
    """Of one cluster. Names of namespaces, links and files follow from `cluster`."""

    cluster: Cluster
    whole: bool = False
    """Everything was made; False while it is being made, and after a crash meanwhile."""
    processes: list[ProcessIdentity] = []
    said: list[str] = []
    """What was changed on the machine outside the namespaces."""


def state_file_path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def folder_of(name: str) -> Path:
    """Files of the switch's processes."""
    return FOLDER / name


def save(state: ClusterState) -> None:
    write_atomically(state_file_path(state.cluster.name), msgspec.json.encode(state), durable=False)


def load(name: str) -> ClusterState | None:
    """None if there is no such cluster. Raises FlowCheckError for a file that is not ours."""
    try:
        return msgspec.json.decode(state_file_path(name).read_bytes(), type=ClusterState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FlowCheckError(
            NOT_A_CLUSTER_STATE(path=state_file_path(name), error=error)
        ) from error


def names() -> list[str]:
    """Clusters with a state file."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def forget(name: str) -> bool:
    """Removes every file of cluster `name`; True if there was one."""
    there = [state_file_path(name), temporary_path(state_file_path(name)), folder_of(name)]
    found = any(path.exists() for path in there)
    shutil.rmtree(folder_of(name), ignore_errors=True)
    for path in there[:2]:
        path.unlink(missing_ok=True)
    return found


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """One `up` or `down` at a time on this machine; the folder is the lock and leaves no file.

    A child forked by a killed `up` holds the lock until it executes its program, so whoever gets
    the lock finds every process where it belongs.
    """
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
