"""Since which step a replica is in doubt, by the audits on record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowcheck.findings.catalog.file_audits import DOUBTED, FILE_DAMAGED, NO_STEP
from flowcheck.messages import AuditRecord
from flowcheck.stages.job_state.audit_history import (
    audit_history_of,
    doubt_among,
    doubts_of,
    history_of,
)
from flowcheck.stages.run_directory.run_dir import RunDir


def audit(step: int, *, passed: bool = True, optimizer: bool = True, base: bool = False, **more):
    file = more.pop("file", f"{step}.pt")
    first = None if passed else "w/exp_avg"
    tensors = 0 if base else 4
    return AuditRecord(
        step=step,
        passed=passed,
        file=file,
        tensors=tensors,
        first_difference=first,
        optimizer=optimizer,
        base=base,
        **more,
    )


def test_a_difference_stays_whatever_later_steps_are() -> None:
    history = history_of([audit(3), audit(6, passed=False), audit(9), audit(12)])
    assert history.failed is not None and history.failed.step == 6
    assert history.equal_step == 3
    found = DOUBTED(file="6.pt", step=6, tensor="w/exp_avg", equal=3)
    assert history.doubt_of() == history.doubt_of(12) == history.doubt_of(4) == found
    assert history.doubt_of(3) is None and history.doubt_of(1) is None
    assert doubt_among([found]) == found and doubt_among([NO_STEP()]) is None


def test_without_an_equal_step_before_every_step_is_in_doubt() -> None:
    history = history_of([audit(6, passed=False), audit(9)])
    assert history.equal_step is None
    assert history.doubt_of(1) == DOUBTED(file="6.pt", step=6, tensor="w/exp_avg", equal=NO_STEP())


@pytest.mark.parametrize("copy_first", [True, False])
def test_a_damaged_copy_is_told_apart_by_an_equal_file_of_its_step(copy_first: bool) -> None:
    both = [audit(6, passed=False, file="rank-1.pt"), audit(6, file="rank-0.pt")]
    history = history_of(both if copy_first else both[::-1])
    assert history.failed is None and history.doubt_of() is None
    damaged = FILE_DAMAGED(file="rank-1.pt", step=6, tensor="w/exp_avg", equal="rank-0.pt")
    assert history.damaged == (damaged,)


def test_parameters_alone_do_not_answer_for_an_optimizers_state() -> None:
    history = history_of([audit(6, passed=False), audit(6, optimizer=False)])
    assert history.failed is not None and not history.damaged


def test_only_a_base_ends_the_doubt() -> None:
    history = history_of([audit(6, passed=False), audit(8, base=True), audit(9)])
    assert history.doubt_of() is None and history.equal_step == 9
    again = history_of([audit(6, passed=False), audit(8, base=True), audit(9, passed=False)])
    assert again.failed is not None and again.failed.step == 9


def test_torn_lines_and_a_missing_file_are_no_audits(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert audit_history_of(run).last is None and doubts_of(run) == ()
    whole = msgspec.json.encode(audit(6, passed=False))
    run.audits.write_bytes(whole[:-9] + b"\n" + whole + b"\n" + whole[:20])
    history = audit_history_of(run)
    assert history.failed == history.last == audit(6, passed=False)
    with run.audits.open("ab") as log:
        log.write(b"\n" + msgspec.json.encode(audit(6, base=True)) + b"\n")
    assert doubts_of(run) == (), "a file that grew is read again"
