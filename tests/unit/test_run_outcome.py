"""What `flowcheck up` says at its end: why the replica is not further, from shared memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lifecycle import follow, give_verdict, offer

from flowcheck._core import lib
from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.how_chains_end import (
    BYTES_NEVER_CAME,
    CANNOT_BE_REBUILT,
    CAUSE_UNKNOWN,
    LOST_AND_STAYS,
    MORE_BYTES_NEVER_CAME,
    NO_BASE,
    NO_COMPLETE_STEP,
    NO_FRAME,
    NO_JOB_LEARNED,
)
from flowcheck.findings.catalog.nccl_transport import NO_WRITES
from flowcheck.messages import StepLost
from flowcheck.ops.lifecycle.progress_messages import lost_step_finding
from flowcheck.ops.lifecycle.run_outcome import run_outcome
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.job_state.lifecycle_record_schema import RestartVerdict
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.chain_progress import ChainProgress

CONFIG = JobConfig(
    source=(SourceConfig(interface="mirror0"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
)
UNBROUGHT = earlier_finding("no mirror brought them")


def test_of_many_missing_ranges_the_first_are_named_and_the_others_counted() -> None:
    ranges = tuple((n, n + 1) for n in range(0, 20, 2))
    told = lost_step_finding(StepLost(step=7, missing=ranges))
    why = MORE_BYTES_NEVER_CAME(
        ranges=[f"[{a}, {b})" for a, b in ranges[:8]], more=2, why=CAUSE_UNKNOWN()
    )
    assert told == CANNOT_BE_REBUILT(step=7, why=why, replica_step=6)


@pytest.fixture
def run(tmp_path: Path, shm: Path) -> Iterator[RunDir]:
    made = RunDir.create(tmp_path / "run", shm)
    FrameRing.create(made.ring(0), slots=64, slot_bytes=128, live_source=True).close()
    yield made
    made.remove()


def frames(run: RunDir, count: int, *, missed: int = 0) -> None:
    with FrameRing.open(run.ring(0)) as ring:
        commit = ring.capture_commit()
        commit.counters.rx_frames += count
        commit.counters.interface_missed_frames += missed
        lib.fc_ring_publish(ring.handle, 0, commit)


def steps(run: RunDir, last: int) -> None:
    with run.steps.open("w") as file:
        for step in range(1, last + 1):
            file.write(f'{{"step":{step},"digest":"d{step}","seconds":0.1}}\n')


def test_without_a_frame_the_mirror_is_named(run: RunDir) -> None:
    found = run_outcome(CONFIG, run, ChainProgress())
    assert (found.step, found.why) == (0, NO_FRAME())


def test_frames_that_told_no_job_are_told_with_the_reason_of_the_extractor(run: RunDir) -> None:
    frames(run, 12_345)
    assert run_outcome(CONFIG, run, ChainProgress()).why == NO_JOB_LEARNED(12_345)
    told = ChainProgress(complete_steps=0, why=NO_WRITES())
    assert run_outcome(CONFIG, run, told).why == told.why


def test_a_learned_job_without_a_whole_step_is_told_as_that(run: RunDir) -> None:
    frames(run, 5)
    run.learned_job.write_text("{}")
    assert run_outcome(CONFIG, run, ChainProgress()).why == NO_COMPLETE_STEP()


def test_a_replica_that_followed_has_nothing_to_explain_but_what_capture_lost_is_counted(
    run: RunDir,
) -> None:
    frames(run, 900, missed=7)
    steps(run, 41)
    found = run_outcome(CONFIG, run, ChainProgress(steps=41))
    assert (found.step, found.digest, found.why, found.in_flight) == (41, "d41", None, None)
    assert (found.frames, found.lost_frames) == (900, 7)


def test_a_lost_step_is_the_reason_and_one_that_was_under_way_is_none(run: RunDir) -> None:
    frames(run, 900)
    steps(run, 41)
    lost = StepLost(step=42, missing=((0, 4),), why=UNBROUGHT)
    with GradientShard.create(run.shard, gradient_bytes=64) as shard:
        shard.begin(0, 42)
        shard.mark_lost(0)
    why = run_outcome(CONFIG, run, ChainProgress(steps=41, lost=lost)).why
    bytes_missing = BYTES_NEVER_CAME(ranges=["[0, 4)"], why=UNBROUGHT)
    assert why == CANNOT_BE_REBUILT(step=42, why=bytes_missing, replica_step=41)
    assert "step 42 cannot be rebuilt: bytes [0, 4) of its gradient never came (no" in str(why)
    unread = StepLost(step=42, missing=(), why=UNBROUGHT)
    why = run_outcome(CONFIG, run, ChainProgress(steps=41, lost=unread)).why
    assert why == CANNOT_BE_REBUILT(step=42, why=UNBROUGHT, replica_step=41)
    unheard = run_outcome(CONFIG, run, ChainProgress(steps=41)).why
    assert unheard == LOST_AND_STAYS(step=42, replica_step=41)
    found = run_outcome(CONFIG, run, ChainProgress(steps=41, in_flight=lost))
    assert (found.why, found.in_flight) == (None, 42)


def test_a_loss_that_a_job_which_came_back_has_left_behind_is_no_reason(run: RunDir) -> None:
    steps(run, 50)
    lost = StepLost(step=42, missing=((0, 4),))
    with GradientShard.create(run.shard, gradient_bytes=64) as shard:
        shard.begin(0, 51)
    assert run_outcome(CONFIG, run, ChainProgress(steps=50, lost=lost)).why is None


def test_a_job_that_came_back_and_is_not_followed_is_the_reason(run: RunDir) -> None:
    steps(run, 50)
    offer(run)
    verdict = RestartVerdict(
        number=1, step=None, why=earlier_finding("a later incarnation is not followed")
    )
    give_verdict(run, verdict)
    assert run_outcome(CONFIG, run, ChainProgress(steps=50)).why == verdict.why


def test_a_job_whose_first_state_nobody_gave_is_the_reason(run: RunDir) -> None:
    steps(run, 50)
    follow(run, Incarnation(number=2, step=None))
    assert run_outcome(CONFIG, run, ChainProgress(steps=50)).why == NO_BASE()
