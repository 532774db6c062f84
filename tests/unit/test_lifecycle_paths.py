"""The states that stages go through in what a job's life may bring, in their order.

Judged by what a person expects of each story; that steps are right is judged in the tests of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from support.incarnations import JOB, Life
from support.lives import Both
from support.staged import Chain
from test_base_command import STEPS, Trainer, first_life, frames_of, resumed  # noqa: F401
from test_replica_reset import GIVEN, SAVED, given, trained

from flowcheck.config import encode_config
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.stages.job_state import lifecycle_writers
from flowcheck.stages.job_state.lifecycle_record_reader import read_record
from flowcheck.stages.job_state.lifecycle_state_machines import (
    ExtractState,
    IncarnationState,
    ReplicaState,
)

E, R, J = ExtractState, ReplicaState, IncarnationState
AWAITS = {"keep_bytes": 1 << 22, "awaits_base": True}


class Paths:
    """What follows what, by machine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[StrEnum] = []
        check = lifecycle_writers.check_transition

        def checked(what: str, table: Any, before: StrEnum, after: StrEnum, tell: Any) -> None:
            check(what, table, before, after, tell)  # type: ignore[type-var]
            if after is not before:
                self.made.append(after)

        patch.setattr(lifecycle_writers, "check_transition", checked)

    def of(self, kind: type[StrEnum]) -> list[StrEnum]:
        return [state for state in self.made if type(state) is kind]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Paths:
    return Paths(monkeypatch)


@pytest.fixture
def play(shm: Path, tmp_path: Path, paths: Paths) -> Iterator[Callable[..., Both]]:
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


def ended(both: Both) -> None:
    """To the end, and one look of the updater's more."""
    both.drive()
    both.update.work()


def without(frames: list[Any], number: int) -> list[Any]:
    """All but one of the largest frames; number: which of these."""
    largest = max(len(one.frame) for one in frames)
    [lost] = [n for n, one in enumerate(frames) if len(one.frame) == largest][number:][:1]
    return [one for n, one in enumerate(frames) if n != lost]


def test_a_capture_that_proves_no_job(play: Callable[..., Both], paths: Paths) -> None:
    life = first_life()
    both = play(life.frames_of(stop=12))
    both.drive()
    assert paths.made == [E.ENDED] and both.extract.drained()
    assert read_record(both.chain.run).state_of(1) is J.UNLEARNED


def test_a_job_that_comes_back(play: Callable[..., Both], paths: Paths) -> None:
    life = first_life()
    weights = Trainer().flat()
    first = Life(JOB, weights, number=0)
    first.generate()
    second = Life(replace(JOB, seed=1), weights, number=1)
    second.generate()
    assert len(life.starts) == JOB.steps
    ended(play(first.frames_of(stop=first.starts[STEPS] + 9) + second.frames_of()))
    assert paths.of(E) == [E.FOLLOWING, E.CLOSING, E.HANDING_OVER, E.FOLLOWING, E.ENDED]
    assert paths.of(R) == [R.APPLYING, R.HANDED_OVER, R.APPLYING]
    assert paths.of(J) == [J.FOLLOWED, J.OFFERED, J.ACCEPTED, J.OVER, J.FOLLOWED]


@pytest.mark.parametrize("logged", [True, False])
def test_a_base_behind_which_something_was_logged_or_nothing(
    play: Callable[..., Both],
    paths: Paths,
    resumed: tuple[Trainer, Path],  # noqa: F811
    logged: bool,
) -> None:
    trainer, file = resumed
    frames, _ = frames_of(trainer, after=None)
    both = play(frames, replica=AWAITS)
    least = 2 if logged else 0
    both.drive(
        until=lambda: both.chain.run.replica.exists() and both.applied_iteration() >= least,
        frames=8,
    )
    assert (both.applied_iteration() > 0) == logged
    verb.submit_base(both.chain.run, both.config, file)
    ended(both)
    assert paths.of(R) == [R.AWAITING_BASE, *([R.CATCHING_UP] * logged), R.APPLYING]
    assert paths.of(J) == [J.AWAITS_BASE, J.FOLLOWED]


def test_a_log_that_is_full_before_its_base_is_given(
    play: Callable[..., Both],
    paths: Paths,
    resumed: tuple[Trainer, Path],  # noqa: F811
) -> None:
    trainer, file = resumed
    frames, _ = frames_of(trainer, after=None)
    log = {"memory_bytes": 4096 + 3 * 12288}
    both = play(frames, replica=AWAITS, gradient_log=log)
    both.drive()
    verb.submit_base(both.chain.run, both.config, file)
    ended(both)
    assert paths.of(R) == [R.AWAITING_BASE, R.CATCHING_UP, R.STOPPED]


def test_one_that_is_turned_down_while_the_one_before_awaits_its_base(
    play: Callable[..., Both],
    paths: Paths,
    resumed: tuple[Trainer, Path],  # noqa: F811
) -> None:
    trainer, _ = resumed
    first = Life(replace(JOB, seed=1), trainer.flat(), number=0)
    first.generate()
    shapes = ((32, 64), (64,), (10, 64), (10,))
    other = Life(replace(JOB, seed=1, shapes=shapes), trainer.flat(), number=1)
    other.generate()
    frames = first.frames_of(stop=first.starts[STEPS] + 9) + other.frames_of()
    ended(play(frames, replica=AWAITS))
    assert paths.of(E) == [E.FOLLOWING, E.CLOSING, E.HANDING_OVER, E.TURNED_DOWN, E.ENDED]
    assert paths.of(R) == [R.AWAITING_BASE, R.STOPPED]
    assert paths.of(J) == [J.AWAITS_BASE, J.OFFERED, J.TURNED_DOWN]


@pytest.mark.parametrize("lost", [False, True])
def test_a_trainers_checkpoint_in_the_place_of_an_earlier_step(
    play: Callable[..., Both], paths: Paths, tmp_path: Path, lost: bool
) -> None:
    """lost: the last step is, so that it is given to a replica that has stopped."""
    frames, _, file = trained(tmp_path)
    both = play(without(frames, -1) if lost else frames, gradient_log={"taken_steps": 8})
    both.drive(until=lambda: both.applied_iteration() >= GIVEN)
    if lost:
        ended(both)
        assert both.update._lifecycle.part.state is R.STOPPED
    given(both, file)
    ended(both)
    stops = [R.STOPPED] if lost else []
    last = R.STOPPED if lost else R.APPLYING
    assert paths.of(R) == [R.APPLYING, *stops, R.REPLAYING, last]
    assert paths.of(J) == [J.FOLLOWED, J.ANCHORED]
    assert both.update._open.replica.step == JOB.steps - lost > SAVED  # type: ignore[union-attr]
