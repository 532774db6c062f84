"""A job that begins with a state the replica never held: its gradients wait for a base.

Judged by torch's own optimizer, which goes on from the very checkpoint that is given as the base.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.incarnations import JOB, Life, floats
from support.lifecycle import checkpoints, waiting
from support.lives import Both, Deaths
from support.refused_as import refused_as
from support.room import no_room
from support.staged import Chain

from flowcheck.config import encode_config
from flowcheck.findings.catalog.base_checkpoints import NOT_WHAT_IT_BEGAN_WITH
from flowcheck.findings.catalog.lost_steps import STEP_LOST
from flowcheck.findings.catalog.refused_restores import STATE_UNKNOWN
from flowcheck.findings.catalog.replica_update_notes import EMPTY_STATE
from flowcheck.findings.catalog.trainer_settings import SETTING_DIFFERS
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Drained, Note, StepLost
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.replica.taint import tainted_elements, tainted_since
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.given_checkpoint_request import submit_request
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import RequestKind
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 5
BASE = 37
"""The step the trainer resumed from, far from any the replica took."""


class Trainer:
    """torch's AdamW over the job's parameters, and its checkpoints."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in JOB.shapes]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)

    def flat(self) -> np.ndarray:
        return np.concatenate([p.detach().reshape(-1).numpy() for p in self.parameters]).copy()

    def step(self, gradient: np.ndarray) -> str:
        """One step; sha256 of the parameters after it."""
        start = 0
        for p in self.parameters:
            part = gradient[start : start + p.numel()].copy()
            p.grad = torch.from_numpy(part).reshape(p.shape)
            start += p.numel()
        self.optimizer.step()
        return hashlib.sha256(self.flat().tobytes()).hexdigest()

    def save(self, file: Path, step: int) -> Path:
        model = {f"layer.{n}": p.detach() for n, p in enumerate(self.parameters)}
        state = {"model": model, "optimizer": self.optimizer.state_dict(), "step": step}
        torch.save(state, file)
        return file


@pytest.fixture
def resumed(tmp_path: Path) -> tuple[Trainer, Path]:
    """A trainer at step BASE, and its checkpoint."""
    trainer = Trainer()
    random = np.random.default_rng(5)
    for _ in range(BASE):
        trainer.step(random.standard_normal(trainer.flat().size, np.float32))
    return trainer, trainer.save(tmp_path / "step-37.pt", BASE)


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(frames: list[Any], **settings: Any) -> Both:
        write_pcap(tmp_path / "lives.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "lives.pcap"], 256)
        opened.append(Both(chain, **settings))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def frames_of(trainer: Trainer, *, after: Life | None) -> tuple[list[Any], list[str]]:
    """What the mirror shows of a job that resumes there; and its parameters step by step."""
    second = Life(replace(JOB, seed=1), trainer.flat(), number=int(after is not None))
    gradients = [floats(g) for g in second.generate().gradients]
    head = after.frames_of(stop=after.starts[STEPS] + 9) if after is not None else []
    return head + second.frames_of(), [trainer.step(g) for g in gradients]


def first_life() -> Life:
    life = Life(JOB)
    life.generate()
    return life


def lines(both: Both) -> list[dict[str, Any]]:
    return [json.loads(line) for line in both.chain.run.steps.read_text().splitlines()]


def notes(both: Both) -> str:
    return "\n".join(str(m.finding) for m in both.chain.heard.of(Note))


@pytest.mark.parametrize("log_bytes", [1 << 20, 1 << 14])
def test_what_was_logged_is_taken_on_the_base_and_the_job_is_followed_on(
    play: Callable[..., Both], resumed: tuple[Trainer, Path], tmp_path: Path, log_bytes: int
) -> None:
    """log_bytes: in memory; the second size makes it go on in a file."""
    trainer, file = resumed
    frames, wanted = frames_of(trainer, after=first_life())
    log = {"memory_bytes": log_bytes, "file": str(tmp_path / "log"), "file_bytes": 1 << 20}
    both = play(frames, gradient_log=log)
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 3)
    assert incarnation_of(both.chain.run).step is None
    assert [line["step"] for line in lines(both)] == list(range(1, STEPS + 1))
    verb.submit_base(both.chain.run, both.config, file)
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(1, STEPS + 1)) + list(
        range(BASE, BASE + JOB.steps + 1)
    )
    assert [line["parameters_sha256"] for line in told[STEPS + 1 :]] == wanted
    assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)
    assert not both.chain.run.gradients.exists()
    assert not (tmp_path / "log").exists()
    assert both.chain.heard.of(StepLost) == []
    [audit] = [json.loads(line) for line in both.chain.run.audits.read_text().splitlines()]
    assert (audit["step"], audit["passed"]) == (BASE, True)
    assert f"is at step {BASE}" in notes(both)
    assert EMPTY_STATE() not in assumptions_of(both.chain.run)


