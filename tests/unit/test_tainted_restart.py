"""A job that restarts from a step of which the replica lacks bytes: told by all other elements, and
the broadcast's values replace those that rest on what was lost. Judged by torch's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lives import Both, Killed
from test_base_command import Trainer, lines, notes
from test_job_restart_replica import CHANGES
from test_replica_reset import play  # noqa: F401

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.job_restarts import VALUES_OF_EARLIER_INCARNATION
from flowcheck.plane.shared_memory.merged_ranges import merged
from flowcheck.replica import weights_match
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import tainted_elements, tainted_since
from flowcheck.stages.job_state.given_checkpoint_request import request_answer, submit_patch
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, restart_verdict
from flowcheck.stages.replica_update.handover import Handover
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.step_numbers import Step

LOST, BACK, CUT = 3, 4, 5
"""The step that lacks a frame; the one that the job comes back from; whole steps of the first
life."""
END = BACK + JOB.steps
SGD = {"name": "sgd", "learning_rate": 1e-3}
ADAMW = {"name": "adamw", "learning_rate": 1e-3}


class PlainTrainer(Trainer):
    """The same by torch's SGD without momentum, which keeps nothing of an element."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3)


def lives(
    trainer: Trainer, change: Callable[[np.ndarray], object] = lambda _: None
) -> tuple[list[Any], list[np.ndarray]]:
    """Frames of two lives, of which the first lacks one amid step LOST, and [step] torch's
    parameters. change: what the second one's weights are changed by."""
    first = Life(replace(JOB, seed=1), trainer.flat(), number=0)
    wanted = [trainer.flat()]
    for gradient in first.generate().gradients[:BACK]:
        trainer.step(floats(gradient))
        wanted.append(trainer.flat())
    weights = trainer.flat()
    change(weights)
    second = Life(replace(JOB, seed=2), weights, number=1)
    for gradient in second.generate().gradients:
        trainer.step(floats(gradient))
        wanted.append(trainer.flat())
    head = first.frames_of(stop=first.starts[CUT] + 9)
    before, behind = (len(first.frames_of(stop=first.starts[step])) for step in (LOST - 1, LOST))
    # The first ones carry partial sums, which no result needs.
    largest = max(reversed(range(before, behind)), key=lambda n: len(head[n].frame))
    del head[largest]
    return head + second.frames_of(), wanted


def replica_of(both: Both) -> Replica:
    update = both.update._opened()
    assert update is not None
    return update.replica


def apart(replica: Replica) -> np.ndarray:
    """[elements] bool: not tainted."""
    kept = np.ones(replica.layout.elements, np.bool_)
    starts = {p.name: p.start for p in replica.layout.parameters}
    for name, ranges in replica.tainted.items():
        for one in ranges:
            kept[starts[name] + one.start : starts[name] + one.stop] = False
    return kept


def alike(replica: Replica, wanted: np.ndarray) -> np.ndarray:
    return replica.parameters().view(np.uint32) == wanted.view(np.uint32)


def until_judged(both: Both) -> None:
    both.drive(until=lambda: restart_verdict(both.chain.run) is not None)


def test_elements_that_the_optimizer_keeps_nothing_else_of_are_exact_again(
    play: Callable[..., Both],  # noqa: F811
) -> None:
    frames, wanted = lives(PlainTrainer())
    both = play(frames, optimizer=SGD)
    until_judged(both)
    replica = replica_of(both)
    assert (replica.step, replica.tainted) == (BACK, {})
    assert alike(replica, wanted[BACK]).all()
    [heal] = read_heal_records(both.chain.run)
    assert (heal.step, heal.at, heal.left) == (BACK, BACK, 0) and heal.elements > 0
    both.drive()
    replica = replica_of(both)
    assert (replica.step, replica.tainted, replica.commit.tainted) == (END, {}, False)
    assert alike(replica, wanted[END]).all()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(1, END + 1))
    assert [line["step"] for line in told if line.get("tainted")] == [LOST]
    assert f"{heal.elements} tainted elements took the parameters" in notes(both)


