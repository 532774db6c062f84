"""Loss and heal events: which packets of which steps are missing, arrived late or held only
duplicates."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from flowcheck.errors import RingError
from flowcheck.findings.catalog.lost_steps import (
    ONLY_DUPLICATES,
    PACKETS_CAME_LATE,
    PACKETS_MISSING,
    REPLICA_GOES_ON,
)
from flowcheck.findings.finding import Finding
from flowcheck.stages.chain_events.event_log import PACKETS, STEP, Event, EventKind
from flowcheck.stages.chain_events.lost_packets import LostPackets, open_lost_packets
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Iteration, Step


class PacketLossEvents:
    """Losses of one job; every event goes to `write`."""

    def __init__(self, run: RunDir, each: int, write: Callable[[Event], None]) -> None:
        """each: all-reduced backward passes per step."""
        self._run, self._each, self._write = run, each, write
        self.newest: Step | None = None
        """Step that a packet came of, told while packets are missing, or a step is lost."""
        self.late = 0
        """Packets that were missing at a look, and came after all."""
        self._lost: Step | None = None
        """A step that the replica waits before."""
        self._short: Step | None = None
        """The last step that is applied without all of its bytes."""
        self.applied = START
        """The last step that the replica applied."""
        self._missing: Counter[Step] = Counter()
        """{step: packets} that were told missing, and did not come."""
        self._files = ExitStack()
        self._losses: LostPackets | None = None

    def step_lost(self, step: Step) -> None:
        """The step cannot be rebuilt."""
        self._lost = step

    def step_incomplete(self, step: Step) -> None:
        """The step is applied without all of its bytes."""
        self._short = step

    def step_applied(self, step: Step) -> None:
        """The replica applied the step: its missing packets held only duplicates."""
        if step >= (self._lost or sys.maxsize):
            why = REPLICA_GOES_ON(self._lost)
            self._write(Event(kind=EventKind.HEAL, step=step, what=STEP, why=why))
            self._lost = None
        self.applied = step
        if (count := self._missing[step]) and step != self._short:
            self._write(
                Event(
                    kind=EventKind.HEAL, step=step, what=PACKETS, count=count, why=ONLY_DUPLICATES()
                )
            )
        self._missing = Counter({of: n for of, n in self._missing.items() if of > step and n > 0})

    def job_handed_over(self, step: Step | None) -> None:
        """A later incarnation of the job is followed. step: the step it continues from; None:
        unknown."""
        self.applied, self._missing, self.newest = step or START, Counter(), None

    def check(self, rings: int) -> None:
        """Reports packets that are missing at two looks in a row; what arrived in between was only
        late."""
        try:
            if self._losses is None:
                self._losses = open_lost_packets(self._run, rings, self._files)
            change = self._losses.check()
        except (RingError, OSError):  # not there yet
            return
        for iteration, count in change.lost.items():
            self._packets(EventKind.LOSS, iteration, count, PACKETS_MISSING())
        for iteration, count in change.healed.items():
            self.late += count
            self._packets(EventKind.HEAL, iteration, count, PACKETS_CAME_LATE())
        newest = self._losses.newest() if self._missing else None
        if newest is not None:
            self.newest = self._step_of(newest)
        elif self._lost is None:  # behind a lost step flows are planned anew, and tell none
            self.newest = None

    def close(self) -> None:
        self._losses = None
        self._files.close()

    def _packets(
        self, kind: EventKind, iteration: Iteration | None, count: int, why: Finding
    ) -> None:
        """Writes an event. In a step that is applied complete, missing and doubtful packets held
        only duplicates."""
        if not count:
            return
        step = None if iteration is None else self._step_of(iteration)
        told = Event(kind=kind, step=step, what=PACKETS, count=count, why=why)
        self._write(told)
        if step is None:
            return
        if step > self.applied:
            self._missing[step] += count if kind is EventKind.LOSS else -count
            self._missing = +self._missing
        elif kind is EventKind.LOSS and step != self._short:
            self._write(msgspec.structs.replace(told, kind=EventKind.HEAL, why=ONLY_DUPLICATES()))

    def _step_of(self, iteration: Iteration) -> Step:
        return incarnation_of(self._run).step_within(iteration, self._each)
