"""A job that restarts while the stages stay up: its next incarnation takes over (extractor
side).

The handover lies in files, so that a kill of either side at any instant only makes it be done
again. The extractor ends the old job and renames a whole folder to `RunDir.successor`; the updater
compares its weights with the replica and writes `RunDir.verdict` there; the extractor takes the
folder's files for its own and moves it into the history, which commits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.findings.earlier_files import earlier_finding
from flowcheck.findings.finding import Finding
from flowcheck.findings.job_restarts import (
    LATE_FLOWS_LEFT_OUT,
    LATE_FLOWS_OF_NO_JOB,
    STAGING_FULL,
    STILL_GOES_ON,
)
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.gradient_shard import GradientShard
from flowcheck.stages.extraction.installed_plans import InstalledPlans
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.job_selection import JobSelector
from flowcheck.stages.job_learning.late_join import release_staged
from flowcheck.stages.job_learning.proved_job import ProvedJob
from flowcheck.stages.job_learning.stream_reading import NO_KNOWN_JOB, KnownJob
from flowcheck.stages.job_state.job_incarnation import Incarnation
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step

LATE_HURRY, LATE_MOST = 0.5, 0.75
"""Shares of staging that flows of no known job may take: from the first one on they are read again
with every message, and from the second one on left out, as the followed job needs the rest."""

LIVES_KEPT = 8
"""Lives of a job of which what was learned stays: each has the weights that it began with."""


class RestartVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the updater found."""

    number: int
    """Of the incarnation that is over, from 1."""
    step: Step | None
    """The replica's step whose parameters the new incarnation began with; None: none of them."""
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before the new incarnation's first one."""
    why: Finding | None = None
    """Why no step is known."""
    waits: bool = False
    """It is followed all the same: what it sends waits for a base."""

    @property
    def followed(self) -> bool:
        return self.step is not None or self.waits


def restart_verdict(run: RunDir) -> RestartVerdict | None:
    """The updater's word on the successor; None while there is none."""
    if not run.verdict.exists():
        return None
    return read_verdict(run.verdict.read_bytes())


def read_verdict(text: bytes) -> RestartVerdict:
    """Of a file; in one of an earlier version `why` is a sentence."""
    try:
        return msgspec.json.decode(text, type=RestartVerdict)
    except msgspec.ValidationError:
        told = msgspec.json.decode(text, type=dict[str, Any])
        why = msgspec.convert(told.pop("why", ""), str)
        verdict = msgspec.convert(told, RestartVerdict)
        return msgspec.structs.replace(verdict, why=earlier_finding(why) if why else None)


def promote_successor(run: RunDir, verdict: RestartVerdict, shard: GradientShard) -> None:
    """The successor is the job that is followed; whatever was done of it before is done again."""
    history = run.history(verdict.number)
    if not history.exists():
        with atomic_path(history, durable=False) as place:
            place.mkdir(mode=0o700)
            for file in (path for path in run.learned_folder.iterdir() if path.is_file()):
                shutil.copy2(file, place)
    (run.learned_folder / "recuts").unlink(missing_ok=True)
    (run.learned_folder / "numbers").unlink(missing_ok=True)
    run.assumed.unlink(missing_ok=True)
    shard.clear()
    for name in ("names", "numbers", run.weights.name, run.beside_weights.name):
        if (run.successor / name).exists():
            write_atomically(run.learned_folder / name, (run.successor / name).read_bytes())
    followed = Incarnation(
        number=verdict.number + 1, iterations=verdict.iterations, step=verdict.step
    )
    if not (run.successor / run.weights.name).exists():
        run.weights.unlink(missing_ok=True)  # joined amid its run: those there are of another past
    write_atomically(run.incarnation, msgspec.json.encode(followed))
    write_atomically(run.learned_job, (run.successor / run.learned_job.name).read_bytes())
    run.successor.rename(history / run.successor.name)
    for number in range(1, verdict.number - LIVES_KEPT + 1):
        shutil.rmtree(run.history(number), ignore_errors=True)


class JobRestart:
    """The extractor's side of a handover."""

    def __init__(
        self,
        run: RunDir,
        learner: JobLearner,
        note: Callable[[Finding], None],
        wants: Callable[[], JobSelector | None] = lambda: None,
    ) -> None:
        """note: tells the operator; wants: which job may be a later incarnation."""
        self._run, self._learner, self._note, self._wants = run, learner, note, wants
        self._proof: ProvedJob | None = None

    @property
    def proved(self) -> bool:
        """A later incarnation is known, and the old one's end is still to be put on file."""
        return self._proof is not None

    @property
    def open(self) -> bool:
        """It waits for the updater's word, or to be promoted."""
        return self._run.successor.exists()

    def look(
        self, extractors: Sequence[Extractor], planned: InstalledPlans, *, at_once: bool
    ) -> int:
        """Reads the flows that appeared later; returns 1 where that changed something."""
        if planned.rejoins and planned.crowded(LATE_MOST) and not self._learner.busy:
            self._learner.forget()
            return release_staged(extractors)
        if planned.crowded(LATE_MOST):
            self._leave_out(planned, STAGING_FULL(self._learner.why_not))
            return 1
        proof = self._learner.learn(
            extractors,
            before=planned.job,
            known=KnownJob(job=planned.job) if planned.rejoins else NO_KNOWN_JOB,
            at_once=at_once,
            hurry=planned.crowded(LATE_HURRY),
            only=planned.late,
            wait_s=0.05 if at_once else 0.0,
            wanted=self._wants(),
        )
        if left := self._learner.left_out():
            self._note(LATE_FLOWS_OF_NO_JOB(left))
            planned.forget_ignored()
            return 1
        if proof is None and at_once and not self._learner.busy:
            self._leave_out(planned, *self._learner.why_not)
            return 1
        if proof is None:
            return 0
        if planned.goes_on(proof.job, proof.names):
            self._leave_out(planned, STILL_GOES_ON())
        else:
            self._proof = proof
        return 1

    def _leave_out(self, planned: InstalledPlans, *why: Finding) -> None:
        self._note(LATE_FLOWS_LEFT_OUT(why))
        self.drop(planned)

    def drop(self, planned: InstalledPlans) -> None:
        """Nothing of the later flows is kept, nor read any more."""
        self._learner.forget()
        planned.ignore_late()

    def commit(self) -> None:
        """The old job is over: the updater may look at the new one."""
        assert self._proof is not None
        with atomic_path(self._run.successor, durable=False) as place:
            place.mkdir(mode=0o700)
            self._proof.write(place)
        self._proof = None
