"""What came to light behind a save reaches whoever downloads it: it is not served as exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fetching import served, verb
from support.refused_as import refused_as
from test_doubted_checkpoints import fail, persists, run_with, saved

import flowcheck
from flowcheck.config import ServeConfig
from flowcheck.findings.catalog.checkpoint_downloads import DOUBTED_BY_SERVER
from flowcheck.findings.catalog.file_audits import DOUBTED, LOAD_DOUBTED, RESTORE_DOUBTED
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.stages.checkpointing.serve_stage import catalogues_of
from flowcheck.stages.job_state.differing_steps import DifferingStep, record_differing_step
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.serve.step_catalog import StepCatalog

__all__ = ["saved"]


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> RunDir:
    """It saved steps 3, 6 and 9."""
    return run_with(tmp_path / "run", **persists(saved))


def catalogue(run: RunDir) -> StepCatalog:
    found = catalogues_of(run, run.settings(), ServeConfig())
    assert isinstance(found, StepCatalog)
    return found


def differs(run: RunDir, since: int, to: int) -> None:
    late = DifferingStep(
        time_ns=1, step=Step(since), called_exact_to=Step(to), conflict_bytes=8, elements=2
    )
    record_differing_step(run, late)


def nested(levels: int) -> Finding:
    """Findings in findings, whose sentences need more of the stack than reading them does."""
    found = Finding("x.y")
    for _ in range(levels):
        found = Finding(RESTORE_DOUBTED.code, {"step": 1, "why": found})
    return found


def test_a_step_behind_a_failed_audit_is_refused_as_it_is_beside_its_run(
    run: RunDir, tmp_path: Path
) -> None:
    own = catalogue(run)
    with served(own) as url:
        assert flowcheck.load(url)["step"] == 9
        fail(run)
        for step in (None, 6):
            with refused_as(LOAD_DOUBTED) as refused:
                flowcheck.load(url, step)
            why = refused.value.finding.arguments["why"]
            assert isinstance(why, Finding) and why.is_any_of(DOUBTED)
        assert flowcheck.load(url, 3)["step"] == 3, "an audit found it equal"
        assert flowcheck.load(url, despite_audit=True)["step"] == 9

        def request(*, despite_audit: bool) -> RestoreRequest:
            source = StepSource(url=url, step=Step(6))
            out = tmp_path / "out.pt"
            return RestoreRequest(
                source=source, output=out, form="torch", despite_audit=despite_audit
            )

        with refused_as(RESTORE_DOUBTED):
            restore_command.restore(request(despite_audit=False))
        [done] = restore_command.restore(request(despite_audit=True))
    assert done.doubt is not None and done.doubt.is_any_of(DOUBTED)
    with refused_as(LOAD_DOUBTED):  # what was made of it says so, wherever it is
        flowcheck.load(tmp_path / "out.pt")


def test_the_newest_is_one_of_which_no_copies_differed_behind_it(run: RunDir) -> None:
    differs(run, 7, 9)
    with served(catalogue(run)) as url:
        assert flowcheck.load(url)["step"] == 6
        with refused_as(LOAD_DOUBTED) as refused:
            flowcheck.load(url, 9)
        why = refused.value.finding.arguments["why"]
        assert isinstance(why, Finding) and why.is_any_of(CALLED_EXACT_BEFORE)
        differs(run, 1, 6)
        with refused_as(LOAD_DOUBTED):  # none is left: the newest is given, and says so
            flowcheck.load(url)


def test_a_folder_that_lies_in_its_run_is_asked_of_it_too(run: RunDir, saved: Path) -> None:
    saved.rename(run.root / "kept")
    fail(run)
    with verb(str(run.root / "kept")) as url, refused_as(LOAD_DOUBTED):
        flowcheck.load(url)


@pytest.mark.parametrize(
    "doubt",
    [
        {"code": "audit.of_a_later_release", "sentence": "it is \x1b[31mwrong\n"},
        {"code": "learn.some_fact", "arguments": {"x": "y" * 9000}},
        {
            "code": DOUBTED.code,
            "arguments": {"file": "\x1b[31m", "step": 1, "tensor": "", "equal": 0},
        },
        {"code": RESTORE_DOUBTED.code, "arguments": {"step": 1, "why": nested(300)}},
    ],
)
def test_a_doubt_that_this_release_does_not_know_is_still_one(
    run: RunDir, doubt: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = catalogue(run)
    told = Finding(**doubt)  # type: ignore[arg-type]
    monkeypatch.setattr(own, "doubts", lambda *_: (told,) * 1000)
    with served(own) as url, refused_as(LOAD_DOUBTED) as refused:
        flowcheck.load(url, 9)
    why = refused.value.finding.arguments["why"]
    assert isinstance(why, Finding) and why.is_any_of(DOUBTED_BY_SERVER)
    assert len(str(why)) < 1000 and "\x1b" not in str(why) and json.dumps(str(why))
