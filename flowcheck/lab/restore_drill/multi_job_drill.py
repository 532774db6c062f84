"""A drill with several jobs side by side, each on its own hosts, behind one chain: all are killed,
each is restored to its own newest step, resumed, and compared."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

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
from flowcheck.lab.restore_drill.drill_report import DrillOutcome
from flowcheck.lab.restore_drill.kill_restore_drill import FOLLOW_LIMIT_S, LOOK_S, KillRestoreDrill
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
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
                self._start(jobs, self._give_back(jobs))
            self._follow_all("resumed" if plan.kill_at else "training", jobs, until=None)
        finally:
            self._kill(jobs)
        self._wait_for_all(Step(plan.steps))
        outcome.chain = self._services.chain_state()
        replicas = [replica_digests(own.steps) for own in all_run_dirs(RunDir(plan.run))]
        self._services.stop()
        self._services = None
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

    def _wait_for_all(self, step: Step) -> None:
        """Lets the replicas take what is captured already."""
        assert self._services is not None
        deadline_s = time.monotonic() + FOLLOW_LIMIT_S
        runs = all_run_dirs(RunDir(self._plan.run))
        while time.monotonic() < deadline_s and self._services.alive():
            if all(step in replica_digests(own.steps) for own in runs):
                return
            Event().wait(LOOK_S)


def _judge(
    outcome: DrillOutcome, jobs: list[_Job], replicas: list[dict[Step, Digests]], steps: int
) -> None:
    """Each job against the replica that is most like it, and no replica twice."""
    left = list(replicas)
    found: list[DigestComparison] = []
    untold: list[Step] = []
    for job in jobs:
        told = trainer_digests(job.digests)
        between = map(Step, range(job.killed_at + 1, job.restored_step + 1))
        flight = [s for s in between if s not in told]
        wanted = set(map(Step, range(1, steps + 1))) - set(flight)
        best = max(left, key=lambda one: sum(one.get(s) == d for s, d in told.items()))
        left.remove(best)
        found.append(compare(told, best, wanted=wanted))
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
