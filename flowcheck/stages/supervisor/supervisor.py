"""The supervisor: starts the stages, restarts them when they die, stops them in order of data
flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flowcheck._core import lib
from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.chain_processes import (
    JOB_SAYS,
    MIXED_VERSIONS,
    STAGE_GAVE_UP,
    STAGE_SAYS,
)
from flowcheck.findings.catalog.lost_steps import STEP_LOST
from flowcheck.findings.finding import Finding
from flowcheck.messages import Fault, Hello, Message
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.chain_events.event_recorder import EventRecorder
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.bounded_log_files import LogTrimmer
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_names
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.stages.supervisor.checkpoint_helper import CheckpointHelper
from flowcheck.stages.supervisor.stage_process import StageProcess, all_up
from flowcheck.stages.zmq_sockets import StageSockets

GRACE_S = 4.0
"""Seconds between the request to leave and SIGKILL; the whole end takes at most 5 s. A choice:
longer delays each stop, shorter kills a stage that would have ended its turn."""
OPERATOR_ERROR = 2
"""Exit code of a stage whose Fault the operator can mend; restarting would not."""


class Supervisor:
    """A service like the others: its inbox is where every stage reports."""

    name = StageSockets.EVENTS

    def __init__(
        self,
        run: RunDir,
        config: JobConfig,
        *,
        watch: Callable[[ChainProgress], None] | None = None,
        hurried: Callable[[], bool] = lambda: False,
        other_jobs: Sequence[RunDir] = (),
        serves_checkpoints: bool = False,
    ) -> None:
        """watch: called every turn; hurried: whether stopping must not wait for anything;
        other_jobs: run directories of further jobs on the same ports; serves_checkpoints: the
        updater's process may write checkpoints after its stage has ended, until the caller closes
        `checkpoint_helper`."""
        self.run, self.config = run, config
        self.other_jobs = [Supervisor(own, own.settings(), hurried=hurried) for own in other_jobs]
        self.progress = ChainProgress()
        self.fault: Fault | None = None
        self._watch, self._hurried = watch, hurried
        self._children = [StageProcess(name) for name in stage_names(config, run.reader)]
        for child in self._children:
            child.serves_checkpoints = serves_checkpoints and child.spec.serves_checkpoints
        self._rings: list[FrameRing] = []
        self._healthy = True
        self._logs = LogTrimmer([run.log(child.stage) for child in self._children])
        self._ending = False
        self._passed_on, self._lost_told = 0, False
        self._recorder = EventRecorder(run, config, self.progress.notes.append)

    def start(self, links: StageSockets) -> None:
        self._links = links
        self._record(self._recorder.begin)
        paths = [self.run.ring(number) for number in range(len(self.config.rings))]
        self._rings = [FrameRing.open(path, reader=self.run.reader) for path in paths]
        self._spawn()
        for own in self.other_jobs:
            own.start(StageSockets(own.run.sockets, StageSockets.EVENTS))

    def _spawn(self) -> None:
        for child in self._children:
            if child.process is None and child.may_start(self._everyone()):
                child.spawn(self.run)

    def all_up(self) -> bool:
        """Whether every stage works that the chain needs."""
        return all_up(self._everyone())

    def _everyone(self) -> list[StageProcess]:
        return [child for one in (self, *self.other_jobs) for child in one._children]

    def work(self) -> int:
        try:
            if self.other_jobs:
                self._hear()
            for child in self._children:
                self._look_after(child)
            self._logs.look()
            self._record(self._recorder.poll, self._rings)
            for own in self.other_jobs:
                own.work()
                self._pass_on(own)
            if self._watch is not None:
                self._watch(self.progress)
        except StateError:
            self._healthy = False
            raise
        self._spawn()
        return 0

    def _pass_on(self, own: Supervisor) -> None:
        """Notes of a further job's stages, for whoever watches this chain."""
        notes, own._passed_on = own.progress.notes.since(own._passed_on), own.progress.notes.count
        if own.progress.lost is not None and not own._lost_told:
            own._lost_told = True
            lost = own.progress.lost
            notes.append(STEP_LOST(step=lost.step, reason=lost.why))
        for note in notes:
            self.progress.notes.append(JOB_SAYS(job=own.run.root.name, what=note))

    def _look_after(self, child: StageProcess) -> None:
        if child.process is None:
            return
        if child.spec.optional:
            if (why := child.restart_if_dead(self.run)) is not None:
                self.progress.notes.append(why)
                self._record(self._recorder.restarted, child.stage, why)
            return
        code = child.process.poll()
        if code is None:
            child.check_start(self.run)
        if code is None or (code == 0 and self._has_ended(child)):
            return
        if code == OPERATOR_ERROR:
            raise StateError(self._fault_of(child))
        self._restart(child, code)

    def _has_ended(self, child: StageProcess) -> bool:
        """Whether nothing is left that it could bring."""
        return child.spec.brings_frames and child.number in self.progress.ended_sources

    def _fault_of(self, child: StageProcess) -> Finding:
        for message in self._links.inbox.drain(limit=64, wait_ms=200):
            self.on_message(message)
        if self.fault is not None and self.fault.stage == child.stage:
            return STAGE_SAYS(stage=child.stage, what=self.fault.finding)
        return STAGE_GAVE_UP(stage=child.stage, log=child.last_log_line(self.run))

    def _restart(self, child: StageProcess, code: int) -> None:
        why = child.note_death(self.run, code, self._reached(child))
        child.spawn(self.run)  # first: one that cannot be started again was not
        self.progress.note_restart(why)
        self._record(self._recorder.restarted, child.stage, why, code)

    def _reached(self, child: StageProcess) -> int:
        """Slots, or steps, that a stage has finished; 0 without its files, or a position."""
        match child.spec.position:
            case Position.NONE:
                return 0
            case Position.STEP:
                return self._applied()
            case position:
                return sum(getattr(ring, position) for ring in self._rings)

    def on_message(self, message: Message) -> None:
        assert self._links.broadcast is not None
        self._links.broadcast.send(message)
        self._record(self._recorder.on_message, message)
        if isinstance(message, Hello):
            self._greet(message)
        elif isinstance(message, Fault):
            self.fault = message
        sources = [source for source, _ in self.config.rings]
        self.progress.count_message(message, ending=self._ending, sources=sources)

    def _greet(self, hello: Hello) -> None:
        if hello.layout_version != lib.FC_LAYOUT_VERSION:
            self._healthy = False
            version, own = hello.layout_version, lib.FC_LAYOUT_VERSION
            raise StateError(MIXED_VERSIONS(stage=hello.stage, version=version, own=own))
        for child in self._children:
            child.greeted |= child.stage == hello.stage

    def _record(self, write: Callable[..., None], *told: object) -> None:
        try:
            write(*told)
        except OSError:
            if self._healthy and not self._ending:  # an end goes on without its records
                self._healthy = False
                raise

    def drained(self) -> bool:
        """The stream was extracted to its end and the replica applied every whole step of it.

        The source of gradients tells, not a message: an updater may be killed before it could send
        one.
        """
        optimizer, every = self.config.optimizer, [self, *self.other_jobs]
        if not all(one._have_come_up() for one in every):
            return False  # what has not come up may yet refuse
        if not self.config.source:  # gradients come from logs, to which more may be added
            progress = source_progress(self.run)
            return progress is None or not progress.next_is_complete
        whole = [one.progress.complete_steps for one in every]
        if optimizer is not None and optimizer.clip_together and None not in whole:
            whole = [min(steps for steps in whole if steps is not None)] * len(whole)
        return all(n is not None and o._applied() >= n for o, n in zip(every, whole, strict=True))

    def _have_come_up(self) -> bool:
        """Its needed stages, be it that one died since."""
        needed = [c for c in self._children if c.spec.says_hello and not c.spec.optional]
        return all(child.stage in self.progress.up for child in needed)

    def _applied(self) -> int:
        progress = source_progress(self.run)
        return 0 if progress is None else progress.applied_iteration

    def stop(self) -> None:
        """First what brings frames, so that nothing new comes; then along the flow of data, each
        after what it has in hand. Done within GRACE_S and a little, at once when hurried."""
        until_s = time.monotonic() + GRACE_S
        self._recorder.end(in_order=self._healthy)
        if self._healthy:
            self._drain(until_s - GRACE_S / 2)
        everyone = [c for one in (self, *self.other_jobs) for c in reversed(one._children)]
        running = [c for c in everyone if c.ask_to_leave()]
        self._wait(lambda: all(c.has_left() for c in running), until_s)
        for child in running:
            child.end(self.run)
        self._close()
        for own in self.other_jobs:
            own._close()
            if own._rings:
                own._links.close()

    @property
    def checkpoint_helper(self) -> CheckpointHelper | None:
        """The process that writes checkpoints once the chain has stopped."""
        return next(
            (c.checkpoint_helper for c in self._children if c.checkpoint_helper is not None), None
        )

    def _close(self) -> None:
        self._recorder.stop()
        for ring in self._rings:
            ring.close()

    def _drain(self, until_s: float) -> None:
        self._hear()
        self._ending = True
        for own in self.other_jobs:
            own._ending = True
        bringing = [c.process for c in self._children if c.spec.brings_frames and c.process]
        for process in bringing:
            process.terminate()
        if not self._wait(lambda: all(p.poll() is not None for p in bringing), until_s):
            return
        for ring in self._rings:
            if ring.source_end is None:
                ring.end_source()  # its one writer is gone, and we were the ones to end it
        self._wait(self.drained, until_s)

    def _wait(self, done: Callable[[], bool], until_s: float) -> bool:
        """Until `done`, the time, or a second signal; whether it was `done`."""
        while not done():
            if self._hurried() or time.monotonic() >= until_s:
                return False
            self._hear(wait_ms=20)
        return True

    def _hear(self, wait_ms: int = 0) -> None:
        for message in self._links.inbox.drain(limit=64, wait_ms=wait_ms):
            self.on_message(message)
        for own in self.other_jobs:
            if own._rings:
                own._hear()
