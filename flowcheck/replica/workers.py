"""The threads that take a replica's steps, and the CPUs they keep to."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from flowcheck.errors import ConfigError


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

    def check(self) -> None:
        """Raises ConfigError where a CPU is none that this process may run on."""
        allowed = os.sched_getaffinity(0)
        for cpu in self.cpus:
            if cpu not in allowed:
                right = f"may be one of {', '.join(map(str, sorted(allowed)))} here"
                raise ConfigError("replica.cpus", cpu, right)

    def pool(self) -> tuple[int, ThreadPoolExecutor]:
        """(how many, a pool of them), pinned as they start. Raises ConfigError as `check`."""
        self.check()
        turn = count()

        def pin() -> None:
            if self.cpus:
                os.sched_setaffinity(0, {self.cpus[next(turn) % len(self.cpus)]})

        return self.number, ThreadPoolExecutor(self.number, "step", initializer=pin)
