"""Records events of a chain as they happen, from the messages that the supervisor receives and from
counters."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.base_checkpoints import BASE_OF_FOLDER
from flowcheck.findings.catalog.chain_processes import (
    AUDIT_DIFFERS,
    INCARNATION,
    JOB_ARRIVES,
    JOB_SILENT,
    LINK_DOWN,
    LINK_UP,
    STARTED_BY,
)
from flowcheck.findings.catalog.file_audits import FILE_SKIPPED, THERE_BEFORE
from flowcheck.findings.catalog.lost_steps import FRAMES_DROPPED, FRAMES_OF_COUNTER
from flowcheck.findings.finding import Finding
from flowcheck.messages import (
    AuditRecord,
    Hello,
    JobLearned,
    Message,
    StepApplied,
    StepArrived,
    StepLost,
    StepShort,
    Unwritten,
)
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import (
    FLOW_TABLE_FULL,
    LOSS_COUNTERS,
    flow_table_full_finding,
)
from flowcheck.stages.chain_events.event_log import (
    ELEMENTS,
    FRAMES,
    PACKETS,
    Event,
    EventKind,
    EventLogWriter,
    event_of,
    line_of,
    message_fields,
)
from flowcheck.stages.chain_events.heartbeat import Heartbeat, write_beat
from flowcheck.stages.chain_events.link_state import LinkMonitor
from flowcheck.stages.chain_events.packet_loss_events import PacketLossEvents
from flowcheck.stages.chain_events.silence_detector import SilenceChange, SilenceDetector
from flowcheck.stages.job_state.anchor_log import parse_anchor_record
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.heal_log import HealRecord
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.training_facts import is_training_known
from flowcheck.stages.run_directory.bounded_log_files import is_complete_line
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at
from flowcheck.stages.zmq_sockets import StageSockets

LOOK_S = 0.5
"""Seconds between two looks at counters and files, and two heartbeats. A choice: shorter costs the
supervisor's processor time, longer tells later."""


