"""Reads the state of one job: replica step, lag, losses, audits, checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.base_checkpoints import (
    BASE_AWAITS_LATER,
    BASE_AWAITS_LOG,
    BASE_DELAYED,
    BASE_OF_FOLDER,
    BASE_TRIED,
    NO_FILE_FOR_BASE,
    NOT_THE_BASE,
    SEARCHED_IN_FOLDER,
)
from flowcheck.findings.catalog.chain_health import NOT_READ, OLDER_PARAMETER
from flowcheck.findings.catalog.replica_update_notes import ELEMENTS_HEALED
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state import checkpoint_status
from flowcheck.ops.watch.state.chain_state import (
    ANCHORS_MAX,
    DAMAGED_MAX,
    AnchorFile,
    Health,
    HealthWord,
    RingDiagram,
    StepState,
)
from flowcheck.ops.watch.state.chain_state import JobState as State
from flowcheck.ops.watch.state.jsonl_tail import JsonLinesTail
from flowcheck.ops.watch.state.step_history import StepHistory
from flowcheck.replica.step_journal.journal_figures import read_figures
from flowcheck.stages.job_learning.job_file_match import addresses_of
from flowcheck.stages.job_learning.learning_status import unlearned_reasons
from flowcheck.stages.job_state.anchor_log import read_anchor_records
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.audited_files import FileOutcome, last_lines, outcome_counts
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, incarnation_of
from flowcheck.stages.job_state.training_facts import known_training, training_file
from flowcheck.stages.replica_copies.copy_records import read_copies, read_copy
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.bounded_log_files import is_complete_line, last_complete_line
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Step
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.training_job.training_spec import TrainingFacts


@dataclass(frozen=True)
class Learned:
    """Facts of the learned training job, read once per version of its file."""

    stamp: tuple[int, int]
    job: TrainingFacts
    diagram: tuple[RingDiagram, ...]
    addresses: tuple[str, ...]


WAITS_FOR_BASE = BASE_AWAITS_LATER, BASE_AWAITS_LOG, BASE_DELAYED, BASE_TRIED
"""What the files of a watched folder wait for that may be a job's base."""
TAINTED_KEYS = b'"older":{"', b'"missing_elements":'
"""In a line of a step that lacks something."""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the last line of steps.jsonl."""

    step: Step
    digest: str = ""
    seconds: float = 0.0
    time_ns: int = 0
    missing_elements: int = 0
    tainted: dict[str, int] = {}
    taint: Finding | None = None
    older: dict[str, int] = {}


class JobReader:
    """Reads the state of the job in one run directory."""

    def __init__(self, run: RunDir, number: int, name: str) -> None:
        self.run, self.number, self.name = run, number, name
        self.history = StepHistory(run.events)
        self._steps = JsonLinesTail(run.steps)
        self._learned: Learned | None = None

    def read(self, config: JobConfig, backwards_per_step: int, steps_lost: int) -> State:
        """The job's state without its health, which depends on the whole chain.

        backwards_per_step: all-reduced backward passes per optimizer step.
        steps_lost: steps lost since the chain began.

        Raises the errors of reading its files and shared memory (READ_FAILURES in
        state_reader.py).
        """
        self.history.update()
        run, learned, life = self.run, self._known(config), incarnation_of(self.run)
        line, source = self._last_line(), _source(run, backwards_per_step)
        step = line.step if line is not None else None
        logged = _logged(run, config, life, learned)
        awaits = life.step is None or life.lacking is not None
        timeline, lag = self.history.timeline, source.waiting_steps
        if logged is not None:
            timeline = tuple(_waiting(one) for one in timeline)
            lag = max(lag, -(-logged[1] // backwards_per_step))
        lag_ms = self._lag_ms(step or START, timeline, waits=lag > 0)
        if (copied := read_copy(run)) is not None:  # its chain's steps arrive elsewhere
            lag, lag_ms = copied.lag_steps, copied.lag_s * 1e3
        lost = self.history.lost
        return State(
            number=self.number,
            name=self.name,
            run=str(run.root),
            health=Health(word=HealthWord.STALE, reason=NOT_READ()),
            learned=learned is not None,
            why_not=tuple(unlearned_reasons(run)),
            follows=str(learned.job.kind) if learned is not None else None,
            life=life.number,
            step=step,
            last_step=config.last_step,
            digest=line.digest if line is not None else "",
            step_ns=(line.time_ns or None) if line is not None else None,
            arrived_step=self.history.arrived,
            lag_steps=lag,
            lag_ms=lag_ms,
            arrival=None,
            step_rate=self.history.step_rate(time.time_ns()),
            update_seconds=line.seconds if line is not None else None,
            gradient_bytes=source.gradient_bytes,
            under_way=source.under_way,
            lost_step=lost.step if lost is not None else None,
            lost_why=lost.why if lost is not None else None,
            steps_lost=steps_lost,
            awaits_base=awaits,
            lacking_step=life.lacking,
            logged=logged,
            base_search=_base_search(run, config, self.number, life, awaits=logged is not None),
            tainted=_tainted(line),
            tainted_elements=0 if line is None else sum(line.tainted.values()),
            **_healed(run),
            kept_steps=read_figures(run.kept_steps),
            copied_by=read_copies(run),
            copy_of=copied,
            assumed=assumptions_of(run),
            addresses=learned.addresses if learned is not None else (),
            **_audit(run),
            **_anchors(run),
            durable=checkpoint_status.read_checkpoint_status(run, config.persist),
            kept_at=config.checkpoint,
            served=checkpoint_status.serve_url(run),
            timeline=timeline,
            diagram=learned.diagram if learned is not None else (),
        )

    def _known(self, config: JobConfig) -> Learned | None:
        try:
            found = training_file(self.run).stat()
        except FileNotFoundError:
            self._learned = None
            return None
        stamp = (found.st_ino, found.st_mtime_ns)
        if self._learned is None or self._learned.stamp != stamp:
            self._learned = _learned(stamp, known_training(self.run), config)
        return self._learned

    def _last_line(self) -> StepLine | None:
        for line in self._steps.read_new_lines():
            if any(key in line for key in TAINTED_KEYS) and is_complete_line(line):
                self.history.taint(msgspec.json.decode(line, type=StepLine).step)
        found = last_complete_line(self.run.steps)
        return None if found is None else msgspec.json.decode(found, type=StepLine)

    def _lag_ms(self, step: Step, timeline: tuple[StepState, ...], *, waits: bool) -> float:
        """Milliseconds that the first complete or logged step after the replica's has waited, if
        `waits`; else the time from complete to applied, for the last applied step. step: the
        replica's."""
        logged = [one.arrived_ns for one in timeline if one.logged and one.arrived_ns]
        waits_ns = min(logged) if logged else self.history.waits_since_ns(step)
        if waits and waits_ns is not None:
            return max(0.0, (time.time_ns() - waits_ns) / 1e6)
        taken = [one for one in timeline if one.arrived_ns and one.applied_ns]
        if not taken:
            return 0.0
        last = taken[-1]
        assert last.arrived_ns is not None and last.applied_ns is not None
        return max(0.0, (last.applied_ns - last.arrived_ns) / 1e6)


