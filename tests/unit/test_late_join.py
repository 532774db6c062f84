"""A job joined midstream, or again after a gap: logged, based, followed as its trainer goes on.

Judged by torch's own optimizer, whose checkpoints are the bases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lives import Both, Deaths
from support.refused_as import refused_as
from support.staged import Chain, played
from test_base_command import Trainer, lines, notes

from flowcheck.findings.catalog.base_checkpoints import NO_PLACE, PLACE_NOT_LOGGED, PLACE_UNKNOWN
from flowcheck.findings.catalog.job_restarts import NOT_LOGGED_ANY_MORE
from flowcheck.findings.catalog.replica_update_notes import BASE_FITS
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Note, StepLost
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.ops.trainer_checkpoint import base_proof
from flowcheck.ops.trainer_checkpoint.base_proof import LogPosition
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.job_learning.remembered_job import REMEMBERED_JOB_FILE
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.wire.training_job.learned_job import LearnedJob, decode_job, encode_job

SETTINGS: dict[str, Any] = {"replica": {"keep_bytes": 1 << 22, "joins": True}}


@pytest.fixture
def life() -> Life:
    life = Life(JOB)
    life.generate()
    return life


@pytest.fixture
def known(life: Life, tmp_path: Path, shm: Path) -> LearnedJob:
    """What a chain learned that was there from the start."""
    write_pcap(tmp_path / "whole.pcap", life.frames_of())
    (tmp_path / "whole").mkdir()
    chain = Chain(tmp_path / "whole", shm / "whole", [tmp_path / "whole.pcap"], 256)
    played(chain)
    chain.close()
    return decode_job(chain.run.learned_job.read_bytes())


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(frames: list[Any], known: LearnedJob | None = None, **settings: Any) -> Both:
        write_pcap(tmp_path / "seen.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "seen.pcap"], 256)
        if known is not None:
            (chain.run.learned_folder / REMEMBERED_JOB_FILE).write_bytes(encode_job(known))
        opened.append(Both(chain, **SETTINGS, **settings))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def trained(
    life: Life, folder: Path, at: tuple[int, ...], *, clip_norm: float | None = None
) -> tuple[list[str], dict[int, Path]]:
    """[step - 1] the trainer's parameters by their hash, and its checkpoints of steps `at`."""
    trainer = Trainer()
    if clip_norm is not None:
        unclipped = trainer.optimizer.step

        def clipped() -> None:
            torch.nn.utils.clip_grad_norm_(trainer.parameters, clip_norm)
            unclipped()

        trainer.optimizer.step = clipped  # type: ignore[method-assign]
    hashes, files = [], {}
    for step, gradient in enumerate(life.truth.gradients, 1):
        hashes.append(trainer.step(floats(gradient)))
        if step in at:
            files[step] = trainer.save(folder / f"step-{step}.pt", step)
    return hashes, files


@pytest.mark.parametrize("into", [0, 7, 40])
def test_joined_amid_its_run_and_followed_on_the_base_two_checkpoints_place(
    play: Callable[..., Both], life: Life, known: LearnedJob, tmp_path: Path, into: int
) -> None:
    """into: frames of step 3 that were not seen."""
    wanted, files = trained(life, tmp_path, (4, 6))
    both = play(life.frames_of()[_frames_before(life, 2) + into :], known)
    first = 3 if not into else 4
    both.drive(until=lambda: both.applied_iteration() >= 7 - first)
    assert incarnation_of(both.chain.run).step is None
    with refused_as(PLACE_UNKNOWN):
        verb.submit_base(both.chain.run, both.config, files[4])
    verb.submit_base(both.chain.run, both.config, files[4], LogPosition(later_checkpoint=files[6]))
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(4, JOB.steps + 1))
    assert [line["parameters_sha256"] for line in told] == wanted[3:]
    assert both.chain.heard.of(StepLost) == []
    assert BASE_FITS() in assumptions_of(both.chain.run)
    line = {"step": 6, "passed": True, "file": "x", "tensors": 4}
    both.chain.run.audits.write_text(json.dumps(line) + "\n")
    assert not [found for found in assumptions_of(both.chain.run) if found.until_audit]


