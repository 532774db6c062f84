"""Memory pages of a state file: 2 MiB pages where available, first touched by the threads that
will step what lies in them (NUMA).

A tmpfs mounted with huge=advise gives 2 MiB pages to mappings that ask (madvise(2)), and only when
they are touched: fallocate(2) takes 4 KiB pages there. A file's pages lie on the NUMA node of the
CPU that touched them first, if no policy says otherwise (set_mempolicy(2)), and stay there when
the file is opened again, whatever CPUs are stated then. Tried with one node: that 2 MiB pages come,
and which thread touches what; where they come to lie on a machine with several was not.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.replica.state_file.file_header import Description, EntryPer, FileSizes
from flowcheck.replica.worker_threads import WorkerThreads, shares

HUGE_BYTES = 2 * 1024 * 1024
"""Bytes of a huge page of x86-64 (PMD level)."""
SHARED_BYTES = 16 * 1024 * 1024
"""Bytes. Files of less are touched by the caller alone: eight huge pages. A choice: waking threads
for less gains nothing."""
STRIP_BYTES = 64 * 1024 * 1024
"""Bytes that one call touches. A choice: smaller costs calls, larger lets threads end unevenly."""

Part = tuple[int, int]
"""First byte, and behind the last, of a file."""


def mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    """The file, which asks for 2 MiB pages for as much as fills them: none is taken that reaches
    beyond its end."""
    memory = mmap.mmap(descriptor, size_bytes)
    whole = size_bytes // HUGE_BYTES * HUGE_BYTES
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, 0, whole)
    return memory


def touch(memory: mmap.mmap, parts: Sequence[Sequence[Part]], workers: WorkerThreads) -> None:
    """Takes a fresh file's pages, none twice: each thread its parts, then the caller what is left.
    parts: [workers.number]. Ends early where the file system has no room or the kernel no way: who
    asks for the room then (fallocate) is told why."""
    begins = np.frombuffer(memory, np.uint8).ctypes.data

    def take(every: Iterator[Part]) -> None:
        for first, stop in every:
            at = first // mmap.PAGESIZE * mmap.PAGESIZE
            if lib.fc_populate(ffi.cast("uint8_t *", begins + at), stop - at):
                return

    if len(memory) >= SHARED_BYTES:
        workers.each(lambda number: take(iter(parts[number])))
    size = len(memory)
    take((at, min(at + STRIP_BYTES, size)) for at in range(0, size, STRIP_BYTES))


def parts_of(sizes: FileSizes, description: Description, threads: int) -> list[list[Part]]:
    """[thread] what it will step, of every copy; what has a type of its own is stepped by torch."""
    own = shares(description.layout, threads)
    made: list[list[Part]] = [[] for _ in range(threads)]
    for copy in range(sizes.copies):
        for section in description.sections:
            if section.per is not EntryPer.ELEMENT or section.holds:
                continue
            begins = sizes.data_offset + copy * sizes.copy + section.offset
            each = np.dtype(section.dtype).itemsize
            for parts, mine in zip(made, own, strict=True):
                ends = ((first, first + count) for first, count in mine)
                parts += [(begins + first * each, begins + stop * each) for first, stop in ends]
    return made
