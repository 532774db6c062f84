"""Reserves a cluster for one run at a time, until its process ends."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import CLUSTER_IN_USE

ADDRESS = "\0flowcheck-lab-{}"
"""Abstract socket address (unix(7)): it has no file and disappears when its process is killed."""
ASKED = 128
"""Processes that may wait for the owner's name at once (listen(2), backlog). A choice: further
ones get an error without it."""
ASK_LIMIT_S = 0.5
"""Seconds to wait for the owner's answer. A choice: a longer limit delays the error beside a hung
owner, a shorter one leaves a busy owner unnamed."""


@contextmanager
def reserved(name: str) -> Iterator[None]:
    """Context manager that reserves cluster `name` for this process until it ends. Raises
    FlowCheckError if a run in another process is using it. Leftovers of a crashed run are no
    obstacle."""
    with socket.socket(socket.AF_UNIX) as own:
        try:
            own.bind(ADDRESS.format(name))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise FlowCheckError(CLUSTER_IN_USE(name=name, owner=_owner(name))) from error
        own.listen(ASKED)
        yield


def _owner(name: str) -> str:
    """Its process, as far as it says."""
    try:
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(ASK_LIMIT_S)
            other.connect(ADDRESS.format(name))
            size = struct.calcsize("3i")  # struct ucred: pid, uid, gid (unix(7))
            told = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        return "another process"
    return f"process {struct.unpack('3i', told)[0]}"
