"""A job that comes back from an older step: the numbers of its iterations are used again."""

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
from test_base_command import Trainer
from test_replica_reset import given, play, shown  # noqa: F401

from flowcheck._core import lib
from flowcheck.messages import Message, StepApplied
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_file.gradient_log import GradientLog
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, restart_verdict
from flowcheck.stages.replica_update.handover import Handover
from flowcheck.stages.replica_update.step_log import StepLog

CUT, BACK, UNSEEN, SAVED, GIVEN = 5, 2, 3, 4, 7
"""Whole steps of the first life; the one it comes back from; the step behind which the trainer
changed a weight; that of its file; the replica's when it is given the file."""


def lives(folder: Path, *, unseen: bool = True) -> tuple[list[Any], list[str], list[str], Path]:
    """Frames of both lives, sha256 of the parameters of the first one and of what goes on from it,
    and the trainer's file."""
    trainer = Trainer()
    first = Life(replace(JOB, seed=1), trainer.flat(), number=0)
    given_up = Trainer()
    gradients = [floats(g) for g in first.generate().gradients]
    abandoned = [given_up.step(g) for g in gradients[:CUT]]
    wanted = [trainer.step(g) for g in gradients[:BACK]]
    second = Life(replace(JOB, seed=2), trainer.flat(), number=1)
    for step, gradient in enumerate(second.generate().gradients, BACK + 1):
        wanted.append(trainer.step(floats(gradient)))
        if step == UNSEEN and unseen:
            with torch.no_grad():
                trainer.parameters[0].mul_(1.5)
        if step == SAVED:
            trainer.save(folder / "step-4.pt", step)
    frames = first.frames_of(stop=first.starts[CUT] + 9) + second.frames_of()
    return frames, abandoned, wanted, folder / "step-4.pt"


def test_an_anchor_takes_the_gradients_of_the_life_that_goes_on(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    frames, abandoned, wanted, file = lives(tmp_path)
    both = play(frames, gradient_log={"taken_steps": 16})
    handed: list[int] = []
    go_back = Replica.go_back
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "go_back", lambda own, step: (go_back(own, step), handed.append(1)))
        both.drive(until=lambda: bool(handed) and both.applied_iteration() >= GIVEN)
    assert [sha for _, sha in shown(both)[:UNSEEN]] == wanted[:UNSEEN]
    given(both, file)
    both.drive()
    assert shown(both)[SAVED - 1 :] == list(enumerate(wanted, 1))[SAVED - 1 :]
    assert abandoned[:BACK] == wanted[:BACK] and abandoned[BACK] != wanted[BACK]


CHANGES = (
    (GradientLog, "forget_after"),
    (GradientShard, "apply"),
    (Replica, "go_back"),
    (StepLog, "forget_after"),
    (StepLog, "record_broadcast_audit"),
)


class Kills:
    """The updater dies once before and once behind each change that a verdict makes."""

    def __init__(self, patch: pytest.MonkeyPatch, died: Callable[[str], None]) -> None:
        self.judges, self.left, self._died = False, set[tuple[str, str]](), died
        for owner, name in CHANGES:
            if hasattr(owner, name):
                at = owner.__name__ + "." + name
                self.left |= {(at, "before"), (at, "behind")}
                patch.setattr(owner, name, self._killed(getattr(owner, name), at))
        judge = Handover.write_verdict

        def judged(*words: Any) -> str:
            self.judges = True
            try:
                return judge(*words)
            finally:
                self.judges = False

        patch.setattr(Handover, "write_verdict", judged)

    def _killed(self, change: Callable[..., Any], at: str) -> Callable[..., Any]:
        def changed(*words: Any, **named: Any) -> Any:
            self._perhaps(at, "before")
            done = change(*words, **named)
            self._perhaps(at, "behind")
            return done

        return changed

    def _perhaps(self, at: str, when: str) -> None:
        if self.judges and (at, when) in self.left:
            self.left.remove((at, when))
            self._died(f"{at} {when}")
            raise Killed


@pytest.mark.parametrize("filled", [False, True])
def test_an_updater_killed_while_it_judges_takes_no_step_of_the_past_again(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
    filled: bool,
) -> None:
    """filled: a generation is there of what the old life sent behind the step that is gone on
    from."""
    frames, _, wanted, _ = lives(tmp_path, unseen=False)
    both = play(frames, gradient_log={"taken_steps": 16})
    heard, run = both.chain.heard, both.chain.run
    both.drive(until=lambda: both.applied_iteration() >= BACK + 1)
    both.update._lifecycle.state_known(Incarnation(anchored=1))
    old = gradient_of(both, BACK + 1)

    first: list[int] = []

    def died(at: str) -> None:
        if at == "Replica.go_back behind":
            first.append(len(heard.messages))
        if filled and both.applied_iteration() == BACK:
            fill(run.shard, BACK + 1, old)

    with pytest.MonkeyPatch.context() as patch:
        kills = Kills(patch, died)
        both.drive(until=lambda: restart_verdict(run) is not None)
        assert not kills.left
        both.drive()
    assert [sha for _, sha in shown(both)] == wanted
    [since] = first
    told = [message.digest for message in heard.messages[:since] if later(message)]
    again = [message.digest for message in heard.messages[since:] if later(message)]
    assert told and again and not set(told) & set(again), "a step of the past came back"


def later(message: Message) -> bool:
    """A step is told that is behind the one the job came back from."""
    return isinstance(message, StepApplied) and message.step > BACK


def gradient_of(both: Both, step: int) -> np.ndarray:
    log = both.update._open.anchors.kept_gradient(step)  # type: ignore[union-attr]
    assert log is not None
    return log.copy()


def fill(path: Path, step: int, gradient: np.ndarray) -> None:
    """A whole generation of `step`."""
    with GradientShard.open(path) as shard:
        shard.clear()
        shard.begin(0, step)
        shard.gradient(0)[:] = gradient
        units = shard.gradient_bytes // shard.unit_bytes
        words = lib.fc_shard_coverage(shard.handle, 0)
        for unit in range(units):
            words[unit // 64] |= 1 << unit % 64
        shard.handle.header.generations[0].covered_units = units
        assert shard.finish(0)
