"""Why no job is learned yet, told while the chain runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from flowcheck.errors import MALFORMED
from flowcheck.plane.counters import by_verdict
from flowcheck.plane.extractor import Extractor
from flowcheck.stages.following.room import drained, overrun
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import write_whole
from flowcheck.wire.foreign import foreign
from flowcheck.wire.learn.verdict.formats import NO_WRITES

NO_OTHER = (
    "no other data-parallel job was seen on these ports beside those before it: state as many jobs "
    "as there are (jobs in the job file, replay --jobs)"
)
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
        with suppress(OSError):
            write_whole(self._run.unlearned, msgspec.json.encode(reason), durable=False)

    def over(self) -> None:
        """A job is learned."""
        self._run.unlearned.unlink(missing_ok=True)


def told_of(
    why_not: tuple[str, ...], extractors: Sequence[Extractor], *, first: bool
) -> tuple[str, ...]:
    """Why no job is learned, with what the ports carry instead. first: no other job is followed
    there."""
    frames = Counter[str]()
    for extractor in extractors:
        commit = extractor.ring.parse_commit()  # a struct in another does not keep it alive
        frames.update(by_verdict(commit.counters))
    if not first:
        why_not = tuple(NO_OTHER if reason == NO_WRITES else reason for reason in why_not)
    full = overrun(extractors)
    first_of_all = (full,) if full else ()
    return (*first_of_all, *why_not, *foreign(frames, goes_on=not drained(extractors)))


def reasons(run: RunDir) -> list[str]:
    """Why no job is learned, as told last; [] where one is, or nothing was told."""
    if not run.unlearned.exists() or run.learned_job.exists():
        return []
    with suppress(OSError, *MALFORMED):  # it goes just now
        return msgspec.json.decode(run.unlearned.read_bytes(), type=list[str])
    return []
