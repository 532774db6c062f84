"""A copy that differs and comes when its step is whole already: before the replica takes the step,
while it does, and behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.incarnations import JOB, Life
from support.lives import Both, Killed
from support.staged import Chain

from flowcheck._core import lib
from flowcheck.findings.catalog.lost_steps import APPLIED_IN_DOUBT, COPIES_DIFFER
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Drained, Note, StepArrived, StepLost
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.replica_update.grad_norm_exchange import GradNormExchange
from flowcheck.stages.replica_update.step_log import StepLog

DOUBTFUL = 3


@pytest.fixture
def both(shm: Path, tmp_path: Path) -> Iterator[Both]:
    life = Life(JOB)
    life.generate()
    write_pcap(tmp_path / "life.pcap", life.frames_of())
    opened = Both(Chain(tmp_path, shm / "memory", [tmp_path / "life.pcap"], 256))
    yield opened
    opened.close()


def contradict(both: Both, step: int = DOUBTFUL) -> None:
    """As the extractor counts another copy of four bytes of a step that is whole."""
    with GradientShard.open(both.chain.run.shard) as shard:
        generation = shard.generation_of(step)
        assert (
            generation is not None
            and shard.generation_state(generation) == GenerationState.COMPLETE
        )
        shard.handle.header.generations[generation].conflict_bytes += 4


def taken(both: Both) -> list[int]:
    return [json.loads(line)["step"] for line in both.chain.run.steps.read_text().splitlines()]


def assert_refused(both: Both) -> None:
    both.drive()
    assert taken(both) == list(range(1, DOUBTFUL))
    lost = both.chain.heard.of(StepLost)[0]
    assert (lost.step, lost.why.is_any_of(COPIES_DIFFER)) == (DOUBTFUL, True)
    [drained] = both.chain.heard.of(Drained)
    assert drained.steps == DOUBTFUL - 1
    assert not doubtful(both)


def assert_told(both: Both) -> None:
    both.drive()
    assert taken(both) == list(range(1, JOB.steps + 1))
    assert both.chain.heard.of(StepLost) == []
    assert [(m.step, m.conflict_bytes) for m in doubtful(both)] == [(DOUBTFUL, 4)]
    told = APPLIED_IN_DOUBT(step=DOUBTFUL, bytes=4)
    assert told in [m.finding for m in both.chain.heard.of(Note)]
    assert told in assumptions_of(both.chain.run) and told.until_audit


def doubtful(both: Both) -> list[Any]:
    return [m for m in both.chain.heard.messages if type(m).__name__ == "StepDoubtful"]


def at_the_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable) -> None:
    """`then`, before the first call that it says yes to."""
    real, left = getattr(owner, name), [then]

    def changed(*words: Any, **named: Any) -> Any:
        if left and left[0](*words):
            left.pop()
        return real(*words, **named)

    monkeypatch.setattr(owner, name, changed)


def test_a_step_that_turned_doubtful_before_the_replica_looks_is_lost(both: Both) -> None:
    update, both.update.work = both.update.work, lambda: 0  # type: ignore[method-assign]
    both.update.work = lambda: update() if both.applied_iteration() < DOUBTFUL - 1 else 0
    both.drive(until=lambda: any(m.step == DOUBTFUL for m in both.chain.heard.of(StepArrived)))
    contradict(both)
    both.update.work = update
    assert_refused(both)


def test_a_step_that_turns_doubtful_while_it_is_made_is_lost(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def amid(_: Any, layout: Any, step: int, *rest: Any) -> bool:
        if step == DOUBTFUL:
            contradict(both)
        return step == DOUBTFUL

    at_the_first(monkeypatch, GradNormExchange, "clipped", amid)
    assert_refused(both)


def test_a_step_that_turns_doubtful_behind_its_commit_is_told(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GradientShard.apply

    def applied(shard: GradientShard, step: int) -> None:
        real(shard, step)
        if step == DOUBTFUL:
            contradict(both)

    monkeypatch.setattr(GradientShard, "apply", applied)
    assert_told(both)


def test_a_step_that_turned_doubtful_behind_its_commit_is_told_after_a_kill(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Any, replica: Any, *rest: Any) -> bool:
        if replica.step == DOUBTFUL and not doubted:
            doubted.append(1)
            contradict(both)
            raise Killed
        return bool(doubted)

    doubted: list[int] = []
    at_the_first(monkeypatch, StepLog, "write", killed)
    assert_told(both)


def test_what_lies_behind_a_gradient_is_not_used_where_a_copy_differs_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GradientShard.create(tmp_path / "shard", gradient_bytes=400, held_bytes=40) as shard:
        shard.begin(0, 1)
        own = shard.handle.header.generations[0]
        own.module_buffer_units = 10
        found = shard.module_buffers(0)
        assert found is not None and found.nbytes == 40

        def then(*_: Any) -> bool:
            own.module_buffer_conflict_bytes = 4
            return True

        at_the_first(monkeypatch, np, "frombuffer", then)
        assert shard.module_buffers(0) is None
        assert not lib.fc_shard_has_module_buffers(shard.handle, 0)
