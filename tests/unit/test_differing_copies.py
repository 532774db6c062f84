"""Copies that differ: both values are kept, and only their elements are tainted. Judged by what the
generator sent and by torch's optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.differing import STEP, Port, changed, words_of
from support.incarnations import JOB, floats
from support.lives import Killed
from test_base_command import Trainer
from test_tainted_restart import apart, replica_of

from flowcheck.findings.catalog.lost_steps import TAINTED_LATE
from flowcheck.messages import CopiesDiffer, Note, StepApplied, StepArrived, StepDoubtful, StepLost
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.taint import tainted_since
from flowcheck.stages.extraction import differing_report
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.differing_steps import differing_steps
from flowcheck.stages.replica_update.grad_norm_exchange import GradNormExchange

ADAMW = {"name": "adamw", "learning_rate": 1e-3}
WHERE: dict[str, Callable[[Port], dict[int, list[int]]]] = {
    "word": lambda _: {2: [5]},
    "two-places": lambda _: {1: [0, 1, 9], 4: [7]},
    "message": lambda port: {n: [*range(words_of(one))] for n, one in enumerate(port.message)},
}
"""{name: {packet of the message: words of it that one mirror changed}}"""


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def port(shm: Path, tmp_path: Path, trainer: Trainer) -> Iterator[Port]:
    opened = Port(tmp_path, shm / "memory", trainer.flat(), optimizer=ADAMW)
    yield opened
    opened.both.close()


def assert_exact_but(port: Port, trainer: Trainer, elements: np.ndarray, since: int = STEP) -> None:
    """Every step is made, these elements are tainted, all others have torch's bits."""
    assert port.heard(StepLost) == []
    assert sorted({m.step for m in port.heard(StepApplied)}) == list(range(1, JOB.steps + 1))
    for gradient in port.gradients:
        trainer.step(floats(gradient))
    replica = replica_of(port.both)
    kept = apart(replica)
    assert np.array_equal(np.flatnonzero(~kept), elements)
    assert tainted_since(replica.tainted) == since
    wanted, found = trainer.flat().view("<u4"), replica.parameters().view("<u4")
    assert np.array_equal(found[kept], wanted[kept])
    assert replica.newest_exact is None or replica.newest_exact.step < since


@pytest.mark.parametrize("ring", [1, 0], ids=["wrong-second", "wrong-first"])
@pytest.mark.parametrize("where", WHERE)
def test_before_the_step_is_applied(port: Port, trainer: Trainer, where: str, ring: int) -> None:
    words = WHERE[where](port)
    count = sum(map(len, words.values()))
    port.begin(words, ring)
    port.both.drive()
    elements = port.elements_of(first_is_sent=ring == 1)
    assert len(elements) == count
    assert_exact_but(port, trainer, elements)
    told = port.heard(CopiesDiffer)[-1]
    assert (told.step, told.conflict_bytes) == (STEP, 4 * count)
    assert not port.heard(StepDoubtful)
    line = json.loads(port.run.steps.read_text().splitlines()[STEP - 1])
    assert sum(line["tainted"].values()) == count
    [source] = {(one["ring"], one["flow"]) for one in port.reported()}
    assert source[0] == 1 and source[1]
    sent = {int.from_bytes(port.message[n].frame[71:74], "big") for n in words}  # as tshark has it
    assert {one["psn"] for one in port.reported()} == sent


