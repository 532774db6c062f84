"""Why no job is learned yet, told while the chain runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from flowcheck.stages.rundir import RunDir

STOOD_S = 10.0
"""A reason that stood so long is told: a stream that grows may change it with every reading."""
EVERY_S = 30.0
"""One that keeps changing is told so often, as it is then."""


class Unlearned:
    """Tells reasons to the operator, each once, and keeps the latest for `flowcheck status`."""

    def __init__(
        self,
        run: RunDir,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """note: says a sentence to the operator."""
        self._run, self._note, self._clock = run, note, clock
        self._reason: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()
        self._since_s = self._told_s = clock()

    def look(self, reason: tuple[str, ...]) -> None:
        """reason: of the last reading that ended."""
        now_s = self._clock()
        if reason != self._reason:
            self._reason, self._since_s = reason, now_s
        stood = now_s - self._since_s >= STOOD_S or now_s - self._told_s >= EVERY_S
        if stood and reason != self._told:
            self._told, self._told_s = reason, now_s
            self.keep(reason)
            self._note(f"no job is learned so far: {'; '.join(reason)}")

    def keep(self, reason: tuple[str, ...]) -> None:
        """For `reasons`. A full disk is none to end a stage that waits for a job."""
        growing = self._run.unlearned.with_suffix(".tmp")
        with suppress(OSError):
            growing.write_bytes(msgspec.json.encode(reason))
            growing.replace(self._run.unlearned)

    def over(self) -> None:
        """A job is learned."""
        self._run.unlearned.unlink(missing_ok=True)


def reasons(run: RunDir) -> list[str]:
    """Why no job is learned, as told last; [] where one is, or nothing was told."""
    if not run.unlearned.exists() or run.learned_job.exists():
        return []
    with suppress(OSError, msgspec.DecodeError):  # it goes just now
        return msgspec.json.decode(run.unlearned.read_bytes(), type=list[str])
    return []
