"""Detects trainers that hang, and reports the source line at which each rank is."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import TRAINERS_HANG
from flowcheck.findings.finding import Finding
from flowcheck.lab.job_run.torchrun_trainers import Trainers, process_tree

STEP_LIMIT_S = 120.0
"""Seconds without a new step after which trainers count as hung; only time in which they had a CPU
or did not want one counts. A choice: a longer limit reports later, a shorter one may take slow
steps for a hang."""
STARVED_LIMIT_S = 600.0
"""Seconds without a new step after which they count as hung in any case, since the machine is too
busy. A choice, five times STEP_LIMIT_S."""
LOOK_S = 1.0
"""Seconds between two readings of the scheduler's counters. A choice: a shorter time costs CPU
time."""
TOLD_LIMIT_S = 5.0
"""Seconds for a rank to write its stack. A choice: a longer limit delays the report, a shorter one
leaves out ranks on a busy machine."""


class HangDetector:
    """Detects missing progress; a busy machine does not use up its limit. A process that is
    runnable but does not get a CPU (run_delay: Linux Documentation/scheduler/sched-stats) is slow,
    not stuck. If the kernel does not count that, all time counts."""

    def __init__(self, what: str, *trainers: Trainers) -> None:
        """what: is under way, for the sentence."""
        self._what, self._trainers = what, trainers
        self._seen: object = None
        self._moved_s = self._looked_s = time.monotonic()
        self._starved_s = 0.0
        self._delays: dict[int, float] = {}

    def check(self, step: object) -> None:
        """Call regularly. step: any value that changes with each step. Raises FlowCheckError, with
        the stack line of each rank, if it has not changed for too long; the trainers are ended
        then."""
        now = time.monotonic()
        if step != self._seen:
            self._seen, self._moved_s, self._starved_s = step, now, 0.0
        if now - self._looked_s < LOOK_S:
            return
        delays = _delays([pid for one in self._trainers for pid in one.pids()])
        waited = [all_s - self._delays.get(pid, all_s) for pid, all_s in delays.items()]
        self._starved_s += min(max(waited, default=0.0), now - self._looked_s)
        self._looked_s, self._delays = now, delays
        all_s = now - self._moved_s
        if all_s - self._starved_s > STEP_LIMIT_S or all_s > STARVED_LIMIT_S:
            raise FlowCheckError(self._hang(all_s))

    def _hang(self, all_s: float) -> Finding:
        return TRAINERS_HANG(
            what=self._what,
            seconds=round(all_s),
            step=str(self._seen),
            starved_s=round(self._starved_s),
            load=f"{os.getloadavg()[0]:.1f}",
            processors=os.cpu_count(),
            stacks="\n".join(line for one in self._trainers for line in stacks(one)),
        )


def stacks(trainers: Trainers) -> list[str]:
    """One line per host: its log and the line at which its rank was. Ends the ranks."""
    before = [log.stat().st_size for log in trainers.logs]
    for pid in trainers.pids():
        if len(process_tree(pid)) == 1:  # a rank: torchrun has children
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
    deadline_s, found = time.monotonic() + TOLD_LIMIT_S, [""] * len(before)
    while not all(found) and time.monotonic() < deadline_s:
        Event().wait(0.1)
        found = [_innermost(log, size) for log, size in zip(trainers.logs, before, strict=True)]
    return [
        f"  {log}: {line or 'it said nothing'}"
        for log, line in zip(trainers.logs, found, strict=True)
    ]


def _innermost(log: Path, after_bytes: int) -> str:
    """Of the thread that was told; empty before it has written."""
    said = log.read_bytes()[after_bytes:].decode(errors="replace")
    told = re.search(r'Current thread .*\n +(File ".*", line \d+ in .*)\n', said)
    return told[1] if told else ""


def _delays(pids: Sequence[int]) -> dict[int, float]:
    """{process: seconds its main thread could run and was not let}."""
    found = {}
    for pid in pids:
        with suppress(OSError, IndexError, ValueError):
            found[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return found
