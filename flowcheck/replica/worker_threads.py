"""The threads that step a replica: how many, on which CPUs, and which thread steps which
elements.

Each thread steps its own, whose pages it also was the first to touch; who is done goes on with the
others'.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.replica_state_errors import CPU_NOT_ALLOWED
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import BLOCK_BYTES

_own = threading.local()


def thread_number() -> int:
    """Of the calling thread among those of its pool; 0 elsewhere."""
    return getattr(_own, "number", 0)


@dataclass(frozen=True, slots=True)
class WorkerThreads:
    """threads: None for as many as there are CPUs to run on but one, which the other stages keep;
    cpus: where they are pinned, by turns; none: wherever the kernel puts them."""

    threads: int | None = None
    cpus: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """Of threads."""
        if self.threads is not None:
            return self.threads
        return len(self.cpus) or max(1, len(os.sched_getaffinity(0)) - 1)

    @property
    def caller_steps(self) -> bool:
        """Whether who waits for a step works as the first of them: there is one less to wake, which
        takes a tenth of a millisecond and more. Not where they are pinned, which the caller is
        not."""
        return not self.cpus

    def check(self) -> None:
        """Raises ConfigError for a CPU that this process may not run on."""
        allowed = os.sched_getaffinity(0)
        for cpu in self.cpus:
            if cpu not in allowed:
                raise ConfigError("replica.cpus", cpu, CPU_NOT_ALLOWED(sorted(allowed)))

    def pool(self) -> tuple[int, ThreadPoolExecutor]:
        """(how many, a pool of them), pinned as they start; the caller is one of those, where
        `caller_steps`. Raises ConfigError as `check`."""
        self.check()
        turn = count(int(self.caller_steps))

        def begin() -> None:
            self._become(next(turn))

        return self.number, ThreadPoolExecutor(self.number, "step", initializer=begin)

    def each(self, work: Callable[[int], None]) -> None:
        """work(0), work(1), ..., each where that thread of a pool runs, side by side. Raises
        ConfigError as `check`, and what `work` does."""
        self.check()

        def as_one(turn: int) -> None:
            self._become(turn)
            work(turn)

        with ThreadPoolExecutor(self.number, "touch") as pool:
            list(pool.map(as_one, range(self.number)))

    def _become(self, turn: int) -> None:
        _own.number = turn
        if self.cpus:
            os.sched_setaffinity(0, {self.cpus[turn % len(self.cpus)]})


SHARE_BYTES = 2 * 1024 * 1024
"""Bytes. Small tensors are kept together up to one huge page, so that two threads do not share
one."""


def blocks(layout: Layout, element_bytes: int, most_bytes: int) -> list[tuple[int, int, int]]:
    """[(first element, elements, parameter)] of every tensor, in pieces of at most `most_bytes`."""
    most = most_bytes // element_bytes
    return [
        (at, min(most, p.stop - at), index)
        for index, p in enumerate(layout.parameters)
        for at in range(p.start, p.stop, most)
    ]


def owners(sizes_bytes: Sequence[int] | np.ndarray, threads: int) -> np.ndarray:
    """[piece] its thread, 0 to threads - 1: as they lie, each to who has least so far, so that the
    pieces of a bucket, which lie together, are of all."""
    found: list[int] = []
    taken, turn, together = [0] * threads, 0, 0
    for size in map(int, sizes_bytes):
        if together + size > SHARE_BYTES:
            turn, together = taken.index(min(taken)), 0
        found.append(turn)
        taken[turn] += size
        together += size
    return np.array(found, np.intp)


def shares(layout: Layout, threads: int) -> list[list[tuple[int, int]]]:
    """[thread][(first, elements)] of a layout's flat state."""
    pieces = blocks(layout, layout.element_bytes, BLOCK_BYTES)
    made: list[list[tuple[int, int]]] = [[] for _ in range(threads)]
    sizes = [elements * layout.element_bytes for _, elements, _ in pieces]
    for (first, elements, _), owner in zip(pieces, owners(sizes, threads), strict=True):
        made[owner].append((first, elements))
    return made
