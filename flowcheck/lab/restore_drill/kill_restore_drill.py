"""`flowcheck lab train`: a job is followed, killed, restored from the replica, resumed and
compared."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from threading import Event
from typing import Any

from flowcheck.errors import StateError
from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import (
    Digests,
    checkpoint_digests,
    compare,
    replica_digests,
    trainer_digests,
)
from flowcheck.lab.job_run.flowcheck_services import FlowCheckServices
from flowcheck.lab.job_run.hang_detection import HangDetector
from flowcheck.lab.job_run.hooked_trainers import write_token
from flowcheck.lab.job_run.output_folders import check_folders, make_empty_folders, open_to_all
from flowcheck.lab.job_run.run_display import Display, typed_flowcheck_command
from flowcheck.lab.job_run.run_plan import MASTER_PORT, LabPlan, job_file
from flowcheck.lab.job_run.torchrun_trainers import Script, Trainers
from flowcheck.lab.job_run.training_script import checkpoint_path, checkpoints_by_step
from flowcheck.lab.mirror_loss.monitor_port_loss import MonitorPortLoss
from flowcheck.lab.restore_drill.drill_report import DrillOutcome
from flowcheck.lab.restore_drill.healed_elements import healed_elements
from flowcheck.lab.restore_drill.step_outcomes import followed_steps, step_outcomes
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Step

LOOK_S = 0.1
"""Seconds between two readings of the state. A choice: a shorter time costs CPU time."""
FOLLOW_LIMIT_S = 60.0
"""Seconds for the replica to apply the last steps after the trainers ended. A choice: a longer
limit delays the error, a shorter one fails on a busy machine."""

STILL_S = 5.0
"""Seconds without change after which a chain whose port drops copies has come as far as it will. A
choice: a longer time delays the end of each run."""


class KillRestoreDrill:
    """One drill; all processes that it starts have ended when it ends."""

    def __init__(self, plan: LabPlan, display: Display) -> None:
        self._plan, self._display = plan, display
        self._launches = 0
        self._services: FlowCheckServices | None = None
        self._loss: MonitorPortLoss | None = None

    def whole(self) -> DrillOutcome:
        """Does the drill from the cluster's start to its removal. Raises ConfigError as
        `check_folders`, FlowCheckError if another run uses the cluster, or something did not
        start, or hung."""
        plan = self._plan
        check_folders(plan.folder, plan.created_folders, force=plan.force)
        with cluster.reserved(plan.cluster.name):
            return self._run_drill()

    def _run_drill(self) -> DrillOutcome:
        plan, outcome = self._plan, DrillOutcome(self._plan.steps)
        began = time.monotonic()
        self._display.print_line(
            f"cluster of {plan.cluster.hosts} hosts, mirror {plan.cluster.words}"
        )
        cluster.down(plan.cluster.name)
        make_empty_folders(plan.folder, plan.created_folders, force=plan.force)
        if plan.save_every is not None:
            open_to_all(plan.saves_folder)
        if plan.hook:
            write_token(plan.hook_token)
        cluster.up(plan.cluster)
        try:
            with self._dropping_copies():
                self._whole(outcome)
        except (KeyboardInterrupt, SystemExit):
            self._display.print_line(
                f"interrupted: services and cluster go; files stay in {plan.folder}"
            )
            raise
        finally:
            if self._services is not None:
                self._services.stop()
            cluster.down(plan.cluster.name)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _whole(self, outcome: DrillOutcome) -> None:
        """Everything that needs the cluster."""
        plan, began_s = self._plan, time.monotonic()
        replica = self._train(outcome)
        told = trainer_digests(plan.digests)
        if plan.control:
            self._say_controls(outcome, time.monotonic() - began_s)
            told |= self._controls(outcome, told)
        # The step in flight at the kill was the last the wire carried: no digest of the
        # trainer's own tells it, the control's does.
        first, last = (outcome.killed_at or START) + 1, outcome.restored_step or START
        flight = list(map(Step, range(first, last + 1)))
        outcome.untold = tuple(step for step in flight if step not in told)
        unseen = list(map(Step, range(1, max(outcome.bases, default=1))))
        # Nobody calls a tainted step equal, or misses it: it is told on its own.
        unseen += [] if outcome.followed is None else outcome.followed.tainted
        told = {step: own for step, own in told.items() if step not in unseen}
        wanted = set(map(Step, range(1, plan.steps + 1))) - {*outcome.untold, *unseen}
        outcome.comparison = compare(told, replica, wanted=wanted)

    def _train(self, outcome: DrillOutcome) -> dict[Step, Digests]:
        """The job with FlowCheck beside it: launched, killed, given back, launched again; what the
        replica was after each step."""
        plan = self._plan
        self._services = self._start_services()
        digests = ("--digests", str(plan.digests))
        trainers = self._launch(plan.script("job", *digests))
        try:
            if plan.kill_at is not None:
                self._follow("training", trainers, until=plan.kill_at)
                trainers.kill()
                outcome.killed_at = max(trainer_digests(plan.digests), default=START)
                self._display.print_line(
                    f"all trainers killed with SIGKILL, their last step {outcome.killed_at}"
                )
                # A chain that is still about to learn the job, on a slow machine, has no step yet.
                self._catch_up(outcome.killed_at)
                restored = self._state_to_resume(outcome)
                trainers = self._launch(plan.script("job", *digests, "--resume", str(restored)))
            self._follow("resumed" if plan.kill_at else "training", trainers, until=None)
        finally:
            trainers.kill()
        self._catch_up(Step(plan.steps))
        outcome.final = trainer_digests(plan.digests).get(Step(plan.steps), {})
        return self._stop_services(outcome)

    @contextmanager
    def _dropping_copies(self) -> Iterator[None]:
        """With --mirror-loss the monitor port drops copies; else nothing is at it."""
        plan = self._plan
        if not plan.mirror_loss:
            yield
            return
        with MonitorPortLoss(plan.cluster, plan.mirror_loss, plan.mirror_loss_seed) as self._loss:
            if plan.mirror_loss_from is None:
                self._loss.begin()
            yield

    def _stop_services(self, outcome: DrillOutcome) -> dict[Step, Digests]:
        """What the chain came to; returns the replica's digests of the steps that it calls exact.
        The last steps, if they lack bytes, are applied when the chain stops: until then their
        bytes may still come."""
        run = RunDir(self._plan.run)
        assert self._services is not None
        outcome.chain = self._services.chain_state()
        self._services.stop()
        self._services = None
        steps = step_outcomes(run.steps)
        if self._loss is not None:
            job = outcome.chain.jobs[0] if outcome.chain is not None else None
            outcome.mirror_loss = self._loss.count()
            outcome.followed = followed_steps(steps, Step(self._plan.steps), job)
            outcome.healed = healed_elements(read_heal_records(run), outcome.followed.partial)
        digests = replica_digests(run.steps)
        return {step: own for step, own in digests.items() if not steps[step].tainted}

    def _say_controls(self, outcome: DrillOutcome, took_s: float) -> None:
        """What is still to come: each control trains as many steps as the drill did."""
        runs = (outcome.restored_step is not None) + (self._plan.cluster.ranks == 2)
        if runs:
            self._display.print_line(
                f"the job took {took_s:.0f} s; what its end is compared with takes about as long "
                f"{('once', 'twice')[runs - 1]} more (--no-control leaves it out)"
            )

    def _controls(self, outcome: DrillOutcome, told: dict[Step, Digests]) -> dict[Step, Digests]:
        """The same job without FlowCheck: stopped at the same step by its own save and resumed,
        and, where two ranks make sums that do not depend on buckets, never stopped. Returns the
        control's digests of steps that `told` lacks."""
        plan = self._plan
        found: dict[Step, Digests] = {}
        stop = outcome.restored_step
        if stop is not None:
            self._display.print_line(
                f"control: stopped at step {stop} by the trainer's own save, resumed"
            )
            own = checkpoint_path(plan.trainers_folder / "control", stop)
            kept = plan.trainers_folder / "control.jsonl"
            more = ("--stop-at", str(stop), "--digests", str(kept))
            self._to_end("control", plan.script("control", *more))
            found = {s: d for s, d in trainer_digests(kept).items() if s not in told and s <= stop}
            more = ("--resume", str(own), "--digests", str(kept))
            self._to_end("control, resumed", plan.script("control", *more))
            outcome.control = trainer_digests(kept).get(Step(plan.steps), {})
        if plan.cluster.ranks == 2:
            self._display.print_line("control: never stopped")
            kept = plan.trainers_folder / "unbroken.jsonl"
            self._to_end("never stopped", plan.script("unbroken", "--digests", str(kept)))
            outcome.unbroken = trainer_digests(kept).get(Step(plan.steps), {})
        return found

    def _to_end(self, what: str, script: Script) -> None:
        trainers = self._launch(script, followed=False)
        try:
            self._follow(what, trainers, until=None)
        finally:
            trainers.kill()

    def _start_services(self) -> FlowCheckServices:
        plan = self._plan
        job = plan.services_folder / "job.toml"
        job.write_text(job_file(plan))
        enter = cluster.command_prefix_in(plan.cluster.checkpoint_namespace, [plan.trainers_folder])
        services = FlowCheckServices(job, plan.run, plan.services_folder / "up.log", enter=enter)
        services.wait_listening()
        self._display.print_line(
            "services are up on the checkpoint node; they see the mirror port alone"
        )
        own, run = typed_flowcheck_command(), quote(str(plan.run))
        self._display.print_line(f"to watch them from another terminal: {own} top --run {run}")
        self._display.print_line(
            f"or in a browser, at the address this prints: {own} watch --run {run}"
        )
        return services

    def _launch(
        self, script: Script, hosts: Sequence[int] | None = None, *, followed: bool = True
    ) -> Trainers:
        """followed: by FlowCheck; a control has no hook."""
        plan = self._plan
        first = 0 if hosts is None else hosts[0]
        self._launches += 1
        logs = plan.trainers_folder / f"logs-{self._launches}"
        logs.mkdir()
        return Trainers(
            script,
            plan.cluster,
            port=MASTER_PORT + self._launches,
            environment=plan.environment_of_job(first) if followed else plan.environment,
            logs=logs,
            hosts=hosts,
        )

    def _follow(self, what: str, trainers: Trainers, *, until: Step | None) -> None:
        """Until the trainer says it took step `until`, or ends."""
        moving = HangDetector(what, trainers)
        while not trainers.ended():
            lines = trainers.lines()
            last: dict[str, Any] = dict(lines[-1]) if lines else {}
            step = Step(int(last.get("step", 0)))
            if self._loss is not None and step >= (self._plan.mirror_loss_from or START):
                self._loss.begin()
            if until is not None and step >= until:
                return
            moving.check(step)
            if self._services is not None:
                self._services.check()
            chain = self._services.chain_state() if self._services is not None else None
            self._display.show(what, last, chain)
            Event().wait(LOOK_S)

    def _state_to_resume(self, outcome: DrillOutcome) -> Path:
        """The file from which the trainers go on: the newest exact step of the replica. Where
        copies were dropped there may be none: then the trainer's own newest save."""
        plan = self._plan
        try:
            outcome.restored_step, restored = self._restore()
        except StateError as error:
            if self._loss is None:
                raise
            outcome.restore_refused = error.finding
            saves = checkpoints_by_step(plan.saves_folder)
            own = max(saves, default=START)
            restored = saves.get(own) or checkpoint_path(plan.trainers_folder / "job", START)
            outcome.own_save_step = own
            self._display.print_line(f"nothing restored: {error}")
            self._display.print_line(f"the trainer's own save of step {own} is taken: {restored}")
            return restored
        if self._loss is not None:
            told = trainer_digests(plan.digests).get(outcome.restored_step)
            own_digests = checkpoint_digests(restored)
            outcome.restored_equal = None if told is None else own_digests == told
        self._display.print_line(f"step {outcome.restored_step} restored to {restored}")
        return restored

    def _restore(self) -> tuple[Step, Path]:
        """(step, file): what `flowcheck restore` writes, by the trainer's first checkpoint."""
        plan = self._plan
        out = plan.trainers_folder / "restored.pt"
        template = checkpoint_path(plan.trainers_folder / "job", START)
        source = StepSource(run=plan.run)
        request = RestoreRequest(source=source, templates=(template,), output=out, force=True)
        (done,) = restore(request)
        return done.written.step, out

    def _catch_up(self, step: Step) -> None:
        """Lets the replica take what is captured already."""
        assert self._services is not None
        deadline_s = time.monotonic() + FOLLOW_LIMIT_S
        last, moved_s = None, time.monotonic()
        while time.monotonic() < deadline_s and self._services.alive():
            chain = self._services.chain_state()
            if chain and all((job.step or 0) >= step for job in chain.jobs):
                return
            now = chain and _position(chain)
            if now != last:
                last, moved_s = now, time.monotonic()
            # Where copies were dropped, the last steps may wait for what does not come.
            still = time.monotonic() - moved_s > STILL_S
            learned = chain is not None and all(job.learned for job in chain.jobs)
            if self._loss is not None and learned and still:
                return
            Event().wait(LOOK_S)


def _position(chain: ChainState) -> tuple[object, ...]:
    """What changes while captured frames become steps."""
    jobs = [(job.step, job.arrived_step, job.under_way) for job in chain.jobs]
    return jobs, [(ring.head, ring.parsed, ring.tail) for ring in chain.rings]


def choose_kill(steps: int, seed: int | None) -> Step:
    """A random step in the middle third of the run."""
    return Step(random.Random(seed).randint(max(1, steps // 3), max(1, 2 * steps // 3)))


def run_drill(plan: LabPlan, *, quiet: bool) -> DrillOutcome:
    """Does the drill that `plan` asks for. quiet: no live display. Raises as
    `KillRestoreDrill.whole`."""
    from flowcheck.lab.restore_drill.late_join_drill import LateJoinDrill  # derived from ours
    from flowcheck.lab.restore_drill.multi_job_drill import MultiJobDrill

    kind = (
        MultiJobDrill
        if plan.jobs > 1
        else KillRestoreDrill
        if plan.late_join is None
        else LateJoinDrill
    )
    with Display(plan.steps, quiet=quiet) as display:
        return kind(plan, display).whole()
