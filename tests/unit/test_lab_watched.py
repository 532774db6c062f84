"""A drill of the lab says how it is watched, and what is still to come."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.refused_as import refused_as

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.file_audits import THERE_BEFORE
from flowcheck.findings.catalog.lab_runs import TRAINERS_WROTE_TOO_FEW
from flowcheck.lab import cluster
from flowcheck.lab.job_run.run_display import Display
from flowcheck.lab.job_run.run_plan import LabPlan, LateJoin
from flowcheck.lab.restore_drill import kill_restore_drill, late_join_drill
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class Ready:
    """Services that are up at once, in a run directory that is told."""

    def __init__(self, job: Path, run: Path, log: Path, *, enter: Any) -> None:
        run.mkdir()

    def wait_listening(self) -> None:
        pass


def drill(folder: Path, hosts: int) -> tuple[kill_restore_drill.KillRestoreDrill, io.StringIO]:
    """A run of which nothing was started, and what it says."""
    made = cluster.Cluster(
        name="watched", hosts=hosts, switch="bridge", mirrors=cluster.parse_mirrors(["p0:both"])
    )
    plan = LabPlan(cluster=made, folder=folder, steps=4, kill_at=2, arguments=())
    plan.services_folder.mkdir(parents=True)
    display, said = Display(plan.steps, quiet=False), io.StringIO()
    display._console = Console(file=said, width=40)
    return kill_restore_drill.KillRestoreDrill(plan, display), said


def test_the_command_that_watches_it_is_said_whole_and_finds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_restore_drill, "FlowCheckServices", Ready)
    run, said = drill(tmp_path, 2)
    run._start_services()
    (line,) = [line for line in said.getvalue().splitlines() if "flowcheck top" in line]
    words = line.partition("flowcheck ")[2].split()
    assert words == ["top", "--run", str(tmp_path / "services" / "run")]
    assert Path(words[2]).is_dir()


@pytest.mark.parametrize(("hosts", "said_times"), [(2, "twice"), (3, "once")])
def test_what_its_controls_take_is_told_by_what_the_job_took(
    tmp_path: Path, hosts: int, said_times: str
) -> None:
    run, said = drill(tmp_path, hosts)
    run._say_controls(kill_restore_drill.DrillOutcome(4, restored_step=3), 300.0)
    assert f"took 300 s; what its end is compared with takes about as long {said_times}" in (
        said.getvalue()
    )


def test_without_a_control_nothing_is_said_of_any(tmp_path: Path) -> None:
    run, said = drill(tmp_path, 3)
    run._say_controls(kill_restore_drill.DrillOutcome(4), 300.0)
    assert said.getvalue() == ""


class Over:
    """Trainers that have made all their steps."""

    def ended(self) -> bool:
        return True

    def step(self) -> int:
        return 8


@pytest.mark.parametrize("save_every", [None, 2])
def test_a_job_that_is_over_too_soon_to_be_joined_is_told_as_that(
    tmp_path: Path, save_every: int | None
) -> None:
    """Its last file was there when FlowCheck came, or none followed it."""
    made, _ = drill(tmp_path, 2)
    late = LateJoin(join_at=Step(6))
    plan = replace(made._plan, steps=8, kill_at=None, late_join=late, save_every=save_every)
    folder = plan.trainers_folder / "job" if save_every is None else plan.saves_folder
    folder.mkdir(parents=True)
    for step in range(0, 9, 2):
        (folder / f"step-{step}.pt").touch()
    plan.run.mkdir()
    before = AuditedFile(
        time_ns=1, folder=str(folder), file=str(folder / "step-8.pt"), stamp="",
        outcome=FileOutcome.STALE, why=(THERE_BEFORE(),),
    )  # fmt: skip
    RunDir(plan.run).audit_files.write_bytes(msgspec.json.encode(before) + b"\n")
    run: Any = late_join_drill.LateJoinDrill(plan, made._display)
    wanted = {"step": 8, "steps": 8, "every": save_every or 5}
    with refused_as(TRAINERS_WROTE_TOO_FEW, kind=FlowCheckError, **wanted):
        run._give_base(Over(), kill_restore_drill.DrillOutcome(8))
