"""A drill with several jobs side by side, each on its own hosts, behind one chain: all are killed,
each is restored to its own newest step, resumed, and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from flowcheck.errors import StateError
from flowcheck.lab.job_run.digest_comparison import (
    DigestComparison,
    Digests,
    compare,
    replica_digests,
    trainer_digests,
)
from flowcheck.lab.job_run.hang_detection import HangDetector
from flowcheck.lab.job_run.torchrun_trainers import Trainers
from flowcheck.lab.job_run.training_script import checkpoint_path
from flowcheck.lab.restore_drill.drill_report import DrillOutcome, FollowedJob
from flowcheck.lab.restore_drill.healed_elements import healed_elements
from flowcheck.lab.restore_drill.kill_restore_drill import LOOK_S, KillRestoreDrill
from flowcheck.lab.restore_drill.step_outcomes import followed_steps, step_outcomes
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.stages.job_state.heal_log import HealRecord, read_heal_records
from flowcheck.stages.replica_update.step_log import StepRecord
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Step


@dataclass(slots=True)
class _Job:
    """One of them; its number from 0."""

    number: int
    digests: Path
    trainers: Trainers | None = None
    killed_at: Step = START
    restored_step: Step = START
    told: dict[Step, Digests] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"job-{self.number + 1}"


@dataclass(frozen=True, slots=True, eq=False)
class _Replica:
    """What the chain has of a job at the end."""

    digests: dict[Step, Digests]
    steps: dict[Step, StepRecord]
    heals: list[HealRecord]


class MultiJobDrill(KillRestoreDrill):
    """Drill for a plan with several jobs."""

    def _whole(self, outcome: DrillOutcome) -> None:
        plan = self._plan
        outcome.steps = plan.steps * plan.jobs
        jobs = [
            _Job(number, plan.trainers_folder / f"digests-{number + 1}.jsonl")
            for number in range(plan.jobs)
        ]
        self._services = self._start_services()
        try:
            self._start(jobs, {})
            if plan.kill_at is not None:
                self._follow_all("training", jobs, until=plan.kill_at)
                self._kill(jobs)
                for job in jobs:
                    job.killed_at = max(trainer_digests(job.digests), default=START)
                told = ", ".join(str(job.killed_at) for job in jobs)
                self._display.print_line(
                    f"all trainers killed with SIGKILL, their last steps {told}"
                )
                self._start(jobs, self._states_to_resume(jobs, outcome))
            self._follow_all("resumed" if plan.kill_at else "training", jobs, until=None)
        finally:
            self._kill(jobs)
        self._catch_up(Step(plan.steps))
        outcome.chain = self._services.chain_state()
        # A chain that ends applies what waits for bytes that will not come.
        self._services.stop()
        self._services = None
        replicas = [_replica(own) for own in all_run_dirs(RunDir(plan.run))]
        if self._loss is not None:
            outcome.mirror_loss = self._loss.count()
        _judge(outcome, jobs, replicas, plan.steps)

    def _start(self, jobs: list[_Job], resumed: dict[int, Path]) -> None:
        """resumed: {job: file it goes on from}."""
        count = self._plan.cluster.hosts // len(jobs)
        for job in jobs:
            more = ["--digests", str(job.digests), "--seed", str(job.number + 1)]
            more += ["--resume", str(resumed[job.number])] if resumed else []
            hosts = range(job.number * count, (job.number + 1) * count)
            job.trainers = self._launch(self._plan.script(job.name, *more), hosts)

    def _kill(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if job.trainers is not None:
                job.trainers.kill()

    def _follow_all(self, what: str, jobs: list[_Job], *, until: Step | None) -> None:
        """Until every trainer says it took step `until`, or has ended."""
        running = [job.trainers for job in jobs if job.trainers is not None]
        moving = HangDetector(what, *running)
        while not all(trainers.ended() for trainers in running):
            steps = [trainers.step() for trainers in running]
            if self._loss is not None and min(steps) >= (self._plan.mirror_loss_from or START):
                self._loss.begin()
            if until is not None and min(steps) >= until:
                return
            moving.check(steps)
            assert self._services is not None
            self._services.check()
            lines = running[steps.index(min(steps))].lines()
            self._display.show(what, dict(lines[-1]) if lines else {}, self._services.chain_state())
            Event().wait(LOOK_S)

    def _states_to_resume(self, jobs: list[_Job], outcome: DrillOutcome) -> dict[int, Path]:
        """{job: file it goes on from}: its newest exact step. Where copies were dropped a job may
        have none: then all begin again."""
        try:
            return self._give_back(jobs)
        except StateError as error:
            if self._loss is None:
                raise
            outcome.restore_refused, outcome.own_save_step = error.finding, START
            self._display.print_line(f"nothing restored, all jobs begin again: {error}")
            folder = self._plan.trainers_folder
            return {job.number: checkpoint_path(folder / job.name, START) for job in jobs}

    def _give_back(self, jobs: list[_Job]) -> dict[int, Path]:
        """{job: what `flowcheck restore` writes for it}; each tells by bytes whose it is."""
        plan = self._plan
        templates = {checkpoint_path(plan.trainers_folder / job.name, START): job for job in jobs}
        out = plan.trainers_folder / "restored"
        found = {}
        source = StepSource(run=plan.run)
        for done in restore(RestoreRequest(source=source, templates=tuple(templates), output=out)):
            assert done.template is not None
            job = templates[done.template]
            job.restored_step = done.written.step
            found[job.number] = done.out
            self._display.print_line(
                f"step {job.restored_step} of {job.name} restored to {done.out}"
            )
        return found


def _replica(run: RunDir) -> _Replica:
    return _Replica(replica_digests(run.steps), step_outcomes(run.steps), read_heal_records(run))


def _judge(outcome: DrillOutcome, jobs: list[_Job], replicas: list[_Replica], steps: int) -> None:
    """Each job against the replica that is most like it, and no replica twice."""
    left = list(replicas)
    found: list[DigestComparison] = []
    untold: list[Step] = []
    for job in jobs:
        told = trainer_digests(job.digests)
        between = map(Step, range(job.killed_at + 1, job.restored_step + 1))
        flight = [s for s in between if s not in told]
        wanted = set(map(Step, range(1, steps + 1))) - set(flight)
        best = max(left, key=lambda one: sum(one.digests.get(s) == d for s, d in told.items()))
        left.remove(best)
        if outcome.mirror_loss is not None:
            number = replicas.index(best)
            chain_job = outcome.chain.jobs[number] if outcome.chain else None
            followed = followed_steps(best.steps, Step(steps), chain_job)
            healed = healed_elements(best.heals, followed.partial)
            outcome.of_jobs.append(FollowedJob(job.name, number + 1, followed, healed))
            # Nobody calls a tainted step equal, or misses it.
            told = {step: own for step, own in told.items() if step not in followed.tainted}
            wanted -= set(followed.tainted)
        found.append(compare(told, best.digests, wanted=wanted))
        untold += flight
    outcome.untold = tuple(untold)
    outcome.comparison = DigestComparison(
        equal=sum(one.equal for one in found),
        states=max(one.states for one in found),
        different=tuple(each for one in found for each in one.different),
        missing=tuple(each for one in found for each in one.missing),
    )
    worst = max(jobs, key=lambda job: job.killed_at - job.restored_step)
    if worst.killed_at:
        outcome.killed_at, outcome.restored_step = worst.killed_at, worst.restored_step
