"""Which of several jobs a checkpoint is the base of: the one that bytes prove, and no other way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.base_checkpoints import (
    NO_PLACE,
    OF_JOB,
    OF_SEVERAL_JOBS,
    OF_WHICH_JOB_OPEN,
)
from flowcheck.findings.catalog.refused_commands import LATER_CHECKPOINT_OR_JOB
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.ops.trainer_checkpoint.base_proof import NO_POSITION, LogPosition
from flowcheck.stages.run_directory.run_dir import RunDir

FILE = Path("step-4.pt")
REFUSED = NO_PLACE(step=3, later=5)


@pytest.mark.parametrize(
    ("fits", "told"),
    [
        ([2], ()),
        ([], (OF_JOB(1, REFUSED), OF_JOB(2, REFUSED))),
        ([1, 2], (OF_SEVERAL_JOBS(),)),
    ],
)
def test_only_one_job_may_be_proved_to_be_it(
    fits: list[int], told: tuple[Finding, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunDir(tmp_path)
    runs = [first, first.job_run_dir(2)]

    def proved(where: RunDir, file: Path, place: LogPosition) -> SimpleNamespace:
        if where in [runs[number - 1] for number in fits]:
            return SimpleNamespace(of=where)
        raise StateError(REFUSED)

    monkeypatch.setattr(verb, "proved_base", proved)
    if not told:
        own, found = verb._of(runs, FILE, LogPosition(later_checkpoint=Path("step-6.pt")))
        assert own is runs[1] and found.of is own  # type: ignore[attr-defined]
        return
    with refused_as(OF_WHICH_JOB_OPEN, reasons=told):
        verb._of(runs, FILE, NO_POSITION)


def test_a_place_that_is_only_stated_tells_no_job(tmp_path: Path) -> None:
    runs = [RunDir(tmp_path), RunDir(tmp_path).job_run_dir(2)]
    with refused_as(LATER_CHECKPOINT_OR_JOB, kind=ConfigError, run=tmp_path):
        verb._of(runs, FILE, LogPosition(after=3))
