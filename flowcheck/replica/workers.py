"""The threads that take a replica's steps, and the CPUs they keep to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from flowcheck.errors import ConfigError

_own = threading.local()


def number() -> int:
    """Of the calling thread among those of its pool; 0 elsewhere."""
    return getattr(_own, "number", 0)


@dataclass(frozen=True, slots=True)
class Workers:
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
        """Raises ConfigError where a CPU is none that this process may run on."""
        allowed = os.sched_getaffinity(0)
        for cpu in self.cpus:
            if cpu not in allowed:
                right = f"may be one of {', '.join(map(str, sorted(allowed)))} here"
                raise ConfigError("replica.cpus", cpu, right)

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