def test_elements_of_unknown_optimizer_state_stay_tainted_and_the_job_is_followed(
    play: Callable[..., Both],  # noqa: F811
) -> None:
    frames, wanted = lives(Trainer())
    both = play(frames, optimizer=ADAMW)
    until_judged(both)
    replica = replica_of(both)
    assert replica.step == BACK and alike(replica, wanted[BACK]).all()
    count = tainted_elements(replica.tainted)
    assert count > 0 and replica.commit.tainted and not read_heal_records(both.chain.run)
    both.drive()
    replica = replica_of(both)
    assert (replica.step, tainted_since(replica.tainted)) == (END, LOST)
    assert tainted_elements(replica.tainted) == count
    assert alike(replica, wanted[END])[apart(replica)].all()
    assert not alike(replica, wanted[END]).all()
    assert f"{count} tainted elements" in notes(both) and "stay tainted" in notes(both)


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_kill_at_any_change_of_the_verdict_leads_to_the_same(
    optimizer: dict[str, Any],
    play: Callable[..., Both],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames, wanted = lives(PlainTrainer() if optimizer is SGD else Trainer())
    both = play(frames, optimizer=optimizer)
    judging, left = False, set()
    judge = Handover.write_verdict

    def killed(change: Callable[..., Any], at: str) -> Callable[..., Any]:
        def perhaps(when: str) -> None:
            if judging and (at, when) in left:
                left.remove((at, when))
                raise Killed

        def changed(*words: Any, **named: Any) -> Any:
            perhaps("before")
            done = change(*words, **named)
            perhaps("behind")
            return done

        return changed

    def judged(*words: Any) -> Any:
        nonlocal judging
        judging = True
        try:
            return judge(*words)
        finally:
            judging = False

    for owner, name in (*CHANGES, (StepLog, "write"), (Replica, "take_weights")):
        if hasattr(owner, name):
            left |= {(name, "before"), (name, "behind")}
            monkeypatch.setattr(owner, name, killed(getattr(owner, name), name))
    monkeypatch.setattr(Handover, "write_verdict", judged)
    both.drive()
    assert {name for name, _ in left} <= {"write"} if optimizer is SGD else not left
    replica = replica_of(both)
    assert replica.step == END and bool(replica.tainted) == (optimizer is ADAMW)
    assert alike(replica, wanted[END])[apart(replica)].all()
    assert [line["step"] for line in lines(both)] == list(range(1, END + 1))
    assert [line["digest"] for line in lines(both)][-1] == replica.digest


def test_values_that_wait_for_a_step_are_not_taken_at_the_same_step_of_a_later_life(
    play: Callable[..., Both],  # noqa: F811
) -> None:
    frames, wanted = lives(Trainer())
    both = play(frames, optimizer=ADAMW)
    both.drive(until=lambda: both.applied_iteration() >= CUT)
    replica, run = replica_of(both), both.chain.run
    elements = replica._taint.elements_at(CUT)
    values = patch_of_sections(replica.description, replica.sections(), elements)
    asked = submit_patch(run, Step(CUT + 1), values, "step-6.pt")
    both.drive()
    answer = request_answer(run, asked)
    assert answer is not None and answer.refused is not None
    assert answer.refused == VALUES_OF_EARLIER_INCARNATION(step=CUT + 1, number=1)
    replica = replica_of(both)
    assert replica.step == END and len(replica._taint.elements_at(END)) == len(elements)
    assert alike(replica, wanted[END])[apart(replica)].all()


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_another_job_is_refused_where_an_untainted_element_differs(
    optimizer: dict[str, Any],
    play: Callable[..., Both],  # noqa: F811
) -> None:
    def changed(weights: np.ndarray) -> None:
        weights.view(np.uint32)[-1] ^= 1  # the lost frame is of another element

    frames, _ = lives(PlainTrainer() if optimizer is SGD else Trainer(), changed)
    both = play(frames, optimizer=optimizer)
    until_judged(both)
    verdict = restart_verdict(both.chain.run)
    assert verdict is not None and (verdict.step, verdict.waits) == (None, True)
    assert apart(replica_of(both))[-1]
    both.drive()
    assert incarnation_of(both.chain.run).step is None
    assert len(lines(both)) == CUT


LAYOUT = Layout.of_shapes([(10, 10), (20,)])


def replica_with(folder: Path, missing: list[tuple[int, int]], keep: int = 8) -> Replica:
    """After three steps, of which the second lacks these elements."""
    weights = np.linspace(-1, 1, LAYOUT.elements, dtype=np.float32)
    config = OptimizerConfig(name="adamw", learning_rate=1e-3)
    made = Replica.create(folder / "replica", LAYOUT, config, weights, keep_bytes=keep << 16)
    for step in (1, 2, 3):
        gradient = np.random.default_rng(step).standard_normal(LAYOUT.elements).astype(np.float32)
        lacks = missing if step == 2 else []
        for start, stop in lacks:
            gradient[start:stop] = 0
        made.apply(step, gradient, missing=[(4 * start, 4 * stop) for start, stop in lacks])
    return made


@pytest.mark.parametrize(("missing", "told"), [(60, 3), (61, None), (120, None)])
def test_most_elements_must_have_been_compared(
    missing: int, told: int | None, tmp_path: Path
) -> None:
    assert weights_match.COMPARED_SHARE == 0.5
    made = replica_with(tmp_path, [(0, missing)])
    weights = made.parameters().copy()
    weights[:missing] = 7
    assert made.step_of_weights(weights) == told
    weights[-1] += 1
    assert made.step_of_weights(weights) is None


def test_an_exact_step_is_preferred_and_of_two_tainted_ones_the_newest(tmp_path: Path) -> None:
    made = replica_with(tmp_path, [(0, 30)])
    zero = np.zeros(LAYOUT.elements, np.float32)
    first = made.sections_of(next(c for c in made._open.versions if c.step == 1))["parameters"]
    for number in range(made._open.copies):  # what no step of AdamW makes: all versions alike
        made._open.sections(number)["parameters"][30:] = 0
    assert made.step_of_weights(zero) == 3
    assert made.step_of_weights(first) == 1
    assert merged(made._taint.elements_at(3)).tolist() == [[0, 30]]
