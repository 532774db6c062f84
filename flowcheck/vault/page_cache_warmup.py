"""Reads an output into the page cache, for a trainer on this machine that loads it next.

Restore writes past the page cache where the file system allows O_DIRECT
(replica/checkpoint_files/direct_io.py), so that the first reader reads from the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from flowcheck.plane.shared_memory.shared_memory_location import available_bytes

WINDOW_BYTES = 128 << 10
"""Bytes of one POSIX_FADV_WILLNEED. The kernel reads at most the device's read-ahead for one call,
by default this much, and silently ignores the rest (mm/readahead.c, force_page_cache_ra)."""
FREE_MEMORY_DIVISOR = 4
"""One in this many parts of the free memory stays free, since the trainer needs memory too. A
choice."""


def warm_page_cache(out: Path) -> tuple[int, str]:
    """Starts to read a file, or all files of a folder, into the page cache. The kernel continues
    after this returns.

    Returns (bytes that are being read or were already there, why they are not read; "" if they
    are).
    """
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    size = sum(path.stat().st_size for path in files)
    free = available_bytes()
    if size > free - free // FREE_MEMORY_DIVISOR:
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
