"""A drill in which FlowCheck joins late, leaves and returns, or loses its capture for some
seconds. The trainer's own checkpoints are the bases: of two consecutive ones after the join, the
first is the base, and the second shows its position in the gradient log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.lab_runs import NO_BASE, NOTHING_LOGGED, TRAINERS_WROTE_TOO_FEW
from flowcheck.findings.finding import Finding
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.lab.job_run.run_display import Display
from flowcheck.lab.job_run.run_plan import LabPlan
from flowcheck.lab.job_run.torchrun_trainers import Trainers
from flowcheck.lab.job_run.training_script import checkpoints_by_step
from flowcheck.lab.restore_drill.drill_report import DrillOutcome
from flowcheck.lab.restore_drill.kill_restore_drill import LOOK_S, KillRestoreDrill
from flowcheck.stages.job_state.audited_files import FileOutcome, last_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR, stage_named
from flowcheck.step_numbers import Step

GAP_S = 3.0
"""Seconds for which the killed capture stays away: many steps of a small model. A choice: a longer
time only makes the drill longer."""
LOGGED_LIMIT_S = 120.0
"""Seconds until the steps between two checkpoints must be logged. A choice: a longer limit delays
the error, a shorter one fails on a busy machine."""
WATCH_LIMIT_S = 15.0
"""Seconds for the watch of the saves to find the base after the trainers' end. A choice: longer
delays the error, shorter fails on a busy machine."""


class LateJoinDrill(KillRestoreDrill):
    """Drill in which FlowCheck starts, or starts again, while the job runs."""

    def __init__(self, plan: LabPlan, display: Display) -> None:
        super().__init__(plan, display)
        assert plan.late_join is not None
        self._late = plan.late_join

    def _train(self, outcome: DrillOutcome) -> dict[Step, Digests]:
        plan, late = self._plan, self._late
        self._services = None if late.comes_new else self._start_services()
        every = ("--save-every", str(late.save_every)) if plan.save_every is None else ()
        trainers = self._launch(plan.script("job", "--digests", str(plan.digests), *every))
        try:
            if self._services is not None and late.leave_at is not None:
                self._follow("training", trainers, until=late.leave_at)
                self._services.stop()
                self._services = None
                self._display.print_line(f"FlowCheck left at step {trainers.step()}")
            if late.join_at is not None:
                self._follow("training alone", trainers, until=late.join_at)
                self._services = self._start_services()
                self._display.print_line(f"FlowCheck joins behind step {trainers.step()}")
                self._give_base(trainers, outcome)
            if late.gap_at is not None:
                self._follow("followed", trainers, until=late.gap_at)
                self._stop_capture()
                self._give_base(trainers, outcome)
            self._follow("followed", trainers, until=None)
        finally:
            trainers.kill()
        self._catch_up(Step(plan.steps))
        outcome.final = trainer_digests(plan.digests).get(Step(plan.steps), {})
        return self._stop_services(outcome)

    def _stop_capture(self) -> None:
        """Killed, and kept from coming back: what the mirror carries meanwhile is gone."""
        pids = RunDir(self._plan.run).stage_pids()
        os.kill(pids[SUPERVISOR.name], signal.SIGSTOP)
        for pid in (pid for stage, pid in pids.items() if stage_named(stage).spec.brings_frames):
            os.kill(pid, signal.SIGKILL)
        Event().wait(GAP_S)
        os.kill(pids[SUPERVISOR.name], signal.SIGCONT)
        self._display.print_line(f"capture was down for {GAP_S:g} s and more")

    def _give_base(self, trainers: Trainers, outcome: DrillOutcome) -> None:
        """Of the trainer's checkpoints behind what is seen now the first that will do. With
        `save_every` the chain watches them, and takes it by itself."""
        if self._plan.save_every is not None:
            return self._await_base(trainers, outcome)
        deadline_s = time.monotonic() + LOGGED_LIMIT_S
        behind = trainers.step()
        why: Finding = NOTHING_LOGGED()
        while time.monotonic() < deadline_s:
            for step, one, other in self._pairs(behind):
                refused = _refused_base(self._plan.run, one, other)
                if refused is not None:
                    why = refused
                    continue
                outcome.bases.append(step)
                self._display.print_line(f"{one.name} is the base: {other.name} tells its place")
                return
            if trainers.ended() and not self._pairs(behind):
                why = self._too_few(behind)
                break
            Event().wait(LOOK_S)
        raise FlowCheckError(NO_BASE(why))

    def _too_few(self, behind: Step) -> Finding:
        every = self._plan.save_every or self._late.save_every
        return TRAINERS_WROTE_TOO_FEW(every=every, step=behind, steps=self._plan.steps)

    def _await_base(self, trainers: Trainers, outcome: DrillOutcome) -> None:
        """Until the watch of the folder has given the chain a base."""
        run, known, ended = RunDir(self._plan.run), len(outcome.bases), False
        behind = trainers.step()
        deadline_s = time.monotonic() + LOGGED_LIMIT_S
        while time.monotonic() < deadline_s:
            given = [one for one in last_lines(run) if one.outcome is FileOutcome.BASE]
            if len(given) > known:
                base = given[-1]
                assert base.step is not None
                outcome.bases.append(base.step)
                self._display.print_line(
                    f"the watch gave {Path(base.file).name} as the base: {base.why[0]}"
                )
                return
            if not ended and trainers.ended():
                if not self._pairs(Step(behind - 1)):  # its file may be seen as well
                    raise FlowCheckError(NO_BASE(self._too_few(behind)))
                ended, deadline_s = True, time.monotonic() + WATCH_LIMIT_S
            Event().wait(LOOK_S)
        why = [one.why[0] for one in last_lines(run) if one.why]
        raise FlowCheckError(NO_BASE(why[-1] if why else NOTHING_LOGGED()))

    def _pairs(self, behind: Step) -> list[tuple[Step, Path, Path]]:
        """(step of the first, its file, the next file) of checkpoints of later steps, in order."""
        plan = self._plan
        own = plan.trainers_folder / "job" if plan.save_every is None else plan.saves_folder
        found = checkpoints_by_step(own)
        later = [step for step in found if step > behind]
        return [(one, found[one], found[other]) for one, other in pairwise(later)]


class _ErrorLine(msgspec.Struct):
    """What a command with --json says of its error, as far as it is read here."""

    finding: Finding


def _refused_base(run: Path, one: Path, other: Path) -> Finding | None:
    """Gives a base as an operator does, by the command: it becomes the chain's user, who must read
    what is handed over. Why it was refused; None: it was taken."""
    words = ("base", one, "--then", other, "--run", run, "--json")
    done = subprocess.run(
        [sys.executable, "-m", "flowcheck", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LOGGED_LIMIT_S,
        check=False,
    )
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or [""])[-1]
    try:
        return msgspec.json.decode(last, type=_ErrorLine).finding
    except DECODE_ERRORS:
        return ERROR_TEXT(text=last, kind=f"exit code {done.returncode}")
