"""A job that restarts while the stages stay up: its next incarnation takes over (extractor side).

Each step of the handover is in the lifecycle record, so that after a kill of either side it is done
again. (1) The extractor ends the old job, writes the new one's files to a folder and offers it
(state `handing over`). (2) The updater compares its weights with the replica and commits its
verdict. (3) The extractor adopts the folder's files; that is done once its part of the record says
that the new incarnation is followed. (4) It moves the folder into the history.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.findings.catalog.job_restarts import (
    LATE_FLOWS_LEFT_OUT,
    LATE_FLOWS_OF_NO_JOB,
    STAGING_FULL,
    STILL_GOES_ON,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.extraction.installed_flow_plans import InstalledPlans
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.job_selection import JobSelector
from flowcheck.stages.job_learning.late_join import release_staged
from flowcheck.stages.job_learning.proved_job import ProvedJob
from flowcheck.stages.job_learning.stream_reading import NO_KNOWN_JOB, KnownJob
from flowcheck.stages.job_state.earlier_run_directories import OFFERED_FOLDER
from flowcheck.stages.job_state.lifecycle_record_schema import (
    Incarnation,
    OfferedIncarnation,
    RestartVerdict,
)
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle

LATE_HURRY, LATE_MOST = 0.5, 0.75
"""Shares of staging that flows of no known job may fill. From the first one on they are read again
with every message; from the second one on they are dropped, as the followed job needs the rest. A
choice: more lets a later incarnation start slower, less is safer for the followed job."""

INCARNATIONS_KEPT = 8
"""Lives of a job of which what was learned stays: each has the weights that it began with. A
choice: more takes disk."""


def promote_successor(
    lifecycle: ExtractLifecycle, verdict: RestartVerdict, shard: GradientShard
) -> None:
    """Follows the offered incarnation. What was done before a kill is done again, until the record
    says that it is followed."""
    run, offered = lifecycle.run, lifecycle.part.offered
    assert offered is not None
    folder, history = run.learned_folder / offered.folder, run.history(verdict.number)
    if not history.exists():
        with atomic_path(history, durable=False) as place:
            place.mkdir(mode=0o700)
            for file in filter(_is_learned, run.learned_folder.iterdir()):
                shutil.copy2(file, place)
    (run.learned_folder / "recuts").unlink(missing_ok=True)
    (run.learned_folder / "numbers").unlink(missing_ok=True)
    run.assumed.unlink(missing_ok=True)
    shard.clear()
    for name in ("names", "numbers", run.weights.name, run.auxiliary_weights.name):
        if (folder / name).exists():
            write_atomically(run.learned_folder / name, (folder / name).read_bytes())
    if not (folder / run.weights.name).exists():
        run.weights.unlink(missing_ok=True)  # joined midstream: those there are of another past
    write_atomically(run.learned_job, (folder / run.learned_job.name).read_bytes())
    followed = Incarnation(number=offered.number, iterations=verdict.iterations, step=verdict.step)
    lifecycle.enter(ExtractState.FOLLOWING, followed=followed, offered=None)
    remove_stale_offers(lifecycle)


def _is_learned(path: Path) -> bool:
    """Whether a file of `learned/` goes into the history: no folder, nothing half written, no
    checkpoint on its way."""
    passing = path.name.startswith((".", "request"))
    return path.is_file() and not passing


def remove_stale_offers(lifecycle: ExtractLifecycle) -> None:
    """Removes folders of incarnations that are no longer offered. The folder of the one that is
    followed goes into the history; one that a kill left before it was offered is written anew. What
    is too old to be kept is deleted."""
    run, followed = lifecycle.run, lifecycle.part.followed.number
    offered = lifecycle.part.offered
    for half in run.learned_folder.glob(f".{OFFERED_FOLDER}*.tmp"):
        shutil.rmtree(half)
    for folder in run.learned_folder.glob(f"{OFFERED_FOLDER}*"):
        if offered is not None and folder.name == offered.folder:
            continue
        # An earlier version gave it no number, and had one at a time.
        own = folder.name in (OFFERED_FOLDER, offer_name(followed))
        history = run.history(followed - 1)
        if own and history.exists() and not (history / OFFERED_FOLDER).exists():
            folder.rename(history / OFFERED_FOLDER)
        else:
            shutil.rmtree(folder)
    for number in range(1, followed - INCARNATIONS_KEPT):
        shutil.rmtree(run.history(number), ignore_errors=True)


def offer_name(number: int) -> str:
    """Name of the folder of an offered incarnation."""
    return f"{OFFERED_FOLDER}-{number}"


class JobRestart:
    """The extractor's side of a handover."""

    def __init__(
        self,
        lifecycle: ExtractLifecycle,
        learner: JobLearner,
        note: Callable[[Finding], None],
        wants: Callable[[], JobSelector | None] = lambda: None,
    ) -> None:
        """note: tells the operator; wants: which job may be a later incarnation."""
        self._lifecycle, self._learner = lifecycle, learner
        self._note, self._wants = note, wants
        self._proof: ProvedJob | None = None

    @property
    def successor_proved(self) -> bool:
        """Whether a later incarnation is known, and the end of the old one is not on file yet."""
        return self._lifecycle.state is ExtractState.CLOSING

    def check_new_flows(
        self, extractors: Sequence[Extractor], planned: InstalledPlans, *, at_once: bool
    ) -> int:
        """Reads the flows that appeared later; returns 1 where that changed something."""
        if planned.rejoins and planned.late_flows_fill(LATE_MOST) and not self._learner.busy:
            self._learner.forget()
            return release_staged(extractors)
        if planned.late_flows_fill(LATE_MOST):
            self._ignore_new_flows(planned, STAGING_FULL(self._learner.why_not))
            return 1
        proof = self._learner.learn(
            extractors,
            before=planned.job,
            known=KnownJob(job=planned.job) if planned.rejoins else NO_KNOWN_JOB,
            at_once=at_once,
            hurry=planned.late_flows_fill(LATE_HURRY),
            only=planned.late_flows,
            wait_s=0.05 if at_once else 0.0,
            wanted=self._wants(),
        )
        if left := self._learner.take_ignored_flow_count():
            self._note(LATE_FLOWS_OF_NO_JOB(left))
            planned.forget_ignored()
            return 1
        if proof is None and at_once and not self._learner.busy:
            self._ignore_new_flows(planned, *self._learner.why_not)
            return 1
        if proof is None:
            return 0
        if planned.continues_after(proof.job, proof.names):
            self._ignore_new_flows(planned, STILL_GOES_ON())
        else:
            self._proof = proof
            self._lifecycle.enter(ExtractState.CLOSING)
        return 1

    def _ignore_new_flows(self, planned: InstalledPlans, *why: Finding) -> None:
        self._note(LATE_FLOWS_LEFT_OUT(why))
        self.drop_later_flows(planned)

    def drop_later_flows(self, planned: InstalledPlans) -> None:
        """Drops the later flows, and reads them no more."""
        self._learner.forget()
        planned.ignore_late_flows()

    def commit(self) -> Path:
        """Ends the old job and offers the new one to the updater. Returns the folder with the new
        one's files."""
        assert self._proof is not None
        remove_stale_offers(self._lifecycle)
        number = self._lifecycle.part.followed.number + 1
        folder = self._lifecycle.run.learned_folder / offer_name(number)
        with atomic_path(folder) as place:
            place.mkdir(mode=0o700)
            self._proof.write_to_folder(place)
        offered = OfferedIncarnation(number=number, folder=folder.name)
        self._lifecycle.enter(ExtractState.HANDING_OVER, offered=offered)
        self._proof = None
        return folder
