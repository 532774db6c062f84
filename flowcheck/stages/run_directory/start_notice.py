"""That a chain is being started in a run directory, before anything lies in it.

A name in the kernel (an abstract Unix socket) says so, which goes with its process however that
ends. It shows in the network namespace of the start alone.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_given: list[socket.socket] = []


@contextmanager
def start_notice(root: Path) -> Iterator[None]:
    """Says that this process starts a chain in this folder, until `end_start_notice`, or the end of
    the block."""
    with suppress(OSError):  # another one does
        notice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _given.append(notice)
        notice.bind(_name(root))
    try:
        yield
    finally:
        end_start_notice()


def end_start_notice() -> None:
    """The run directory shows it from now on."""
    while _given:
        _given.pop().close()


def is_being_started(root: Path) -> bool:
    """Whether a process says that it starts a chain in this folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect(_name(root))
        return True
    return False


def _name(root: Path) -> bytes:
    place = os.fsencode(os.path.realpath(root))
    return b"\0flowcheck-starts-" + hashlib.sha256(place).hexdigest()[:32].encode()
