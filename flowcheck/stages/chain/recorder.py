"""Writes a chain's history as it happens: what the supervisor hears, and what counters show."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import RingError
from flowcheck.messages import (
    AuditLine,
    Hello,
    Message,
    StepApplied,
    StepArrived,
    StepLost,
    StepShort,
)
from flowcheck.plane.counters import LOSSES
from flowcheck.plane.ring import Ring
from flowcheck.stages.bounded import EVENTS_BYTES, append_line
from flowcheck.stages.chain.beat import Beat, write_beat
from flowcheck.stages.chain.events import (
    FRAMES,
    PACKETS,
    STEP,
    WHOLE,
    Event,
    Kind,
    event_of,
    line_of,
)
from flowcheck.stages.chain.losses import Losses, opened
from flowcheck.stages.chain.silence import ARRIVES, SILENT, Silence, Turn
from flowcheck.stages.links import Links
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.anchors import AnchorLine
from flowcheck.stages.updating.incarnation import incarnation_of

LOOK_S = 0.5
"""Between two looks at counters and files, and two beats."""


class Recorder:
    """The only writer of a run's events.jsonl and beat.json. Lines that cannot be written raise
    OSError; everything else here may fail, and is looked at again."""

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._job = run, run.reader + 1
        self._each = config.optimizer.synced_backwards if config.optimizer is not None else 1
        self._started_ns, self._looked_s = time.time_ns(), -LOOK_S
        self._counts: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._lost: int | None = None
        """A step that the replica waits before."""
        self._steps_lost = self._late = self._taken = 0
        self._missing: Counter[int] = Counter()
        """{step: packets} that were told missing, and did not come."""
        self._newest: int | None = None
        self._short: int | None = None
        """The last step that is taken without all of its bytes."""
        self._ending = False
        self._files = ExitStack()
        self._losses: Losses | None = None
        self._silence, self._asked = Silence(), False
        self._frames: Counter[str] = Counter()
        """That found no slot, by counter."""
        self._read: dict[str, int] = {}
        self._life = 1

    def begin(self) -> None:
        self._write(Event(kind=Kind.START, why=f"process {os.getpid()}"))
        self._beat()

    def end(self) -> None:
        """Its stages are being told to leave."""
        self._ending = True
        self._beat()

    def stop(self) -> None:
        """Its stages have left."""
        with suppress(OSError):
            self._write(Event(kind=Kind.STOP))
        self._ending = True
        self._beat()
        self._losses = None
        self._files.close()

    def heard(self, message: Message) -> None:
        if isinstance(message, Hello) and message.stage == Links.EVENTS:
            return  # the supervisor's own: `begin` told it
        event = event_of(message, job=self._job, now_ns=time.time_ns())
        self._write(event, msgspec.to_builtins(message))
        if isinstance(message, StepLost):
            self._steps_lost += not self._ending
            self._lost = message.step
        elif isinstance(message, StepArrived):
            self._silence.whole(message.time_ns)
        elif isinstance(message, StepShort):
            self._short = message.step
        elif isinstance(message, StepApplied):
            self._took(message.step)

    def _took(self, step: int) -> None:
        if step >= (self._lost or sys.maxsize):
            why = f"the replica goes on behind step {self._lost}, which was lost"
            self._write(Event(kind=Kind.HEAL, step=step, what=STEP, why=why))
            self._lost = None
        self._taken = step
        if (count := self._missing[step]) and step != self._short:
            self._write(Event(kind=Kind.HEAL, step=step, what=PACKETS, count=count, why=WHOLE))
        self._missing = Counter({of: n for of, n in self._missing.items() if of > step and n > 0})

    def restarted(self, stage: str, why: str, code: int | None = None) -> None:
        self._restarts[stage] += 1
        more = {"event": "restart"} | ({} if code is None else {"exit_code": code})
        self._write(Event(kind=Kind.RESTART, stage=stage, why=why), more)

    def turn(self, rings: Sequence[Ring]) -> None:
        """Called in every turn of the supervisor's loop: does something every LOOK_S."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        if self._job == 1:  # what found no slot is of no job that is known
            self._look_at_frames(rings)
        self._look_at_files()  # first: a later life counts its steps anew
        self._look_at_packets(len(rings))
        self._look_for_silence(rings)
        self._beat()

    def _look_at_frames(self, rings: Sequence[Ring]) -> None:
        """Each frame is told once: the counters only grow."""
        captured = [ring.counters()["capture"] for ring in rings]
        lost = Counter({name: sum(one[name] for one in captured) for name in LOSSES})
        new = lost - self._frames
        self._frames |= lost
        if new:
            each = ", ".join(f"{name.removesuffix('_frames')} {n:,}" for name, n in new.items())
            why = f"frames reached this machine and found no slot: {each}"
            self._write(Event(kind=Kind.LOSS, what=FRAMES, count=new.total(), why=why))

    def _look_for_silence(self, rings: Sequence[Ring]) -> None:
        self._asked = self._run.learned_job.exists()
        self._asked &= any(ring.source_end is None for ring in rings)
        turn, own = self._silence.look(rings, counts=self._asked), self._silence
        if turn is Turn.BEGAN:
            self._write(Event(kind=Kind.SILENT, seconds=own.lasted_s, why=SILENT))
        elif turn is Turn.ENDED and self._asked:
            self._write(Event(kind=Kind.ARRIVES, seconds=own.lasted_s, why=ARRIVES))

    def _look_at_packets(self, rings: int) -> None:
        """What stays missing from one look to the next; what came in between was only late."""
        try:
            if self._losses is None:
                self._losses = opened(self._run, rings, self._files)
            change = self._losses.look()
        except (RingError, OSError):  # not there yet
            return
        for iteration, count in change.lost.items():
            why = "sequence numbers show them, and no mirror brought them"
            self._packets(Kind.LOSS, iteration, count, why)
        for iteration, count in change.healed.items():
            self._late += count
            self._packets(Kind.HEAL, iteration, count, "they came after all")
        newest = self._losses.newest() if self._missing else None
        self._newest = None if newest is None else self._step_of(newest)

    def _packets(self, kind: Kind, iteration: int | None, count: int, why: str) -> None:
        """Those of a step that is taken whole lacked it nothing, as those that come doubtful."""
        if not count:
            return
        step = None if iteration is None else self._step_of(iteration)
        told = Event(kind=kind, step=step, what=PACKETS, count=count, why=why)
        self._write(told)
        if step is None:
            return
        if step > self._taken:
            self._missing[step] += count if kind is Kind.LOSS else -count
            self._missing = +self._missing
        elif kind is Kind.LOSS and step != self._short:
            self._write(msgspec.structs.replace(told, kind=Kind.HEAL, why=WHOLE))

    def _step_of(self, iteration: int) -> int:
        return incarnation_of(self._run).step_within(iteration, self._each)

    def _look_at_files(self) -> None:
        """What other processes write, also while they are no stages: audits, files of the
        trainer's, later lives of the job."""
        with suppress(OSError, msgspec.MsgspecError):
            for line in self._new_lines("audits"):
                audit = msgspec.json.decode(line, type=AuditLine)
                why = audit.file if audit.passed else f"{audit.file}: {audit.first_difference}"
                told = Event(kind=Kind.AUDIT, step=audit.step, passed=audit.passed, why=why)
                self._write(told)
            for line in self._new_lines("anchors"):
                anchor = msgspec.json.decode(line, type=AnchorLine)
                why, passed = anchor.refused or anchor.file, not anchor.refused
                self._write(Event(kind=Kind.ANCHOR, step=anchor.step, passed=passed, why=why))
            life = incarnation_of(self._run)
            if life.number > self._life:
                why = f"life {life.number} of the job"
                self._write(Event(kind=Kind.HANDOVER, step=life.step, why=why))
                self._taken, self._missing = life.step or 0, Counter()
            self._life = life.number

    def _new_lines(self, name: str) -> list[bytes]:
        path = getattr(self._run, name)
        if not path.exists():
            return []
        content, at = path.read_bytes(), self._read.get(name, 0)
        whole = content[: content.rfind(b"\n") + 1]
        self._read[name] = len(whole)
        return whole[at:].splitlines() if len(whole) > at else []

    def _write(self, event: Event, more: dict[str, Any] | None = None) -> None:
        time_ns = event.time_ns or time.time_ns()
        own = msgspec.structs.replace(event, time_ns=time_ns, job=self._job)
        self._counts[own.kind] += 1
        append_line(self._run.events, line_of(own, more or {}), EVENTS_BYTES)

    def _beat(self) -> None:
        beat = Beat(
            pid=os.getpid(),
            started_ns=self._started_ns,
            beat_ns=time.monotonic_ns(),
            ending=self._ending,
            events=dict(self._counts),
            restarts=dict(self._restarts),
            steps_lost=self._steps_lost,
            packets_came_late=self._late,
            frame_ns=tuple(self._silence.frame_ns),
            came_ns=self._silence.came_ns if self._asked else None,
            silence_limit_s=self._silence.limit_s,
            step_s=self._silence.step_s,
            newest_step=self._newest,
            unplaced_s=self._silence.unplaced_s,
        )
        write_beat(self._run.beat, beat)