@pytest.mark.nightly
def test_base_taken_and_log_replayed_though_killed_at_every_change(
    play: Callable[..., Both], resumed: tuple[Trainer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, file = resumed
    frames, wanted = frames_of(trainer, after=first_life())
    both = play(frames)
    deaths = Deaths(monkeypatch)
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 3)
    deaths.begun = False
    verb.submit_base(both.chain.run, both.config, file)
    deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    deaths.begun = False
    assert deaths.count > 10
    told = lines(both)[STEPS:]
    assert [line["step"] for line in told] == list(range(BASE, BASE + JOB.steps + 1))
    assert [line["parameters_sha256"] for line in told[1:]] == wanted


def test_trainer_that_resumed_before_anything_was_seen(
    play: Callable[..., Both], resumed: tuple[Trainer, Path]
) -> None:
    trainer, file = resumed
    frames, wanted = frames_of(trainer, after=None)
    both = play(frames, replica={"keep_bytes": 1 << 22, "awaits_base": True})
    both.drive(until=lambda: both.applied_iteration() >= 2)
    assert not both.chain.run.steps.exists()
    both.chain.run.config.write_bytes(encode_config(both.config))
    with refused_as(STATE_UNKNOWN):
        newest_step(both.chain.run, settle=False)
    verb.submit_base(both.chain.run, both.config, file)
    both.drive()
    assert [line["parameters_sha256"] for line in lines(both)[1:]] == wanted
    assert lines(both)[0]["step"] == BASE


def test_another_step_and_other_settings_are_no_base(
    play: Callable[..., Both], resumed: tuple[Trainer, Path], tmp_path: Path
) -> None:
    trainer, _ = resumed
    frames, _ = frames_of(trainer, after=first_life())  # the trainer is 8 steps further now
    both = play(frames)
    both.drive()
    later = trainer.save(tmp_path / "later.pt", BASE + JOB.steps)
    with refused_as(NOT_WHAT_IT_BEGAN_WITH, tensor="param.0", step=45):
        verb.submit_base(both.chain.run, both.config, later)
    trainer.optimizer.param_groups[0]["eps"] = 1e-6
    with refused_as(SETTING_DIFFERS, group=0, setting="eps", file="1e-06", stated="1e-08"):
        verb.submit_base(both.chain.run, both.config, trainer.save(tmp_path / "other.pt", BASE))
    assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)


def test_no_room_for_a_base_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    with no_room(1000), pytest.raises(OSError, match=r"File too large.*base\.safetensors"):
        sections = {"parameters": np.zeros(10_000, np.float32)}
        submit_request(run, RequestKind.BASE, BASE, sections, "step-37.pt")
    assert not list(run.learned_folder.iterdir())


def test_full_log_says_so_and_the_replica_stops_behind_it(
    play: Callable[..., Both], resumed: tuple[Trainer, Path]
) -> None:
    trainer, file = resumed
    frames, wanted = frames_of(trainer, after=first_life())
    both = play(frames, gradient_log={"memory_bytes": 4096 + 3 * 12288})
    both.drive()
    assert "the gradient log is full after 3 steps" in notes(both)
    verb.submit_base(both.chain.run, both.config, file)
    both.drive()
    told = lines(both)[STEPS:]
    assert [line["step"] for line in told] == list(range(BASE, BASE + 4))
    assert [line["parameters_sha256"] for line in told[1:]] == wanted[:3]
    assert incarnation_of(both.chain.run).step == BASE


def test_a_loss_behind_a_base_is_named_by_the_trainers_step(
    play: Callable[..., Both], resumed: tuple[Trainer, Path]
) -> None:
    trainer, file = resumed
    frames, _ = frames_of(trainer, after=first_life())
    largest = max(len(one.frame) for one in frames)
    last = max(n for n, one in enumerate(frames) if len(one.frame) == largest)
    both = play([frame for n, frame in enumerate(frames) if n != last])
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 2)
    verb.submit_base(both.chain.run, both.config, file)
    both.drive()
    lost, *_ = both.chain.heard.of(StepLost)
    assert lost.step == lines(both)[-1]["step"] + 1 == BASE + JOB.steps
    [end] = both.chain.heard.of(Drained)
    assert end.why.is_any_of(STEP_LOST) and end.why.arguments["step"] == BASE + JOB.steps


@pytest.mark.parametrize("early", [True, False])
def test_a_loss_behind_a_base_costs_its_elements_alone(
    early: bool, play: Callable[..., Both], resumed: tuple[Trainer, Path]
) -> None:
    """early: the step that lacks bytes is there before the logged ones are applied."""
    trainer, file = resumed
    frames, _ = frames_of(trainer, after=first_life())
    largest = max(len(one.frame) for one in frames)
    full = [n for n, one in enumerate(frames) if len(one.frame) == largest]
    gone = full[len(full) * 7 // 8]
    both = play([frame for n, frame in enumerate(frames) if n != gone])
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 2)
    verb.submit_base(both.chain.run, both.config, file)
    if early:
        while not both.extract.drained() and both.extract.work():
            both.chain.feed(64)
    both.drive()
    told = lines(both)[STEPS:]
    assert [line["step"] for line in told] == list(range(BASE, BASE + JOB.steps + 1))
    assert both.chain.heard.of(StepLost) == []
    update = both.update._opened()
    assert update is not None
    tainted = update.replica.tainted
    missing = [line["step"] for line in told if line.get("missing_elements")]
    assert missing and tainted_since(tainted) == missing[0]
    assert 0 < tainted_elements(tainted) <= largest // 4
    apart = np.ones(trainer.flat().size, np.bool_)
    starts = {p.name: p.start for p in update.replica.layout.parameters}
    for name, ranges in tainted.items():
        for one in ranges:
            apart[starts[name] + one.start : starts[name] + one.stop] = False
    alike = update.replica.parameters().view(np.uint32) == trainer.flat().view(np.uint32)
    assert alike[apart].all()


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 100))
def test_every_iteration_of_a_step_belongs_to_it(
    iterations: int, step: int, each: int, steps: int
) -> None:
    followed = Incarnation(iterations=iterations, step=step)
    ends = followed.iteration_of(step + steps, each)
    assert followed.step_of(ends, each) == step + steps
    within = range(ends - each + 1, ends + 1)
    assert {followed.step_within(iteration, each) for iteration in within} == {step + steps}
    assert all(followed.step_of(iteration, each) is None for iteration in within[:-1])
