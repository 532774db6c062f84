"""Reads an output into the page cache, for a trainer of this machine that loads it next.

What restore writes goes past the page cache where the file system takes O_DIRECT
(replica/checkpoint_files/direct_io.py), so that the first who reads it reads the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from flowcheck.plane.shared_memory.hugepage_memory import available_bytes

WINDOW_BYTES = 128 << 10
"""mm/readahead.c, force_page_cache_ra: of one POSIX_FADV_WILLNEED no more is read than the device's
read-ahead, by default this much; what goes beyond it is left out without a word."""
KEPT_FREE = 4
"""One part in so many of the memory that is free stays so: the trainer needs some of it itself. A
choice."""


def warm(out: Path) -> tuple[int, str]:
    """(bytes that are being read, or were there, why that is not all of it: empty where it is) of a
    file, or of all files of a folder. The kernel reads on after this returns."""
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    size = sum(path.stat().st_size for path in files)
    free = available_bytes()
    if size > free - free // KEPT_FREE:
        return 0, f"{size >> 20} MiB are not read: {free >> 20} MiB of memory are free"
    for path in files:
        try:
            _read_ahead(path)
        except OSError as error:
            return 0, f"{path} is not read ahead: {error.strerror}"
    return size, ""


def _read_ahead(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at in range(0, os.fstat(descriptor).st_size, WINDOW_BYTES):
            os.posix_fadvise(descriptor, at, WINDOW_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
