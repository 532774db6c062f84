"""A followed replica goes on from the trainer's own file of a step it took.

Judged by torch's own optimizer, in a trainer that did something no frame shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lifecycle import checkpoints, waiting
from support.lives import Both, Deaths
from support.refused_as import refused_as
from support.staged import Chain
from test_base_command import Trainer, lines, notes

from flowcheck.atomic_write import write_atomically
from flowcheck.config import encode_config
from flowcheck.findings.catalog.base_checkpoints import NOTHING_TO_REPLACE
from flowcheck.findings.catalog.job_restarts import GRADIENTS_NOT_KEPT, STATE_DIFFERED
from flowcheck.findings.catalog.replica_update_notes import EMPTY_STATE
from flowcheck.findings.catalog.run_directories import REQUEST_WITHDRAWN
from flowcheck.findings.catalog.step_arithmetic import LOSS_SCALE, LOSS_SCALE_COUNTED
from flowcheck.findings.catalog.trainer_settings import SETTING_DIFFERS
from flowcheck.findings.finding import Finding
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import AuditRecord
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.ops.trainer_checkpoint import replica_reset
from flowcheck.ops.trainer_checkpoint.replica_reset import submit_checkpoint
from flowcheck.replica.optimizer_step.loss_scale_evidence import ScaleEvidence
from flowcheck.stages.job_state.assumptions import add_assumption, assumptions_of

UNSEEN, SAVED, GIVEN = 2, 3, 6
"""The step behind which the trainer changed a weight; that of its file; the replica's when it is
given the file."""


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(frames: list[Any], **settings: Any) -> Both:
        write_pcap(tmp_path / "lives.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "lives.pcap"], 256)
        opened.append(Both(chain, **settings))
        opened[-1].chain.run.config.write_bytes(encode_config(opened[-1].config))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def trained(folder: Path, *, unseen: bool = True) -> tuple[list[Any], list[str], Path]:
    """Frames, sha256 of the trainer's parameters step by step, and its file of step SAVED."""
    trainer = Trainer()
    life = Life(replace(JOB, seed=1), trainer.flat(), number=0)
    wanted = []
    for step, gradient in enumerate(life.generate().gradients, 1):
        wanted.append(trainer.step(floats(gradient)))
        if step == UNSEEN and unseen:
            with torch.no_grad():
                trainer.parameters[0].mul_(1.5)
        if step == SAVED:
            trainer.save(folder / "step-3.pt", step)
    return life.frames_of(), wanted, folder / "step-3.pt"


def given(both: Both, file: Path) -> str:
    return submit_checkpoint(
        both.chain.run, audits.read_checkpoint_template(both.chain.run, file), file
    )


def shown(both: Both) -> list[tuple[int, str]]:
    return [(line["step"], line["parameters_sha256"]) for line in lines(both)]


def anchors(both: Both) -> list[dict[str, Any]]:
    return [json.loads(line) for line in both.chain.run.anchors.read_text().splitlines()]


@pytest.mark.parametrize("kills", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_steps_since_are_taken_again_on_the_trainers_bits(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    frames, wanted, file = trained(tmp_path)
    both = play(frames, gradient_log={"taken_steps": 4})
    both.drive(until=lambda: both.applied_iteration() >= GIVEN)
    before = shown(both)
    assert [sha for _, sha in before[:UNSEEN]] == wanted[:UNSEEN]
    assert before[SAVED - 1][1] != wanted[SAVED - 1]
    deaths = Deaths(monkeypatch) if kills else None
    given(both, file)
    if deaths is not None:
        deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    if deaths is not None:
        deaths.begun = False
        assert deaths.count > 8
    assert shown(both)[UNSEEN:] == list(enumerate(wanted, 1))[UNSEEN:]
    [kept] = both.chain.run.root.glob("steps-before-*.jsonl")
    assert len(kept.read_text().splitlines()) == len(before), "what was taken before stays on file"
    [line] = anchors(both)
    assert (line["step"], line["at"], line["file"]) == (SAVED, GIVEN, str(file))
    told = assumptions_of(both.chain.run)
    assert EMPTY_STATE() not in told, "the file showed all of the state"
    another = STATE_DIFFERED(step=SAVED, file=file)
    assert another in told
    for step, strikes in ((SAVED, False), (SAVED + 2, True)):
        line = AuditRecord(step=step, passed=True, file="", tensors=1)
        with both.chain.run.audits.open("ab") as log:
            log.write(msgspec.json.encode(line) + b"\n")
        left = assumptions_of(both.chain.run)
        assert (another in left) != strikes, step
    assert "goes on from step 3 of" in notes(both)


def test_without_the_gradients_since_the_file_is_refused_and_nothing_changes(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    frames, _, file = trained(tmp_path)
    both = play(frames, gradient_log={"taken_steps": 1})
    both.drive(until=lambda: both.applied_iteration() >= GIVEN)
    before = shown(both)
    given(both, file)
    both.drive()
    assert shown(both)[:GIVEN] == before[:GIVEN]
    [line] = anchors(both)
    refused = msgspec.convert(line["refused"], Finding)
    assert refused == GRADIENTS_NOT_KEPT(step=6, first=4, last=6)
    assert EMPTY_STATE() in assumptions_of(both.chain.run)
    add_assumption(both.chain.run, LOSS_SCALE())
    write_atomically(both.chain.run.scale, msgspec.json.encode(ScaleEvidence(shown=2)))
    counted = LOSS_SCALE_COUNTED(ScaleEvidence(shown=2).summary)
    assert counted in assumptions_of(both.chain.run) and counted.until_audit
    assert LOSS_SCALE() not in assumptions_of(both.chain.run)
    assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)


def test_a_file_of_the_newest_step_needs_no_gradient(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    frames, wanted, file = trained(tmp_path)
    both = play(frames)
    both.drive(until=lambda: both.applied_iteration() >= SAVED)
    given(both, file)
    both.drive()
    assert shown(both)[SAVED - 1 :] == list(enumerate(wanted, 1))[SAVED - 1 :]


def test_a_file_that_is_equal_counts_as_an_audit_and_replaces_nothing(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, _, file = trained(tmp_path, unseen=False)
    both = play(frames)
    both.drive(until=lambda: both.applied_iteration() >= GIVEN)
    monkeypatch.setattr(type(both.chain.run), "stage_pids", lambda self: {"update": 1})
    step, told = replica_reset.replace_with_checkpoint(both.chain.run, file)
    assert step == SAVED and told.is_any_of(NOTHING_TO_REPLACE)
    assert EMPTY_STATE() not in assumptions_of(both.chain.run)
    tree = torch.load(file, weights_only=True)
    tree["optimizer"]["param_groups"][0]["betas"] = (0.8, 0.9)
    torch.save(tree, tmp_path / "other.pt")
    with refused_as(
        SETTING_DIFFERS, group=0, setting="betas", file="(0.8, 0.9)", stated="(0.9, 0.999)"
    ):
        replica_reset.replace_with_checkpoint(both.chain.run, tmp_path / "other.pt")
    assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)
    monkeypatch.setattr(replica_reset, "TAKEN_LIMIT_S", 0.0)
    _, _, other = trained(tmp_path)
    with refused_as(REQUEST_WITHDRAWN, file="the file", seconds=0.0):
        replica_reset.replace_with_checkpoint(both.chain.run, other)
    assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)
