"""How long a verb waits until what was captured has become steps: no longer, and no shorter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config import job_from
from flowcheck.findings.catalog.refused_restores import STEPS_WAITING
from flowcheck.ops.restore import chain_settling
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir

CONFIG = job_from({"source": [{"file": "x"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}})
STILL = chain_settling._Positions(
    heads=9, tails=9, staged=3, covered_bytes=0, applied=0, whole=False, unread=False
)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., float]:
    """Seconds it takes to settle, where positions are a function of the seconds."""
    limits_s = {
        "SETTLED_AFTER_S": 0.2,
        "SETTLED_WHILE_STAGED_S": 1.5,
        "UPDATE_LIMIT_S": 1.0,
        "ARRIVING_S": 0.6,
    }
    for name, seconds in (*limits_s.items(), ("COMING_S", 1.5), ("LOOK_S", 0.01)):
        monkeypatch.setattr(chain_settling, name, seconds)

    def settle(positions: Callable[[float], chain_settling._Positions]) -> float:
        began_s = time.monotonic()
        monkeypatch.setattr(
            chain_settling, "_positions", lambda *_: positions(time.monotonic() - began_s)
        )
        chain_settling.settle_chain(RunDir(tmp_path), CONFIG)
        return time.monotonic() - began_s

    return settle


def test_a_reading_under_way_is_waited_for(settled: Callable[..., float]) -> None:
    took_s = settled(
        lambda s: replace(STILL, unread=s < 0.8) if s < 0.9 else replace(STILL, applied=4)
    )
    assert took_s >= 0.9 + 0.2


def test_a_reading_that_never_ends_is_not(settled: Callable[..., float]) -> None:
    assert settled(lambda _: replace(STILL, unread=True)) >= 1.5


def test_a_job_that_goes_on_sending_does_not_settle(settled: Callable[..., float]) -> None:
    """Its restore is of the newest step there is, and does not hang."""
    took_s = settled(lambda s: replace(STILL, heads=9 + int(s * 50), tails=9 + int(s * 50)))
    assert took_s >= 0.6


def test_a_job_whose_steps_take_longer_than_a_pause_does_not_settle_either(
    settled: Callable[..., float],
) -> None:
    """A step comes each 0.4 s and is taken 0.25 s behind it, for long: nothing is ever calm."""

    def at(s: float) -> chain_settling._Positions:
        step, rest = divmod(min(s, 9.0), 0.4)
        taken, heads = int(step) + (rest > 0.25), 9 * int(step + 1)
        return replace(STILL, heads=heads, tails=heads, applied=taken, whole=rest <= 0.25)

    assert 1.5 <= settled(at) < 9.0


def test_a_whole_step_nobody_takes_is_told(settled: Callable[..., float]) -> None:
    with refused_as(STEPS_WAITING):
        settled(lambda _: replace(STILL, whole=True))


def test_the_reading_of_a_run_is_seen(tmp_path: Path, shm: Path) -> None:
    run = RunDir.create(tmp_path / "run", shm)
    FrameRing.create(run.ring(0), slots=64).close()
    assert chain_settling._positions(run, CONFIG).settle_limit_s == chain_settling.SETTLED_AFTER_S
    run.unread.touch()
    read = chain_settling._positions(run, CONFIG)
    assert read.settle_limit_s == chain_settling.SETTLED_WHILE_STAGED_S
    run.remove()
