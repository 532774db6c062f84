"""A reading of what is staged, beside the stage's own loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Thread

from flowcheck.plane.merge import Joined
from flowcheck.wire.job import Job
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.lives import lives
from flowcheck.wire.quiet import up_to_quiet
from flowcheck.wire.seen import FlowSeen
from flowcheck.wire.terms import Rule


class ReadingThread(Thread):
    """One reading beside the stage's own loop: a hard stream takes longer than a stop may wait."""

    def __init__(
        self,
        seen: Joined,
        flows: Sequence[FlowSeen],
        *,
        ended: bool,
        quiet: bool,
        hasty: bool,
        release: Rule | None,
        before: Job | None,
    ) -> None:
        super().__init__(name="reading", daemon=True)
        self.seen, self._flows = seen, flows
        self._ended, self._quiet, self._hasty = ended, quiet, hasty
        self._release, self._before = release, before
        self.result: Reading | None = None
        self.error: BaseException | None = None
        self.took_s = 0.0

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.result = self._read()
        except BaseException as error:  # handed to the stage, which raises it
            self.error = error
        self.took_s = time.monotonic() - began

    def _read(self) -> Reading:
        """The first life of a job that proves one: a later one is no part of it."""
        *over, (flows, messages) = lives(self._flows, self.seen.messages)
        for earlier in over:
            reading = read_stream(*earlier, release=self._release, before=self._before)
            if reading.job is not None and reading.weights is not None:
                return reading
        if not self._quiet:
            messages = up_to_quiet(messages)
        before = self._before if self._quiet else None
        return read_stream(
            flows,
            messages,
            ended=self._ended,
            release=self._release,
            before=before,
            hasty=self._hasty,
        )
