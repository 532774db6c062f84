"""Readers that hold a copy of the state still, by a lock the kernel takes away when they die.

A byte range of the state file beyond its content stands for each copy. A reader holds a shared
lock on it for as long as it reads; the updater writes to a copy only after it had the whole lock
for an instant, and in that instant said that the copy is whole no longer. So a reader that has the
lock and then finds the copy's commit knows that nothing will move. Open file description locks
(fcntl(2), F_OFD_SETLK) end with the descriptor, also after SIGKILL: nothing has to be cleaned up,
and nothing about them lies in the file.
"""

from __future__ import annotations

import fcntl
import os
import struct

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


def claim(descriptor: int, copy: int) -> bool:
    """The updater's turn: nobody reads `copy`, and nobody can begin to until `unpin`."""
    return _locked(descriptor, fcntl.F_WRLCK, copy)


def _locked(descriptor: int, kind: int, copy: int) -> bool:
    asked = _FLOCK.pack(kind, os.SEEK_SET, PINS_OFFSET + copy, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
    except BlockingIOError:
        return False
    return True
