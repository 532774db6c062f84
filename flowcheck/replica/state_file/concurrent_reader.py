"""Reads a state file that another process is stepping: kernel locks (F_OFD_SETLK) hold a copy
still; the updater never waits.

A byte range of the state file beyond its content stands for each copy. A reader holds a shared
lock on it for as long as it reads; the updater writes to a copy only after it had the whole lock
for an instant, and in that instant said that the copy is whole no longer. So a reader that has the
lock and then finds the copy's commit knows that nothing will move. Open file description locks
(fcntl(2), F_OFD_SETLK) end with the descriptor, also after SIGKILL: nothing has to be cleaned up,
and nothing about them lies in the file.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.replica_state_errors import (
    CANNOT_READ,
    NO_STEPS,
    NOT_KEPT_IN,
    STEP_NOT_HELD,
)
from flowcheck.private_files import open_private
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import (
    Commit,
    Description,
    FileSizes,
    read_commit,
    read_commits,
    read_description,
)
from flowcheck.step_numbers import Step

PINS_OFFSET = 1 << 60
"""Beyond any content: a byte for each copy."""
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid


def pin(descriptor: int, copy: int) -> bool:
    """Holds `copy` still until `unpin`, or until the descriptor is closed by the death of its
    process. False: the updater is writing to it just now."""
    return _locked(descriptor, fcntl.F_RDLCK, copy)


def unpin(descriptor: int, copy: int) -> None:
    """Lets go of it, whoever had it through this descriptor."""
    _locked(descriptor, fcntl.F_UNLCK, copy)


def claim_for_writing(descriptor: int, copy: int) -> bool:
    """The updater's turn: nobody reads `copy`, and nobody can begin to until `unpin`."""
    return _locked(descriptor, fcntl.F_WRLCK, copy)


def _locked(descriptor: int, kind: int, copy: int) -> bool:
    asked = _FLOCK.pack(kind, os.SEEK_SET, PINS_OFFSET + copy, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
    except BlockingIOError:
        return False
    return True


SPARE_COPIES = 3
"""With so many the updater has another place to write to while one is read: the newest step's, a
reader's, and its own."""
ATTEMPTS = 16
"""Looks before giving up. Each may be overtaken by two steps of the updater. A choice: more only
delays the error."""


@dataclass(frozen=True, slots=True)
class PinnedCommit:
    """A whole step in shared memory, in place."""

    commit: Commit
    description: Description
    sections: dict[str, np.ndarray]
    """Flat and read-only."""
    has_spare_copy: bool
    """The updater leaves it alone for as long as it is pinned; else only until its next step but
    one."""
    _memory: mmap.mmap

    @property
    def is_unchanged(self) -> bool:
        """Nothing was written to it so far."""
        return self.commit in read_commits(self._memory)


@contextmanager
def pin_step(path: Path, step: Step | None = None) -> Iterator[PinnedCommit]:
    """A step of the state file at `path`, the newest by default, held still as long as there is
    memory for that.

    Raises RingError where there is no state, StateError where it does not hold that step.
    """
    descriptor, memory = _mapped(path)
    try:
        sizes, description = read_description(path, memory)
        commit = _pin(path, descriptor, memory, step)
        try:
            sections = _sections(memory, sizes, description, commit.copy)
            spare = sizes.copies >= SPARE_COPIES
            yield PinnedCommit(commit, description, sections, spare, memory)
        finally:
            unpin(descriptor, commit.copy)
    finally:
        os.close(descriptor)  # the mapping ends with the last view into it


def newest_parameters(path: Path) -> tuple[Layout, np.ndarray]:
    """(layout, flat parameters of the newest step, read-only and in place) of a state file that
    another process may be stepping; good for a look, as a later step overwrites them.

    Raises RingError where there is no state.
    """
    descriptor, memory = _mapped(path)
    os.close(descriptor)
    sizes, description = read_description(path, memory)
    sections = _sections(memory, sizes, description, read_commit(path, memory).copy)
    return description.layout, sections[description.sections[0].name]


def _pin(path: Path, descriptor: int, memory: mmap.mmap, step: Step | None) -> Commit:
    """Pins a step's copy. The commit is looked for again behind the lock: from then on nobody takes
    it away unseen."""
    for _ in range(ATTEMPTS):
        commit = read_commit(path, memory) if step is None else _version(path, memory, step)
        if pin(descriptor, commit.copy):
            if commit in read_commits(memory):
                return commit
            unpin(descriptor, commit.copy)
    raise StateError(STEP_NOT_HELD(path=path, reads=ATTEMPTS))


def _sections(
    memory: mmap.mmap, sizes: FileSizes, description: Description, copy: int
) -> dict[str, np.ndarray]:
    base = sizes.data_offset + copy * sizes.copy
    return {
        s.name: np.frombuffer(memory, s.dtype, s.elements, base + s.offset)
        for s in description.sections
    }


def _mapped(path: Path) -> tuple[int, mmap.mmap]:
    try:
        descriptor = open_private(path, os.O_RDONLY)
        try:
            return descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:
        why = CANNOT_READ(path=path, error=error)
        raise RingError(getattr(error, "errno", None) or errno.EIO, why) from error


def _version(path: Path, memory: mmap.mmap, step: Step) -> Commit:
    kept = {commit.step: commit for commit in read_commits(memory)}
    if step not in kept:
        steps = sorted(kept) or NO_STEPS()
        raise StateError(NOT_KEPT_IN(path=path, step=step, kept=steps))
    return kept[step]
