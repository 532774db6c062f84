"""Reads a chain's state from its run directory and shared memory.

An error in reading a part becomes a problem listed in the state: the chain may begin, end or be
killed while it is read.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from flowcheck.config import JobConfig, WatchConfig
from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.catalog.chain_health import (
    NO_CHAIN,
    NO_JOB,
    NOT_READABLE,
    PROBLEMS,
    READ_FAILED,
)
from flowcheck.findings.catalog.run_directories import BEING_STARTED
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import (
    EVENTS_MAX,
    ChainEnd,
    ChainState,
    Health,
    HealthWord,
    JobState,
    RingState,
    StageState,
)
from flowcheck.ops.watch.state.checkpoint_status import with_final_checkpoint
from flowcheck.ops.watch.state.health_rules import (
    HEALTHY,
    chain_health,
    job_health,
    worst_health,
)
from flowcheck.ops.watch.state.job_reader import JobReader
from flowcheck.ops.watch.state.replay_options_record import reads_captures, repeating_command
from flowcheck.ops.watch.state.ring_reader import read_ring
from flowcheck.ops.watch.state.shutdown_record import end_reason, read_end
from flowcheck.ops.watch.state.stage_processes import StageProcesses
from flowcheck.ops.watch.state.taint_of_models import PartReader, read_models
from flowcheck.ops.watch.state.traffic_silence import with_arrival, with_frame_ages
from flowcheck.replica.model_taint import ModelTaint
from flowcheck.stages.chain_events.event_log import EventKind
from flowcheck.stages.chain_events.heartbeat import Heartbeat, read_beat
from flowcheck.stages.job_state.given_to_shards import unfinished
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs, job_names
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.start_notice import is_being_started
from flowcheck.stages.stage_table import stage_named
from flowcheck.step_numbers import START

CACHED_S = 0.25
"""Seconds for which a state is reused. A choice: a longer time shows older facts, a shorter one
reads more often if several clients ask."""
Read = TypeVar("Read")
READ_FAILURES = (FlowCheckError, OSError, *DECODE_ERRORS, ValueError, KeyError, AssertionError)
"""Exceptions of reading a file or memory that is incomplete, missing, or of another version."""


class StatePart(StrEnum):
    """Parts of a chain's state that are read independently: an error in one does not affect the
    others."""

    SETTINGS = "settings"
    END_RECORD = "end_record"
    RING = "ring"
    PORT_PROCESSES = "port_processes"
    JOB_PROCESSES = "job_processes"
    JOBS = "jobs"
    NAMES = "names"
    JOB = "job"
    MODELS = "models"
    SHARDS = "shards"


PART_NAMES = {
    StatePart.SETTINGS: "settings",
    StatePart.END_RECORD: "the record of its end",
    StatePart.RING: "ring {}",
    StatePart.PORT_PROCESSES: "processes of the ports",
    StatePart.JOB_PROCESSES: "processes of {}",
    StatePart.JOBS: "jobs",
    StatePart.NAMES: "names",
    StatePart.JOB: "{}",
    StatePart.MODELS: "what is tainted",
    StatePart.SHARDS: "what is given to all shards",
}
"""Names of the parts for people."""


class StateReader:
    """Reads the state of one run directory. Thread-safe. For the run directory of a further job
    (inside the chain's own) it reads that job, with the chain's capture."""

    def __init__(self, root: Path, cached_s: float = CACHED_S) -> None:
        own = RunDir(root)
        self._run, self._cached_s = own.port, cached_s
        self._only = own.reader + 1 if own.port is not own else None
        """The job that is asked for, by its number; None: all of the chain's."""
        self._lock = threading.Lock()
        self._state: ChainState | None = None
        self._read_s = 0.0
        self._jobs: dict[Path, JobReader] = {}
        self._parts: dict[Path, PartReader] = {}
        self._processes = StageProcesses()
        self._problems: list[Finding] = []

    def state(self) -> ChainState:
        """The chain's state; at most `cached_s` seconds old, plus the time of one reading."""
        with self._lock:
            if self._state is None or time.monotonic() - self._read_s >= self._cached_s:
                self._state = self._read()
                self._read_s = time.monotonic()
            return self._state

    def _read(self) -> ChainState:
        self._problems = []
        run = self._run
        if not run.config.exists():
            starts = is_being_started(run.root)
            return self._absent(None, BEING_STARTED(run=run.root) if starts else NO_CHAIN())
        config = self._try(StatePart.SETTINGS, run.settings)
        beat = read_beat(run.heartbeat_file)
        if config is None:
            return self._absent(beat, self._problems[-1])
        end = self._try(StatePart.END_RECORD, lambda: read_end(run))
        if not (run.has_shared_memory and run.memory.exists()):
            return self._over(beat, end)
        return self._living(config, beat, end)

    def _absent(self, beat: Heartbeat | None, why: Finding) -> ChainState:
        self._processes = StageProcesses()
        return self._made(Health(word=HealthWord.STALE, reason=why), beat, (), (), ())

    def _over(self, beat: Heartbeat | None, end: ChainEnd | None) -> ChainState:
        """The state from the files of the run directory, of a chain whose shared memory is gone."""
        self._processes = StageProcesses()
        jobs = [job for job in map(self._job, self._readers()) if job is not None]
        events = [event for one in self._jobs.values() for event in one.history.recent]
        stops = [event.time_ns for event in events if event.kind is EventKind.STOP]
        why = end_reason(self._run, end, max(stops, default=None))
        health = _end_health(end, why)
        told = tuple(
            msgspec.structs.replace(with_final_checkpoint(job, end), health=health, arrival=None)
            for job in jobs
        )
        rings = end.rings if end is not None else ()
        return self._made(health, beat, (), rings, told, end, self._models())

    def _living(
        self, config: JobConfig, beat: Heartbeat | None, end: ChainEnd | None
    ) -> ChainState:
        """The state of a chain whose shared memory exists. end: of a chain that ended and could not
        free it."""
        run = self._run
        read = [
            self._try(StatePart.RING, partial(read_ring, run, config, n), str(n))
            for n in range(len(config.rings))
        ]
        found = [ring for of in read if of is not None for ring in of[:1]]
        rings = with_frame_ages(found, config, beat)
        captured = [found[1] if found is not None else {} for found in read]
        jobs = [job for job in map(self._job, self._readers()) if job is not None]
        stages = [stage for job in jobs for stage in self._stages(job, rings, captured)]
        if self._only is not None:
            read_first = partial(self._processes.read, self._run, rings, captured, START)
            first = self._try(StatePart.PORT_PROCESSES, read_first) or []
            stages = [*(stage for stage in first if stage_named(stage.name).spec.shared), *stages]
        ended = bool(captured) and all(one.get("ended") for one in captured)
        health = chain_health(
            stages,
            self._beat_age_s(beat),
            ending=beat is not None and beat.ending,
            stepped=any(job.step for job in jobs),
            in_memory=any(one.run.replica.exists() for one in self._readers()),
            replay=repeating_command(run.root) if reads_captures(run.root) else None,
        )
        if end is not None:
            health = _end_health(end, end_reason(self._run, end))
        told = tuple(
            msgspec.structs.replace(
                job, health=health or job_health(job, stages, rings, sources_ended=ended)
            )
            for job in jobs
        )
        models = self._models()
        if health is None and (self._problems or not told):
            why = PROBLEMS(self._problems) if self._problems else NO_JOB()
            health = Health(word=HealthWord.STALE, reason=why)
        worst = health or worst_health(told, models)
        if worst.word in HEALTHY and (given := self._given(config)) is not None:
            worst = Health(word=HealthWord.STALE, reason=given)
        return self._made(worst, beat, stages, rings, told, end, models)

    def _given(self, config: JobConfig) -> Finding | None:
        """That not all shards of a model are known to have a checkpoint which was given to all."""
        runs = [one.run for one in self._readers()]
        if not config.all_shards or len(runs) < 2:
            return None
        return self._try(StatePart.SHARDS, partial(unfinished, runs))

    def _models(self) -> tuple[ModelTaint, ...]:
        parts = [self._parts[one.run.root] for one in self._readers()]
        return self._try(StatePart.MODELS, partial(read_models, parts)) or ()

    def _made(
        self,
        health: Health,
        beat: Heartbeat | None,
        stages: Sequence[StageState],
        rings: Sequence[RingState],
        jobs: Sequence[JobState],
        end: ChainEnd | None = None,
        models: tuple[ModelTaint, ...] = (),
    ) -> ChainState:
        beats = [b for b in (read_beat(one.run.heartbeat_file) for one in self._jobs.values()) if b]
        counts: Counter[str] = Counter()
        for own in beats:
            counts.update(own.events)
        recent = [one.history.recent for one in self._jobs.values()]
        # Each in the order it was written: a clock that is set back moves none.
        events = tuple(heapq.merge(*recent, key=lambda event: event.time_ns))
        watch = self._watch()
        watched = watch.url if watch is not None and watch.port else None
        return ChainState(
            run=str(self._run.root),
            time_ns=time.time_ns(),
            health=health,
            started_ns=beat.started_ns if beat is not None else None,
            beat_age_s=self._beat_age_s(beat),
            ending=beat is not None and beat.ending,
            in_order=end.in_order if end is not None else beat is not None and beat.in_order,
            ended=end,
            watched=watched,
            watch_port_in_log=watch is not None and watched is None,
            stages=tuple(stages),
            rings=tuple(rings),
            jobs=tuple(jobs),
            models=models,
            event_counts=dict(counts),
            packets_came_late=beat.packets_came_late if beat is not None else 0,
            events=events[-EVENTS_MAX:],
            problems=(*self._problems, *(why for own in beats for why in own.full if not end)),
            unwritten_lines=sum(own.unwritten_lines for own in beats),
        )

    def _watch(self) -> WatchConfig | None:
        if not self._run.config.exists():
            return None
        config = self._try(StatePart.SETTINGS, self._run.settings)
        return None if config is None else config.watch

    def _beat_age_s(self, beat: Heartbeat | None) -> float | None:
        return None if beat is None else round(beat.age_s, 3)

    def _readers(self) -> list[JobReader]:
        """A reader for each job, kept as long as the chain is the same."""
        runs = self._try(StatePart.JOBS, lambda: all_run_dirs(self._run)) or [self._run]
        named = self._try(StatePart.NAMES, lambda: job_names(self._run.root)) or ["job-1"]
        for number, (run, name) in enumerate(zip(runs, named, strict=False), 1):
            if self._only not in (None, number):
                continue
            if run.root not in self._jobs or self._jobs[run.root].name != name:
                self._jobs[run.root] = JobReader(run, number, name)
                self._parts[run.root] = PartReader(run, name)
        return [self._jobs[run.root] for run in runs if run.root in self._jobs]

    def _job(self, reader: JobReader) -> JobState | None:
        def read() -> JobState:
            config = reader.run.settings()
            each = config.optimizer.synced_backwards if config.optimizer is not None else 1
            beat = read_beat(reader.run.heartbeat_file)
            job = reader.read(config, each, beat.steps_lost if beat is not None else 0)
            return with_arrival(job, beat)

        return self._try(StatePart.JOB, read, reader.name)

    def _stages(
        self, job: JobState, rings: Sequence[RingState], captured: Sequence[Mapping[str, int]]
    ) -> list[StageState]:
        run = RunDir(Path(job.run))
        read = partial(self._processes.read, run, rings, captured, job.step or START)
        return self._try(StatePart.JOB_PROCESSES, read, job.name) or []

    def _try(self, part: StatePart, read: Callable[[], Read], name: str = "") -> Read | None:
        """name: of the ring or the job."""
        try:
            return read()
        except READ_FAILURES as error:
            told: object = error if str(error) else type(error).__name__
            if isinstance(error, PermissionError) and error.filename:
                told = NOT_READABLE(path=os.fsdecode(error.filename), error=error.strerror)
            what = PART_NAMES[part].format(name)
            self._problems.append(READ_FAILED(what=what, error=told, part=part, name=name))
            return None


def _end_health(end: ChainEnd | None, why: Finding) -> Health:
    """The health of a chain that is over. end: its record; None: there is none."""
    in_order = end is not None and end.in_order
    return Health(word=HealthWord.ENDED if in_order else HealthWord.STALE, reason=why)