def test_a_damaged_mirror_that_lags_writes_no_file_at_each_look(
    port: Port, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of one packet, each another word of which is damaged, and a look behind each: files
    are written at first and as their number doubles, and the last one has all."""
    monkeypatch.setattr(differing_report, "REPORT_EVERY_S", 1e9)
    port.begin()
    work = port.hold_update(STEP - 1)
    port.both.drive(until=lambda: {m.step for m in port.heard(StepArrived)} >= {STEP, STEP + 1})
    count = words_of(port.message[2])
    assert count >= 64
    for word in range(count):
        port.come(changed(port.message[2], [word]))
        port.both.extract._followed.generations.report_late_conflicts()
    told = [m.conflict_bytes for m in port.heard(CopiesDiffer)]
    assert all(later >= 2 * one for one, later in pairwise(told)) and len(told) >= 3
    port.both.update.work = work  # type: ignore[method-assign]
    port.both.drive()
    elements = port.elements_of(first_is_sent=True)
    assert len(elements) == count
    assert_exact_but(port, trainer, elements)


@pytest.mark.parametrize("first", [False, True], ids=["wrong-second", "wrong-first"])
@pytest.mark.parametrize("where", ["word", "two-places", "packet"])
def test_staged_before_the_job_is_learned(
    port: Port, trainer: Trainer, where: str, first: bool
) -> None:
    """One mirror brings both copies; the whole job is staged when it is read."""
    whole = {7: [*range(words_of(port.message[7]))]}
    words = WHERE[where](port) if where in WHERE else whole
    port.begin_with_both(words, changed_first=first)
    port.both.drive(frames=port.both.chain.slots, patient=True)
    elements = port.elements_of(first_is_sent=not first)
    assert len(elements) == sum(map(len, words.values()))
    assert all(one["later"] for one in port.reported())
    assert_exact_but(port, trainer, elements)
    assert not port.heard(StepDoubtful)
    assert {one["ring"] for one in port.reported()} == {0}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_behind_the_step_and_the_next_one(
    port: Port, trainer: Trainer, where: str, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were called exact till then; now they are tainted since that step, in each version."""
    words = WHERE[where](port)
    count = sum(map(len, words.values()))
    port.begin()
    work = port.hold_update(STEP - 1)
    arrived = (STEP, STEP + 1)
    port.both.drive(until=lambda: {m.step for m in port.heard(StepArrived)} >= {*arrived})
    port.both.update.work = work  # type: ignore[method-assign]
    while port.both.applied_iteration() < STEP + 1:
        work()
    newest = replica_of(port.both).newest_exact
    assert newest is not None and newest.step == STEP + 1
    port.come(*(changed(port.message[n], own) for n, own in words.items()))
    if killed:
        real, left = Replica.taint_since, [1]

        def taint_since(self: Replica, *rest: Any) -> Any:
            done = real(self, *rest)
            if left and left.pop():
                raise Killed
            return done

        monkeypatch.setattr(Replica, "taint_since", taint_since)
        with pytest.raises(Killed):
            port.both.update.work()
        port.both.update = port.both._again(port.both.update, port.both._update)
    port.both.update.work()
    replica = replica_of(port.both)
    assert replica.step == STEP + 1 and replica.versions[-2:] == arrived
    assert replica.newest_exact is None or replica.newest_exact.step < STEP
    port.both.drive()
    elements = port.elements_of(first_is_sent=True)
    assert len(elements) == count
    assert_exact_but(port, trainer, elements)
    told = port.heard(StepDoubtful)[-1]
    assert (told.step, told.elements, told.called_exact_to) == (STEP, count, STEP + 1)
    assert told.conflict_bytes >= 4 * count
    said = TAINTED_LATE(step=STEP, bytes=told.conflict_bytes, elements=count, to=STEP + 1)
    assert said in [m.finding for m in port.heard(Note)]
    assert not any(found.code.startswith("loss") for found in assumptions_of(port.run))
    [late] = differing_steps(port.run)
    assert (late.step, late.called_exact_to) == (STEP, STEP + 1)


@pytest.mark.parametrize("steps_behind", [0.5, 1.0, 1.25])
def test_a_mirror_that_lags_by_a_step_is_compared(
    port: Port, trainer: Trainer, steps_behind: float
) -> None:
    """The memory of a step that was made is taken for another one only once that one begins."""
    port.begin({2: [5], 3: [0, 7]})
    port.lag(int(steps_behind * port.step_frames))
    port.both.drive(frames=16, patient=True)
    elements = port.elements_of(first_is_sent=True)
    assert len(elements) == 3
    assert_exact_but(port, trainer, elements)
    assert {m.step for m in port.heard(StepDoubtful)} <= {STEP}


def test_between_two_looks_of_the_updater(
    port: Port, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that come while the step is made: it is made again, without these."""
    real, left = GradNormExchange.clipped, [1]

    def clipped(self: GradNormExchange, layout: Any, step: int, *rest: Any) -> Any:
        if step == STEP and left:
            left.pop()
            port.come(changed(port.message[2], [3]))
        return real(self, layout, step, *rest)

    port.begin()
    monkeypatch.setattr(GradNormExchange, "clipped", clipped)
    port.both.drive()
    assert not left and not port.heard(StepDoubtful)
    elements = port.elements_of(first_is_sent=True)
    assert len(elements) == 1
    assert_exact_but(port, trainer, elements)


def test_by_a_rule_over_all_elements_the_replica_waits(shm: Path, tmp_path: Path) -> None:
    """It stays before the step, as where bytes are missing."""
    clips = ADAMW | {"clip_norm": 1.0}
    port = Port(tmp_path, shm / "memory", Trainer().flat(), optimizer=clips)
    port.begin({2: [5]})
    try:
        port.both.drive()
        assert {m.step for m in port.heard(StepApplied)} == {1, 2}
        assert port.heard(StepLost)[0].step == STEP
        assert len(port.elements_of(first_is_sent=True)) == 1
    finally:
        port.both.close()
