"""The handover to a job's later incarnation, killed before and after every change it makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chain import torch_steps
from support.incarnations import JOB, Life, floats
from support.lives import Both, Deaths
from support.staged import Chain

from flowcheck.findings.catalog.job_learning import BUCKETS_AS_BEFORE
from flowcheck.findings.catalog.job_restarts import (
    NOT_FOLLOWED,
    OTHER_PARAMETERS,
    REPLICA_KEPT,
    WAITS_FOR_BASE,
)
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Drained, Note, StepLost
from flowcheck.stages.extraction import extract_stage
from flowcheck.stages.job_learning import job_learner
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.wire.training_job.learned_job import decode_job

STEPS = 5
"""Whole ones of the first life."""


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(frames: list[Any], keep_bytes: int = 1 << 22) -> Both:
        write_pcap(tmp_path / "lives.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "lives.pcap"], 256)
        opened.append(Both(chain, replica={"keep_bytes": keep_bytes}))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def first_life() -> tuple[Life, list[np.ndarray], np.ndarray]:
    life = Life(JOB)
    told = life.generate()
    return life, [floats(g) for g in told.gradients], floats(told.weights)


def cut(life: Life) -> list[Any]:
    return life.frames_of(stop=life.starts[STEPS] + 9)


def lines(both: Both) -> list[dict[str, Any]]:
    return [json.loads(line) for line in both.chain.run.steps.read_text().splitlines()]


@pytest.mark.parametrize(
    ("resumed_from", "more", "least"),
    [
        (2, 4, 8),
        *(pytest.param(step, 1, 20, marks=pytest.mark.nightly) for step in (2, STEPS)),
    ],
)
def test_handover_killed_again_and_again_takes_every_step_once(
    play: Callable[..., Both],
    monkeypatch: pytest.MonkeyPatch,
    resumed_from: int,
    more: int,
    least: int,
) -> None:
    life, gradients, weights = first_life()
    before = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    second = Life(replace(JOB, seed=1), before[resumed_from - 1], number=1)
    later = [floats(g) for g in second.generate().gradients]
    wanted = torch_steps(weights, gradients[:resumed_from] + later, "adamw", lr=1e-3)
    both = play(cut(life) + second.frames_of())
    deaths = Deaths(monkeypatch, more)
    both.drive()
    deaths.begun = False
    assert deaths.count > least
    told = [line["parameters_sha256"] for line in lines(both)]
    assert told == [hashlib.sha256(p.tobytes()).hexdigest() for p in wanted]
    assert both.chain.heard.of(StepLost) == []
    [audit] = [json.loads(line) for line in both.chain.run.audits.read_text().splitlines()]
    assert (audit["step"], audit["passed"]) == (resumed_from, True)


@pytest.mark.parametrize(
    "whole",
    [*(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 1, 2)), 3],
)
def test_life_of_a_few_steps_is_read_with_the_habits_of_the_one_before(
    play: Callable[..., Both], whole: int
) -> None:
    """It dies within the step after `whole`; a third life goes on from its last one."""
    life, gradients, weights = first_life()
    before = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    second = Life(replace(JOB, seed=1), before[-1], number=1)
    taken = [*gradients[:STEPS], *(floats(g) for g in second.generate().gradients[:whole])]
    third = Life(replace(JOB, seed=2), torch_steps(weights, taken, "adamw", lr=1e-3)[-1], number=2)
    taken += [floats(g) for g in third.generate().gradients]
    both = play(cut(life) + second.frames_of(stop=second.starts[whole] + 9) + third.frames_of())
    both.drive()
    wanted = torch_steps(weights, taken, "adamw", lr=1e-3)
    told = [line["parameters_sha256"] for line in lines(both)]
    assert told == [hashlib.sha256(p.tobytes()).hexdigest() for p in wanted]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_what_comes_between_the_first_buckets_and_their_plan_is_left_out(
    play: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """A relaunched job pauses after its iteration 0, and goes on with a metric all-reduce that no
    iteration 0 before it had."""
    monkeypatch.setattr(job_learner, "QUIET_S", 0.0)
    monkeypatch.setattr(extract_stage, "LOOK_EVERY", 1)
    real = JobLearner.learn
    monkeypatch.setattr(JobLearner, "learn", lambda *a, **b: real(*a, **(b | {"wait_s": 10.0})))
    life, gradients, weights = first_life()
    before = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    second = Life(replace(JOB, seed=1, metric_every=every), before[-1], number=1)
    taken = [*gradients[:STEPS], *(floats(g) for g in second.generate().gradients)]
    both = play(cut(life) + second.frames_of())
    both.drive(frames=8)
    told = [line["parameters_sha256"] for line in lines(both)]
    wanted = torch_steps(weights, taken, "adamw", lr=1e-3)
    assert told == [hashlib.sha256(p.tobytes()).hexdigest() for p in wanted]
    job = decode_job(both.chain.run.learned_job.read_bytes())
    assert BUCKETS_AS_BEFORE() in job.assumed


@pytest.mark.parametrize(
    "other",
    ["weights", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("layout", "step not kept"))],
)
def test_life_that_begins_with_nothing_known_takes_no_step_and_the_replica_is_kept(
    play: Callable[..., Both], other: str
) -> None:
    life, gradients, weights = first_life()
    after = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    job, begun, keep_bytes = replace(JOB, seed=1), after[0], 1 << 22
    if other == "weights":
        begun = after[0] + np.float32(1)
    elif other == "layout":
        job, begun = replace(job, shapes=((32, 64), (64,), (10, 64), (10,))), after[STEPS - 1]
    else:
        keep_bytes = 0
    second = Life(job, begun, number=1)
    second.generate()
    both = play(cut(life) + second.frames_of(), keep_bytes)
    both.drive()
    assert [line["step"] for line in lines(both)] == list(range(1, STEPS + 1))
    [note] = [m.finding for m in both.chain.heard.of(Note) if m.finding.is_any_of(REPLICA_KEPT)]
    what = note.arguments["what"]
    refused = NOT_FOLLOWED(OTHER_PARAMETERS())
    assert what == refused if other == "layout" else what.is_any_of(WAITS_FOR_BASE)
    [kept] = both.chain.run.root.glob("kept-*/step-*")
    assert kept.name == f"step-{STEPS}"
    assert (kept / "optimizer.safetensors").stat().st_size > 2 * after[0].nbytes
    [end] = both.chain.heard.of(Drained)
    logged = 0 if other == "layout" else job.steps
    assert (end.steps, end.why) == (STEPS + logged, None if logged else note)
    assert both.chain.heard.of(StepLost) == []
    assert (incarnation_of(both.chain.run).step is None) == bool(logged)


def test_job_that_goes_on_is_not_given_up_for_one_that_begins_beside_it(
    play: Callable[..., Both],
) -> None:
    life, _, weights = first_life()
    second = Life(replace(JOB, seed=1), weights, number=1)
    second.generate()
    middle = life.starts[3]
    stop = len(life.fabric.frames)
    head = life.frames_of(stop=middle)
    tail = life.frames_of(stop=stop)[len(head) :]
    both = play(head + second.frames_of() + tail)
    both.drive()
    assert [line["step"] for line in lines(both)] == list(range(1, JOB.steps + 1))
    assert both.chain.heard.of(StepLost) == []
