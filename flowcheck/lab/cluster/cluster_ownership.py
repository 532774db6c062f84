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
"""An abstract name (unix(7)): no file stays of it, and a killed process has none."""
ASKED = 128
"""Others that may wait for the name of the owner (listen(2), backlog). A choice: beyond it nobody
is told any more."""
ASK_LIMIT_S = 0.5
"""Seconds to wait for an owner's answer. A choice: longer delays the error beside a hung owner,
shorter leaves a busy one unnamed."""


@contextmanager
def reserved(name: str) -> Iterator[None]:
    """Cluster `name` is of this process until the `with` ends, or the process does.

    Raises FlowCheckError where a run goes on in it: what a crash left may be swept, this not.
    """
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
