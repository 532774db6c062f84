"""A step that lacks bytes, by a rule in which each byte may matter to every element: the replica
waits before it, and one checkpoint of the trainer is enough to go on, bit for bit.

Judged by torch's own optimizer and clipping, whose checkpoints are given.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lives import Both, Deaths
from support.staged import Chain
from test_base_command import STEPS, Trainer, first_life, frames_of, lines, notes

from flowcheck.config import encode_config
from flowcheck.findings.catalog.base_checkpoints import WAIT_ENDED
from flowcheck.findings.catalog.job_restarts import (
    GRADIENTS_NOT_KEPT,
    STATE_AWAITED,
    STEP_BEFORE_LOSS,
)
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import StepLost
from flowcheck.ops.trainer_checkpoint import base_command
from flowcheck.ops.trainer_checkpoint.audit_command import read_checkpoint_template
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import look_at
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import audit_file
from flowcheck.ops.trainer_checkpoint.replica_reset import submit_checkpoint
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audited_files import FileOutcome
from flowcheck.stages.job_state.given_checkpoint_request import request_answer
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, read_record
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.run_directory.run_dir import RunDir

CLIP = 0.5
LOST = 5
SETTINGS: dict[str, Any] = {
    "replica": {"keep_bytes": 1 << 22, "joins": True},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "clip_norm": CLIP},
}


class Clipping(Trainer):
    """A trainer that clips by the norm over all gradients."""

    def step(self, gradient: Any) -> str:
        start = 0
        for p in self.parameters:
            part = gradient[start : start + p.numel()].copy()
            p.grad = torch.from_numpy(part).reshape(p.shape)
            start += p.numel()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        return hashlib.sha256(self.flat().tobytes()).hexdigest()


class Lossy:
    """The job, what torch makes of it, and its frames without one of each of some steps."""

    def __init__(self, folder: Path, lost: tuple[int, ...]) -> None:
        trainer = Clipping()
        life = Life(JOB, trainer.flat())
        gradients = [floats(g) for g in life.generate().gradients]
        self.hashes, self.files = [], {}
        for step, gradient in enumerate(gradients, 1):
            self.hashes.append(trainer.step(gradient))
            self.files[step] = trainer.save(folder / f"step-{step}.pt", step)
        self.frames = life.frames_of()
        bounds = [len(life.frames_of(stop=start)) for start in life.starts]
        bounds.append(len(self.frames))
        largest = max(len(one.frame) for one in self.frames)
        for step in sorted(lost, reverse=True):
            full = [
                n for n in range(bounds[step - 1], bounds[step])
                if len(self.frames[n].frame) == largest
            ]  # fmt: skip
            del self.frames[full[-1]]


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(lossy: Lossy, **settings: Any) -> Both:
        write_pcap(tmp_path / "seen.pcap", lossy.frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "seen.pcap"], 256)
        opened.append(Both(chain, **SETTINGS | settings))
        chain.run.config.write_bytes(encode_config(opened[-1].config))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def give(both: Both, file: Path) -> str:
    run = both.chain.run
    return submit_checkpoint(run, read_checkpoint_template(run, file), file)


def answered(both: Both, request: str) -> Any:
    both.drive(until=lambda: request_answer(both.chain.run, request) is not None)
    answer = request_answer(both.chain.run, request)
    assert answer is not None
    return answer.refused


@pytest.mark.parametrize("given", [LOST, LOST + 2, JOB.steps])
def test_one_checkpoint_of_the_step_or_later_is_enough(
    given: int, play: Callable[..., Both], tmp_path: Path
) -> None:
    lossy = Lossy(tmp_path, (LOST,))
    both = play(lossy)
    both.drive()
    run = both.chain.run
    assert [line["step"] for line in lines(both)] == list(range(1, LOST))
    lost, *more = both.chain.heard.of(StepLost)
    assert (lost.step, more) == (LOST, [])  # type: ignore[attr-defined]
    assert incarnation_of(run).lacking == LOST
    assert read_record(run).update.state is ReplicaState.AWAITING_BASE
    assert peek_versions(run.replica)[1][-1] == LOST - 1
    refused = answered(both, give(both, lossy.files[LOST - 1]))
    assert refused.is_any_of(STEP_BEFORE_LOSS)
    assert answered(both, give(both, lossy.files[given])) is None
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == [*range(1, LOST), *range(given, JOB.steps + 1)]
    assert [line["parameters_sha256"] for line in told] == [
        *lossy.hashes[: LOST - 1],
        *lossy.hashes[given - 1 :],
    ]
    assert incarnation_of(run).lacking is None
    assert any(found.is_any_of(STATE_AWAITED) for found in assumptions_of(run))


def test_a_checkpoint_given_early_waits_for_its_step(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    lossy = Lossy(tmp_path, (LOST,))
    both = play(lossy)
    both.drive(until=lambda: incarnation_of(both.chain.run).lacking is not None, frames=8)
    request = give(both, lossy.files[JOB.steps])
    assert answered(both, request) is None
    both.drive()
    assert lines(both)[-1]["parameters_sha256"] == lossy.hashes[-1]


def test_a_watched_folder_gives_it(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = Lossy(tmp_path, (LOST,))
    both = play(lossy)
    both.drive()
    monkeypatch.setattr(RunDir, "stage_pids", lambda _: {"update": os.getpid()})
    files = {one.path: one for one in look_at(tmp_path).candidates}
    told: list[Any] = []
    for step in (LOST - 2, LOST + 1):
        one = files[lossy.files[step]]
        words = both.chain.run, tmp_path, one, told
        reading = Thread(target=lambda w=words: told.append(audit_file(*w)))
        reading.start()
        while reading.is_alive():
            both.drive()  # ends where nothing is asked yet
            reading.join(0.05)
    before, given = told
    assert (before.outcome, before.heal) == (FileOutcome.EQUAL, None)
    assert given.outcome is FileOutcome.NOT_COMPARED and given.heal.is_any_of(WAIT_ENDED)
    both.drive()
    assert lines(both)[-1]["parameters_sha256"] == lossy.hashes[-1]


def test_another_step_that_lacks_bytes_moves_the_wait(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    lossy = Lossy(tmp_path, (3, 6))
    both = play(lossy)
    both.drive()
    assert incarnation_of(both.chain.run).lacking == 6
    refused = answered(both, give(both, lossy.files[4]))
    assert refused.is_any_of(STEP_BEFORE_LOSS)
    assert answered(both, give(both, lossy.files[6])) is None
    both.drive()
    assert [line["step"] for line in lines(both)] == [1, 2, 6, 7, 8]
    assert lines(both)[-1]["parameters_sha256"] == lossy.hashes[-1]


def test_steps_that_no_longer_lie_in_the_log_are_named(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    lossy = Lossy(tmp_path, (3,))
    both = play(lossy, gradient_log={"memory_bytes": 1 << 15})
    both.drive()
    refused = answered(both, give(both, lossy.files[3]))
    assert refused.is_any_of(GRADIENTS_NOT_KEPT)
    assert answered(both, give(both, lossy.files[JOB.steps])) is None
    both.drive()
    assert lines(both)[-1]["parameters_sha256"] == lossy.hashes[-1]


def test_waits_and_goes_on_though_killed_at_every_change(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = Lossy(tmp_path, (LOST,))
    both = play(lossy)
    deaths = Deaths(monkeypatch)
    both.drive(until=lambda: len(lines(both)) >= 2 if both.chain.run.steps.exists() else False)
    deaths.begun = True
    both.drive()
    deaths.begun = False
    request = give(both, lossy.files[LOST + 1])
    deaths.begun = True
    assert answered(both, request) is None
    both.drive()
    assert deaths.count > 3
    told = {line["step"]: line["parameters_sha256"] for line in lines(both)}
    assert told[JOB.steps] == lossy.hashes[-1]
    assert sorted(told) == [*range(1, LOST), *range(LOST + 1, JOB.steps + 1)]


def test_behind_a_full_log_a_step_that_lacks_bytes_keeps_nothing_from_its_end(
    shm: Path, tmp_path: Path
) -> None:
    trainer = Clipping()
    trainer.step(np.random.default_rng(5).standard_normal(trainer.flat().size, np.float32))
    file = trainer.save(tmp_path / "base.pt", 1)
    frames, wanted = frames_of(trainer, after=first_life())
    largest = max(len(one.frame) for one in frames)
    full = [n for n, one in enumerate(frames) if len(one.frame) == largest]
    del frames[full[len(full) * 7 // 8]]
    write_pcap(tmp_path / "seen.pcap", frames)
    chain = Chain(tmp_path, shm / "memory", [tmp_path / "seen.pcap"], 256)
    both = Both(chain, **SETTINGS, gradient_log={"memory_bytes": 4096 + 3 * 12288})
    try:
        both.drive(until=lambda: both.applied_iteration() >= STEPS + 5)
        assert "the gradient log is full after 3 steps" in notes(both)
        base_command.submit_base(chain.run, both.config, file)
        both.drive()
        told = lines(both)  # torch's optimizer had taken one step
        assert [line["step"] for line in told] == [1, 2, 3, 4]
        assert [line["parameters_sha256"] for line in told[1:]] == wanted[:3]
        assert both.chain.heard.of(StepLost)
        assert both.applied_iteration() == STEPS + JOB.steps  # nothing waits
    finally:
        both.close()


def test_without_a_live_source_it_stops_as_before(
    play: Callable[..., Both], tmp_path: Path
) -> None:
    lossy = Lossy(tmp_path, (LOST,))
    both = play(lossy, replica={"keep_bytes": 1 << 22})
    both.drive()
    assert incarnation_of(both.chain.run).lacking is None
    assert [line["step"] for line in lines(both)] == list(range(1, LOST))
    assert "stops" in notes(both) or both.chain.heard.of(StepLost)
