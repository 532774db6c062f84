"""The history of a job's steps from its event file: arrived, applied, lost, saved, audited."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from flowcheck.findings.catalog.how_chains_end import CAUSE_UNKNOWN
from flowcheck.ops.watch.state.chain_state import EVENTS_MAX, TIMELINE_STEPS, StepState
from flowcheck.ops.watch.state.jsonl_tail import JsonLinesTail
from flowcheck.stages.chain_events.event_log import (
    BYTES,
    PACKETS,
    STEP,
    Event,
    EventKind,
    read_event,
)
from flowcheck.step_numbers import START, Step

EVENTS_OF_EVERY_STEP = (EventKind.ARRIVED, EventKind.APPLIED)
RATE_STEPS = 10
"""Number of newest steps over which the step rate is averaged. A choice: more are smoother, fewer
show changes sooner."""
RATE_S = 5.0
"""Seconds without a step after which the step rate is 0, if this is also RATE_GAPS times the usual
step time. A choice: a longer time shows the old rate of a stopped job for longer."""
RATE_GAPS = 3
"""Factor on the usual step time, see RATE_S. A choice."""
REORDER_LIMIT_NS = 10**9
"""Nanoseconds. Two processes write the events of a step (complete, applied), and the second may be
written first, by less than this. A choice: an idle stage wakes every 20 ms
(stages/service_loop.py, IDLE_MAX_MS)."""


class StepHistory:
    """The history of the steps of one run directory, from its event file; `update` reads new
    lines."""

    def __init__(self, events: Path) -> None:
        self._tail = JsonLinesTail(events)
        self._steps: dict[Step, StepState] = {}
        self._applied_step = START
        """Step that was taken last."""
        self.recent: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.lost: Event | None = None
        """The loss of a step that the replica waits before."""
        self.arrived: Step | None = None

    def update(self) -> None:
        """Reads the new events. Raises OSError where the file cannot be read."""
        for line in self._tail.read_new_lines():
            event = read_event(line)
            if event is not None:
                self._take(event)

    def taint(self, step: Step) -> None:
        """Notes that a step was applied without all of its bytes."""
        if step in self._steps:
            self._change(step, tainted=True)

    @property
    def timeline(self) -> tuple[StepState, ...]:
        """The newest steps, oldest first."""
        return tuple(self._steps[step] for step in sorted(self._steps))

    def step_rate(self, now_ns: int) -> float | None:
        """Steps per second over the last RATE_STEPS steps; 0 after a pause (RATE_S); None: fewer
        than two steps. now_ns: nanoseconds since 1970."""
        times = [one.applied_ns for one in self.timeline if one.applied_ns][-RATE_STEPS:]
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        each_s = (times[-1] - times[0]) / 1e9 / (len(times) - 1)
        gone = (now_ns - times[-1]) / 1e9 > max(RATE_S, RATE_GAPS * each_s)
        return 0.0 if gone else 1 / each_s

    def waits_since_ns(self, step: Step) -> int | None:
        """When the first complete step after `step` became complete, nanoseconds since 1970; None:
        there is none."""
        waiting = [o.arrived_ns for o in self._steps.values() if o.step > step and o.arrived_ns]
        return min(waiting, default=None)

    def _take(self, event: Event) -> None:
        if event.kind is EventKind.START:
            self._forget()
        if event.kind not in EVENTS_OF_EVERY_STEP:
            self.recent.append(event)
        if event.kind is EventKind.HANDOVER:
            self.arrived = None
            if event.step is not None:  # else the replica waits as it did, for a base now
                self.lost = None
            self._forget_behind(event.step or START)
        step = event.step
        match event.kind:
            case EventKind.ARRIVED if step is not None:
                self._arrived(step, event.time_ns)
            case EventKind.APPLIED if step is not None:
                self._applied(step, event)
            case EventKind.LOSS if event.what == STEP and step is not None:
                self.lost = event if self._applied_step or self.lost is None else self.lost
                self._change(step, lost=event.why or CAUSE_UNKNOWN())
            case EventKind.LOSS if event.what == BYTES and step is not None:
                self._change(step, tainted=True)
            case EventKind.LOSS | EventKind.HEAL:
                self._count(event)
            case EventKind.SAVE if step in self._steps and step is not None:
                self._change(step, durable_ns=event.time_ns)
            case EventKind.AUDIT if step in self._steps and step is not None:
                failed = self._steps[step].audited is False  # by another rank's file
                self._change(step, audited=event.passed and not failed)
            case EventKind.ANCHOR if step in self._steps and step is not None and event.passed:
                self._change(step, anchored=True)

    def _arrived(self, step: Step, time_ns: int) -> None:
        known = self._steps.get(step)
        if known is not None and known.applied_ns is not None:
            overtaken = known.arrived_ns is None and time_ns - known.applied_ns < REORDER_LIMIT_NS
            if not overtaken:  # of an earlier life of the job: this is another step
                self._forget_behind(Step(step - 1))
        self._change(step, arrived_ns=time_ns)
        self.arrived = step

    def _applied(self, step: Step, event: Event) -> None:
        if not self._applied_step:  # the first of a life
            if step not in self._steps:  # a base was given: those before were counted otherwise
                self._steps = {n: one for n, one in self._steps.items() if one.applied_ns}
            self.lost = None
        elif self.lost is not None and step >= (self.lost.step or 0):
            self.lost = None
        self._change(step, applied_ns=event.time_ns, seconds=event.seconds)
        self._applied_step = step

    def _count(self, event: Event) -> None:
        """Counts packets for the step that they belong to, where that is known. Frames that found
        no slot show up as missing packets."""
        step = event.step
        if event.kind is EventKind.HEAL and event.what == STEP:
            if step in self._steps and step is not None:
                self._change(step, healed=1)
            return
        if event.what != PACKETS or step is None:
            return
        have = self._steps.get(step, StepState(step=step))
        if event.kind is EventKind.LOSS:
            self._change(step, missing=have.missing + event.count)
        elif step in self._steps:
            self._change(step, healed=min(have.missing, have.healed + event.count))

    def _forget_behind(self, step: Step) -> None:
        self._steps = {known: marks for known, marks in self._steps.items() if known <= step}
        self._applied_step = min(self._applied_step, step)

    def _change(self, step: Step, **marks: object) -> None:
        have = self._steps.get(step, StepState(step=step))
        self._steps[step] = msgspec.structs.replace(have, **marks)
        while len(self._steps) > TIMELINE_STEPS:
            del self._steps[min(self._steps)]

    def _forget(self) -> None:
        self._forget_behind(START)
        self.lost = self.arrived = None