def without_some(life: Life, frames: list[Any], steps: tuple[int, ...]) -> tuple[list[Any], int]:
    """Frames without one of the largest amid each of these steps; and the bytes of such a one."""
    largest, gone = max(len(one.frame) for one in frames), set()
    for step in steps:
        of_step = range(_frames_before(life, step - 1), _frames_before(life, step))
        full = [n for n in of_step if len(frames[n].frame) == largest]
        gone.add(full[len(full) * 7 // 8])
    return [frame for n, frame in enumerate(frames) if n not in gone], largest


@pytest.mark.parametrize(
    ("lacking", "tainted_by"),
    [((5,), (5,)), ((4,), ()), ((3, 5, 7), (5, 7)), ((7,), (7,)), ((5, 6), (5, 6))],
)
def test_steps_that_lack_bytes_are_logged_and_taint_what_they_lacked(
    lacking: tuple[int, ...],
    tainted_by: tuple[int, ...],
    play: Callable[..., Both],
    life: Life,
    known: LearnedJob,
    tmp_path: Path,
) -> None:
    """The base is of step 4, and a file of step 6 tells its place. lacking: steps of which a frame
    was lost; tainted_by: those of them that still matter."""
    _, files = trained(life, tmp_path, (4, 6, JOB.steps))
    frames, largest = without_some(life, life.frames_of(), lacking)
    both = play(frames[_frames_before(life, 2) :], known)
    both.drive(until=lambda: both.applied_iteration() >= 4)
    assert incarnation_of(both.chain.run).step is None
    verb.submit_base(both.chain.run, both.config, files[4], LogPosition(later_checkpoint=files[6]))
    both.drive()
    assert both.chain.heard.of(StepLost) == []
    told = lines(both)
    assert [line["step"] for line in told] == list(range(4, JOB.steps + 1))
    lacked = {line["step"]: line.get("missing_elements", 0) for line in told}
    assert tuple(step for step, elements in lacked.items() if elements) == tainted_by
    assert all(0 < lacked[step] <= largest // 4 for step in tainted_by)
    update = both.update._opened()
    assert update is not None
    exact = np.ones(update.replica.layout.elements, np.bool_)
    for start, stop in update.replica.tainted_ranges:
        exact[start:stop] = False
    kept = torch.load(files[JOB.steps], weights_only=True)["model"].values()
    wanted = np.concatenate([p.numpy().reshape(-1) for p in kept])
    alike = update.replica.parameters().view(np.uint32) == wanted.view(np.uint32)
    assert alike[exact].all()
    assert bool(tainted_by) == (not alike.all())


CLIPPED: dict[str, Any] = {"optimizer": {"name": "adamw", "learning_rate": 1e-3, "clip_norm": 1.0}}


def test_a_lacking_step_that_may_matter_everywhere_begins_the_log_anew(
    play: Callable[..., Both], life: Life, known: LearnedJob, tmp_path: Path
) -> None:
    """Steps keep their numbers: a base from behind it is placed by what is logged since."""
    wanted, files = trained(life, tmp_path, (3, 5, 6, 7), clip_norm=1.0)
    frames, _ = without_some(life, life.frames_of(), (4,))
    both = play(frames[_frames_before(life, 2) :], known, **CLIPPED)
    both.drive(until=lambda: both.applied_iteration() >= 5)
    with refused_as(PLACE_NOT_LOGGED):  # the steps between are not there any more
        verb.submit_base(both.chain.run, both.config, files[3], LogPosition(after=0))
    verb.submit_base(both.chain.run, both.config, files[5], LogPosition(later_checkpoint=files[7]))
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(5, JOB.steps + 1))
    assert [line["parameters_sha256"] for line in told] == wanted[4:]
    assert "logging goes on behind it" in notes(both) and "joined again" not in notes(both)


def test_a_base_whose_next_step_is_not_logged_any_more_is_refused(
    play: Callable[..., Both], life: Life, known: LearnedJob, tmp_path: Path
) -> None:
    """A step lacked bytes after the place of the base was found, and before it was taken."""
    wanted, files = trained(life, tmp_path, (3, 4, 7), clip_norm=1.0)
    frames, _ = without_some(life, life.frames_of(), (5,))
    both = play(frames[_frames_before(life, 2) :], known, **CLIPPED)
    both.drive(until=lambda: both.applied_iteration() >= 2)
    base = verb.verified_base(
        both.chain.run, both.config, files[3], LogPosition(later_checkpoint=files[4])
    )
    both.drive(until=lambda: both.applied_iteration() >= 4)
    base_proof.submit_proved(both.chain.run, base)
    both.drive()
    assert any(m.finding.is_any_of(NOT_LOGGED_ANY_MORE) for m in both.chain.heard.of(Note))
    verb.submit_base(both.chain.run, both.config, files[7], LogPosition(after=5))
    both.drive()
    assert [line["parameters_sha256"] for line in lines(both)] == wanted[6:]


def _frames_before(life: Life, step: int) -> int:
    """How many of those the mirror copies were sent before a step, counted from 0."""
    return len(life.frames_of(stop=life.starts[step]))


def gapped(life: Life) -> list[Any]:
    """Frames of which those from within step 3 to within step 5 were not seen."""
    frames = life.frames_of()
    del frames[_frames_before(life, 2) + 9 : _frames_before(life, 4) + 5]
    return frames


def test_gap_amid_a_run_is_said_and_a_new_base_goes_on(
    play: Callable[..., Both], life: Life, tmp_path: Path
) -> None:
    wanted, files = trained(life, tmp_path, (6, 7))
    both = play(gapped(life))
    both.drive(until=lambda: "joined again" in notes(both))
    both.drive(until=both.extract.drained)
    assert [line["step"] for line in lines(both)] == [1, 2]
    lost, *_ = both.chain.heard.of(StepLost)
    assert lost.step == 3  # type: ignore[attr-defined]
    verb.submit_base(both.chain.run, both.config, files[6], LogPosition(later_checkpoint=files[7]))
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == [1, 2, 6, 7, 8]
    assert [line["parameters_sha256"] for line in told[2:]] == wanted[5:]
    assert (both.chain.run.root / "kept-1" / "step-2").exists()


@pytest.mark.parametrize(
    ("more", "least"), [(3, 5), pytest.param(1, 10, marks=pytest.mark.nightly)]
)
def test_joined_again_and_based_though_killed_again_and_again(
    play: Callable[..., Both],
    life: Life,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: int,
    least: int,
) -> None:
    wanted, files = trained(life, tmp_path, (6, 7))
    both = play(gapped(life))
    deaths = Deaths(monkeypatch, more)
    forget = Extractor.forget_plans
    monkeypatch.setattr(Extractor, "forget_plans", deaths._dying(forget))
    lose = GradientShard.mark_lost

    def lost(*words: Any) -> None:
        deaths.begun = True
        lose(*words)

    monkeypatch.setattr(GradientShard, "mark_lost", lost)
    both.drive(until=lambda: both.applied_iteration() >= 4)
    deaths.begun = False
    verb.submit_base(both.chain.run, both.config, files[6], LogPosition(later_checkpoint=files[7]))
    deaths.begun = True
    both.drive()
    deaths.begun = False
    assert deaths.count > least
    told = lines(both)
    assert [line["step"] for line in told] == [1, 2, 6, 7, 8]
    assert [line["parameters_sha256"] for line in told[2:]] == wanted[5:]


def test_a_full_log_begins_anew_and_a_later_base_is_placed_in_what_it_holds(
    play: Callable[..., Both], life: Life, known: LearnedJob, tmp_path: Path
) -> None:
    wanted, files = trained(life, tmp_path, (3, 5, 6, 7))
    frames = life.frames_of()[_frames_before(life, 1) :]
    each = 4096 * 3  # a record: a header and 11,048 bytes, whole pages
    both = play(frames, known, gradient_log={"memory_bytes": 4096 + 3 * each})
    both.drive(until=lambda: both.applied_iteration() >= 6)
    assert "full after 3 steps" in notes(both)
    with refused_as(NO_PLACE):
        verb.submit_base(
            both.chain.run, both.config, files[3], LogPosition(later_checkpoint=files[5])
        )
    with refused_as(PLACE_UNKNOWN, first=4, last=6):
        verb.submit_base(both.chain.run, both.config, files[5])
    with refused_as(PLACE_NOT_LOGGED, after=1):
        verb.submit_base(both.chain.run, both.config, files[5], LogPosition(after=1))
    verb.submit_base(
        both.chain.run, both.config, files[5], LogPosition(later_checkpoint=files[7], after=4)
    )
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(5, JOB.steps + 1))
    assert [line["parameters_sha256"] for line in told] == wanted[4:]