def _learned(stamp: tuple[int, int], job: TrainingFacts, config: JobConfig) -> Learned:
    if not isinstance(job, LearnedJob):  # it has no connections to be shown
        return Learned(stamp, job, (), ())
    # It loads all that learns jobs, which takes longer than a chain's other words at its start.
    from flowcheck.ops.watch.state.diagram_data import diagrams

    return Learned(stamp, job, diagrams(job, config.mirror), tuple(addresses_of(job)))


def _waiting(step: StepState) -> StepState:
    """The step as it is shown while its job waits for a base."""
    waits = step.arrived_ns is not None and step.applied_ns is None
    return msgspec.structs.replace(step, logged=True) if waits else step


@dataclass(frozen=True)
class SourceFigures:
    """Progress of a job's gradient source."""

    waiting_steps: int = 0
    """Complete steps that the replica has not applied yet."""
    gradient_bytes: int | None = None
    under_way: float | None = None
    """Share of the next iteration's bytes that has arrived, 0 to 1; None: unknown, or nothing has
    arrived."""


def _source(run: RunDir, each: int) -> SourceFigures:
    """each: iterations per step."""
    progress = source_progress(run) if run.memory.exists() else None
    if progress is None:
        return SourceFigures()
    size, covered = progress.gradient_bytes, progress.next_covered_bytes
    return SourceFigures(
        waiting_steps=-(-progress.complete // each),
        gradient_bytes=size,
        under_way=round(covered / size, 4) if covered is not None and size else None,
    )


def _tainted(line: StepLine | None) -> tuple[Finding, ...]:
    """Which elements rest on bytes that never came. Sharded training: which parameters did not come
    with the step, and of which step their values are."""
    if line is None:
        return ()
    if line.taint is not None:
        return (line.taint,)
    return tuple(OLDER_PARAMETER(parameter=n, step=step) for n, step in line.older.items())


def _logged(
    run: RunDir, config: JobConfig, life: Incarnation, learned: Learned | None
) -> tuple[int, int] | None:
    if life.step is not None or learned is None or not learned.job.awaits_base:
        return None
    if learned.job.start_unknown or not run.memory.exists():
        return None
    from flowcheck.stages.replica_update.gradient_logs import logged_step_range

    return logged_step_range(run, config, learned.job.gradient_bytes)


def _base_search(
    run: RunDir, config: JobConfig, number: int, life: Incarnation, *, awaits: bool
) -> tuple[Finding, ...]:
    """What the watch of a folder came to with the base of a job. awaits: the job was joined
    midstream and has none yet."""
    lines = [one for one in last_lines(run.port) if one.why and one.job in (None, number)]
    if not awaits:
        given = [o for o in lines if o.outcome is FileOutcome.BASE and o.step == life.base]
        return tuple(
            BASE_OF_FOLDER(file=one.file, step=one.step, how=one.why[0]) for one in given[-1:]
        )
    refused = [one for one in lines if one.why[0].is_any_of(NOT_THE_BASE)]
    waits = [one for one in lines if one.why[0].is_any_of(*WAITS_FOR_BASE)]
    told = [*refused[-1:], *waits[-1:]]
    if not told and config.audit is not None:
        return (NO_FILE_FOR_BASE(config.audit.folder),)
    return tuple(SEARCHED_IN_FOLDER(file=one.file, why=one.why[0]) for one in told)


def _healed(run: RunDir) -> dict[str, Any]:
    """What values of the trainer made exact again."""
    healed = [one for one in read_heal_records(run) if one.refused is None]
    if not healed:
        return {}
    last = healed[-1]
    counts = {"elements": last.elements, "step": last.step, "at": last.at, "left": last.left}
    return {
        "healed": ELEMENTS_HEALED(source=last.source, **counts),
        "healed_elements": sum(one.elements for one in healed),
        "asked_bytes": sum(one.asked_bytes for one in healed),
    }


def _audit(run: RunDir) -> dict[str, Any]:
    """What the audits say. Those from before a trainer's checkpoint replaced the state count no
    more."""
    history = audit_history_of(run)
    told = history.failed or history.last
    held = {
        "audited_step": None if told is None else told.step,
        "audit_passed": None if told is None else history.failed is None,
        "audit_differs": str(history.failed.first_difference or "") if history.failed else "",
    }
    return held | {
        "equal_step": history.equal_step,
        "audit_doubt": history.doubt_of(),
        "damaged_files": history.damaged[-DAMAGED_MAX:],
        "audited_files": outcome_counts(run),
    }


def _anchors(run: RunDir) -> dict[str, Any]:
    taken = [one for one in read_anchor_records(run) if not one.refused]
    newest = tuple(AnchorFile(step=o.step, file=o.file, at=o.at) for o in taken[-ANCHORS_MAX:])
    return {"anchors": newest, "anchors_before": len(taken) - len(newest)}
