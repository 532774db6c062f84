"""Why no job is learned yet: reported to the operator and kept for `flowcheck status`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.earlier_files import finding_of
from flowcheck.findings.catalog.job_selection_reasons import NO_JOB_SO_FAR, NO_OTHER_JOB
from flowcheck.findings.catalog.nccl_transport import NO_WHOLE_WRITES, NO_WRITES
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.packet_counters import frames_by_verdict
from flowcheck.stages.job_state.training_facts import is_training_known
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.staging_space import rings_drained, staging_overrun
from flowcheck.wire.traffic.non_nccl_traffic import non_nccl_reasons

REASON_STABLE_S = 10.0
"""Seconds. Reasons that stayed the same so long are reported: a stream that grows may change them
with every reading. A choice: longer tells later, shorter tells what the next reading refutes."""
REPORT_EVERY_S = 30.0
"""Seconds. Reasons that keep changing are reported so often. A choice: shorter fills the log."""


class LearningStatus:
    """Reports reasons to the operator, each once, and keeps the latest for `flowcheck status`."""

    def __init__(
        self,
        run: RunDir,
        note: Callable[[Finding], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """note: tells the operator."""
        self._run, self._note, self._clock = run, note, clock
        self._reason: tuple[Finding, ...] = ()
        self._told: tuple[Finding, ...] = ()
        self._since_s = self._told_s = clock()

    def report(self, reason: tuple[Finding, ...]) -> None:
        """reason: of the last reading that ended."""
        now_s = self._clock()
        if reason != self._reason:
            self._reason, self._since_s = reason, now_s
        stood = now_s - self._since_s >= REASON_STABLE_S or now_s - self._told_s >= REPORT_EVERY_S
        if stood and reason != self._told:
            self._told, self._told_s = reason, now_s
            self.store(reason)
            self._note(NO_JOB_SO_FAR(reason))

    def store(self, reason: tuple[Finding, ...]) -> None:
        """For `unlearned_reasons`. A full disk does not end a stage that waits for a job."""
        with suppress(OSError):
            write_atomically(self._run.unlearned, msgspec.json.encode(reason), durable=False)

    def job_learned(self) -> None:
        """A job is learned."""
        self._run.unlearned.unlink(missing_ok=True)


def reasons_with_traffic(
    why_not: tuple[Finding, ...], extractors: Sequence[Extractor], *, first: bool
) -> tuple[Finding, ...]:
    """Why no job is learned, with what the ports carry instead. first: no other job is followed
    there."""
    frames = Counter[str]()
    for extractor in extractors:
        commit = extractor.ring.parse_commit()  # a struct in another does not keep it alive
        frames.update(frames_by_verdict(commit.counters))
    instead = NO_WHOLE_WRITES() if frames["write"] else NO_WRITES()
    if not first:
        instead = NO_OTHER_JOB()
    why_not = tuple(instead if why.is_any_of(NO_WRITES) else why for why in why_not)
    full = staging_overrun(extractors)
    first_of_all = (full,) if full is not None else ()
    return (
        *first_of_all,
        *why_not,
        *non_nccl_reasons(frames, goes_on=not rings_drained(extractors)),
    )


def unlearned_reasons(run: RunDir) -> list[Finding]:
    """Why no job is learned, as reported last; [] where one is, or nothing was reported."""
    if not run.unlearned.exists() or is_training_known(run):
        return []
    with suppress(OSError, *DECODE_ERRORS):  # it goes just now
        told = msgspec.json.decode(run.unlearned.read_bytes(), type=list[Finding | str])
        return [finding_of(one) for one in told]
    return []