class EventRecorder:
    """The only writer of a run's events.jsonl and beat.json. A line that cannot be written raises
    OSError, unless the file system is full. Everything else here may fail, and is tried again."""

    def __init__(
        self, run: RunDir, config: JobConfig, say: Callable[[Finding], None] = lambda _: None
    ) -> None:
        """say: tells the operator where an event cannot be written."""
        self._run, self._job = run, run.reader + 1
        self._room = EventLogWriter(run.events, say)
        self._each = config.optimizer.synced_backwards if config.optimizer is not None else 1
        self._started_ns, self._looked_s = time.time_ns(), -LOOK_S
        self._counts: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._steps_lost = 0
        self._digest = ""
        self._last = config.last_step
        self._lacking = PacketLossEvents(run, self._each, self._write)
        self._carrier = LinkMonitor(config.source)
        self._ending = self._in_order = False
        self._silence, self._asked = SilenceDetector(), False
        self._frames: Counter[str] = Counter()
        """That found no slot, by counter."""
        self._unfollowed = 0
        """Packets that found no record in the table of flows."""
        self._read: dict[str, int] = {}
        self._life = 1

    def begin(self) -> None:
        self._write(Event(kind=EventKind.START, why=STARTED_BY(os.getpid())))
        self._beat()

    def end(self, *, in_order: bool) -> None:
        """The stages are being asked to end. in_order: somebody asked for that, or all sources
        ended."""
        self._ending, self._in_order = True, in_order
        self._beat()

    def stop(self) -> None:
        """The stages have ended."""
        with suppress(OSError):
            self._write(Event(kind=EventKind.STOP))
        self._ending = True
        self._beat()
        self._lacking.close()

    def on_message(self, message: Message) -> None:
        if isinstance(message, Hello) and message.stage == StageSockets.EVENTS:
            return  # the supervisor's own: `begin` told it
        if isinstance(message, Unwritten):
            self._lack(message)
            return
        if isinstance(message, JobLearned | StepArrived | StepApplied):
            # A later incarnation is reported before its steps, which it counts anew.
            self._look_at_files()
        event = event_of(message, job=self._job, now_ns=time.time_ns())
        self._write(event, message_fields(message))
        if isinstance(message, StepLost):
            self._steps_lost += not self._ending
            self._lacking.step_lost(message.step)
        elif isinstance(message, JobLearned):
            self._silence.learned()
        elif isinstance(message, StepArrived):
            self._silence.step_completed(message.time_ns)
        elif isinstance(message, StepShort):
            self._lacking.step_incomplete(message.step)
        elif isinstance(message, StepApplied):
            self._lacking.step_applied(message.step)
            self._digest = message.digest

    def _lack(self, message: Unwritten) -> None:
        if (ended := self._room.count_unwritten(message)) is not None:
            self._write(ended)

    def restarted(self, stage: str, why: Finding, code: int | None = None) -> None:
        self._restarts[stage] += 1
        more = {} if code is None else {"exit_code": code}
        self._write(Event(kind=EventKind.RESTART, stage=stage, why=why), more)

    def poll(self, rings: Sequence[FrameRing]) -> None:
        """To be called in every turn of the supervisor's loop; works every LOOK_S."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        self._counts.update([EventKind.NOTE] * self._room.note_room_again())
        if self._job == 1:  # what found no slot is of no job that is known
            self._look_at_frames(rings)
            self._look_at_tables(rings)
            self._look_at_links()
        self._look_at_files()  # first: a later life counts its steps anew
        self._lacking.check(len(rings))
        self._look_for_silence(rings)
        self._beat()

    def _look_at_frames(self, rings: Sequence[FrameRing]) -> None:
        """Reports frames that found no slot, each once: the counters only grow."""
        captured = [ring.counters()["capture"] for ring in rings]
        lost = Counter({name: sum(one[name] for one in captured) for name in LOSS_COUNTERS})
        new = lost - self._frames
        self._frames |= lost
        if new:
            each = [
                FRAMES_OF_COUNTER(counter=name.removesuffix("_frames"), frames=n)
                for name, n in new.items()
            ]
            why = FRAMES_DROPPED(each)
            self._write(Event(kind=EventKind.LOSS, what=FRAMES, count=new.total(), why=why))

    def _look_at_tables(self, rings: Sequence[FrameRing]) -> None:
        """Reports a full table at once, then each time the number of packets that found no place
        has doubled."""
        packets = sum(ring.counters()["parse"][FLOW_TABLE_FULL] for ring in rings)
        if packets > 2 * self._unfollowed:
            new, self._unfollowed = packets - self._unfollowed, packets
            why = flow_table_full_finding(packets)
            self._write(Event(kind=EventKind.LOSS, what=PACKETS, count=new, why=why))

    def _look_at_links(self) -> None:
        for source, interface, lasted_s in self._carrier.check():
            kind, entry = EventKind.LINK_UP, LINK_UP
            if lasted_s is None:
                kind, entry = EventKind.LINK_DOWN, LINK_DOWN
            stage = stage_at(Position.HEAD).instance(source)
            self._write(
                Event(kind=kind, stage=stage, seconds=lasted_s or 0.0, why=entry(interface))
            )

    def _look_for_silence(self, rings: Sequence[FrameRing]) -> None:
        self._asked = is_training_known(self._run)
        self._asked &= any(ring.source_end is None for ring in rings)
        self._asked &= not (self._last and self._lacking.applied >= self._last)  # else it is over
        own, unread = self._silence, self._run.unread.exists()
        turn = own.check(rings, counts=self._asked, unread=unread)
        if turn is SilenceChange.BEGAN:
            self._write(Event(kind=EventKind.SILENT, seconds=own.lasted_s, why=JOB_SILENT()))
        elif turn is SilenceChange.ENDED and self._asked:
            self._write(Event(kind=EventKind.ARRIVES, seconds=own.lasted_s, why=JOB_ARRIVES()))

    def _look_at_files(self) -> None:
        """Reports what other processes write, whether or not they are stages: audits, trainer
        checkpoints, later incarnations of the job."""
        with suppress(OSError, StateError, *DECODE_ERRORS):
            for line in self._new_lines("audits"):
                audit = msgspec.json.decode(line, type=AuditRecord)
                if audit.base and not audit.tensors:
                    continue  # the anchors tell it
                why = None
                if not audit.passed:
                    first = audit.evidence[0] if audit.evidence else audit.first_difference
                    why = AUDIT_DIFFERS(file=audit.file, difference=first)
                self._write(
                    Event(
                        kind=EventKind.AUDIT,
                        step=audit.step,
                        passed=audit.passed,
                        path=audit.file,
                        why=why,
                    )
                )
            for line in self._new_lines("audit_files"):
                self._write_file(msgspec.json.decode(line, type=AuditedFile))
            for line in self._new_lines("anchors"):
                anchor = parse_anchor_record(line)
                self._write(
                    Event(
                        kind=EventKind.ANCHOR,
                        step=anchor.step,
                        passed=anchor.refused is None,
                        path=anchor.file,
                        why=anchor.refused,
                    )
                )
            for line in self._new_lines("heals"):
                self._write_heal(msgspec.json.decode(line, type=HealRecord))
            life = incarnation_of(self._run)
            if life.number > self._life:
                why = INCARNATION(life.number)
                self._write(Event(kind=EventKind.HANDOVER, step=life.step, why=why))
                self._lacking.job_handed_over(life.step)
                self._silence.learned()
            self._life = life.number

    def _write_heal(self, heal: HealRecord) -> None:
        """Reports elements that are exact again; why others are not is told by the updater."""
        if heal.refused is None:
            self._write(
                Event(
                    kind=EventKind.HEAL,
                    step=heal.at,
                    what=ELEMENTS,
                    count=heal.elements,
                    path=heal.source,
                    bytes=heal.asked_bytes,
                )
            )

    def _write_file(self, file: AuditedFile) -> None:
        """Reports a watched file that no audit tells of, unless it was there before the watch."""
        if file.outcome is FileOutcome.BASE and file.why:
            why = BASE_OF_FOLDER(file=file.file, step=file.step, how=file.why[0])
            note = Event(kind=EventKind.NOTE, step=file.step, path=file.file, why=why)
            self._write(note)
        told = file.outcome in (FileOutcome.NOT_COMPARED, FileOutcome.STALE)
        before = any(one.is_any_of(THERE_BEFORE) for one in file.why)
        if told and not before and file.why:
            why = FILE_SKIPPED(file=file.file, why=file.why[0])
            self._write(
                Event(
                    kind=EventKind.AUDIT_SKIPPED,
                    step=file.step,
                    passed=False,
                    path=file.file,
                    why=why,
                )
            )

    def _new_lines(self, name: str) -> list[bytes]:
        path, at = getattr(self._run, name), self._read.get(name, 0)
        if not path.exists() or path.stat().st_size == at:
            return []
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        self._read[name] = len(whole)
        return [line for line in whole[at:].split(b"\n") if is_complete_line(line)]

    def _write(self, event: Event, more: dict[str, Any] | None = None) -> None:
        time_ns = event.time_ns or time.time_ns()
        own = msgspec.structs.replace(event, time_ns=time_ns, job=self._job)
        self._counts[own.kind] += 1
        self._counts.update([EventKind.NOTE] * self._room.append(line_of(own, more or {})))

    def _beat(self) -> None:
        beat = Heartbeat(
            pid=os.getpid(),
            started_ns=self._started_ns,
            beat_ns=time.monotonic_ns(),
            ending=self._ending,
            in_order=self._in_order,
            events=dict(self._counts),
            restarts=dict(self._restarts),
            steps_lost=self._steps_lost,
            packets_came_late=self._lacking.late,
            frame_ns=tuple(self._silence.frame_ns),
            came_ns=self._silence.last_packet_ns if self._asked else None,
            silence_limit_s=self._silence.limit_s,
            step_s=self._silence.step_s,
            newest_step=self._lacking.newest,
            link_down_ns=tuple(self._carrier.dark_ns),
            unplaced_s=self._silence.unplaced_s,
            unwritten_lines=self._room.lines,
            full=self._room.full,
            applied=self._lacking.applied,
            digest=self._digest,
        )
        write_beat(self._run.heartbeat_file, beat)
