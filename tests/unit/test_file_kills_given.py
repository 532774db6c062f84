"""Every system call that changes a file is a kill point of an updater that takes what an operator
gave: the trainer's file of a step it took, and a base for a job whose state nobody knew.

Judged by torch's own optimizer, and by whoever goes on from what a kill left.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.chain import torch_steps
from support.file_kills import Explored, explore, lacks
from support.incarnations import JOB, Life, floats
from support.lifecycle import checkpoints, waiting
from support.lives import Both
from support.staged import Chain, Heard
from test_base_command import BASE, STEPS, Trainer, first_life, frames_of
from test_replica_reset import GIVEN, SAVED, UNSEEN, given, lines, shown, trained

from flowcheck.config import encode_config
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.anchor_log import read_anchor_records
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, read_record
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.replica_update.handover import Handover
from flowcheck.stages.replica_update.update_stage import UpdateService
from flowcheck.stages.run_directory.bounded_log_files import complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
FILLS = [19, pytest.param(1, marks=pytest.mark.nightly)]
"""Of so many calls that fill a file one is killed by day; all others, and by night each."""


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as made:
        yield Path(made)


def both_in(place: Path, frames: list, **settings: object) -> Both:
    (place / "memory").mkdir(mode=0o700)
    write_pcap(place / "lives.pcap", frames)
    chain = Chain(place, place / "memory", [place / "lives.pcap"], 256)
    both = Both(chain, **settings)
    chain.run.config.write_bytes(encode_config(both.config))
    return both


def updated(place: Path) -> None:
    """An updater, from its start until it has nothing to do."""
    run = RunDir(place / "run")
    update = UpdateService(run, run.settings())
    update.start(Heard())  # type: ignore[arg-type]
    while update.work():
        pass
    update.stop()


def told(place: Path) -> list[tuple[int, str]]:
    text = (place / "run" / "steps.jsonl").read_text()
    return [(one["step"], one["parameters_sha256"]) for one in map(json.loads, text.splitlines())]


def readable(place: Path) -> None:
    """For whoever reads while nobody writes."""
    run = RunDir(place / "run")
    assert peek_versions(run.replica)[1]
    incarnation_of(run)
    read_anchor_records(run)


def kept(explored: Explored, least: int) -> None:
    assert len(explored.calls) >= least, explored


@pytest.mark.parametrize("fills", FILLS)
def test_the_trainers_file_is_taken_once_wherever_the_updater_is_killed(
    folder: Path, fills: int
) -> None:
    def make(place: Path) -> None:
        frames, wanted, file = trained(place)
        both = both_in(place, frames, gradient_log={"taken_steps": 4})
        both.drive(until=lambda: both.applied_iteration() >= GIVEN)
        before = shown(both)
        given(both, file)
        both.close()
        right = [sha for _, sha in before[:UNSEEN]] + wanted[UNSEEN:]
        (place / "wanted").write_text(json.dumps([right, len(before)]))

    def judge(place: Path, when: str) -> None:
        readable(place)
        updated(place)
        run = RunDir(place / "run")
        wanted, before = json.loads((place / "wanted").read_text())
        found = told(place)
        assert len(found) >= GIVEN and found == list(enumerate(wanted, 1))[: len(found)], when
        assert waiting(run) is None and not checkpoints(run), when
        [past] = run.root.glob("steps-before-*.jsonl")
        assert len(past.read_text().splitlines()) == before, when
        [line] = map(json.loads, complete_lines(run.anchors))
        assert (line["step"], line["at"]) == (SAVED, GIVEN), when
        assert incarnation_of(run).anchored == SAVED, when

    kept(explore(folder, make, updated, judge, fills=fills), 40)


@pytest.mark.parametrize("fills", FILLS)
def test_a_base_is_taken_once_wherever_the_updater_is_killed(folder: Path, fills: int) -> None:
    def make(place: Path) -> None:
        trainer = Trainer()
        random = np.random.default_rng(5)
        for _ in range(BASE):
            trainer.step(random.standard_normal(trainer.flat().size, np.float32))
        file = trainer.save(place / "step-37.pt", BASE)
        frames, wanted = frames_of(trainer, after=first_life())
        both = both_in(place, frames)
        both.drive(until=lambda: both.applied_iteration() >= STEPS + 3)
        before = lines(both)
        verb.submit_base(both.chain.run, both.config, file)
        both.close()
        right = [one["parameters_sha256"] for one in before] + wanted
        (place / "wanted").write_text(json.dumps(right))

    def judge(place: Path, when: str) -> None:
        readable(place)
        updated(place)
        run = RunDir(place / "run")
        wanted = json.loads((place / "wanted").read_text())
        found = told(place)
        assert found.pop(STEPS)[0] == BASE, when
        assert len(found) >= STEPS + 3, when
        assert [sha for _, sha in found] == wanted[: len(found)], when
        [audit] = map(json.loads, complete_lines(run.audits))
        assert (audit["step"], audit["passed"]) == (BASE, True), when
        assert waiting(run) is None and not checkpoints(run), when
        assert not run.gradients.exists(), when
        assert incarnation_of(run).base == BASE, when

    kept(explore(folder, make, updated, judge, fills=fills), 20)


@pytest.mark.parametrize("fills", FILLS)
def test_a_verdict_is_given_once_wherever_the_updater_is_killed(folder: Path, fills: int) -> None:
    """Of a job that comes back from an older step than the replica's."""
    back = 2

    def make(place: Path) -> None:
        life, weights = first_life(), floats(first_life().truth.weights)
        gradients = [floats(one) for one in life.truth.gradients][:STEPS]
        steps = torch_steps(weights, gradients, "adamw", lr=1e-3)
        second = Life(replace(JOB, seed=1), steps[back - 1], number=1)
        second.generate()
        frames = life.frames_of(stop=life.starts[STEPS] + 9) + second.frames_of()
        both = both_in(place, frames)
        Handover.verdict_due = property(lambda self: False)  # type: ignore[method-assign, assignment]
        offered = partial(read_record, both.chain.run)
        both.drive(until=lambda: offered().extract.offered is not None)
        assert offered().verdict is None and len(told(place)) == STEPS
        both.close()

    def judge(place: Path, when: str) -> None:
        readable(place)
        run = RunDir(place / "run")
        before, newest = read_record(run), max(peek_versions(run.replica)[1])
        assert before.update.state in (ReplicaState.APPLYING, ReplicaState.HANDED_OVER), when
        judged = before.verdict is not None
        assert (before.update.state is ReplicaState.HANDED_OVER) == judged, when
        assert newest == back if judged else newest in (back, STEPS), when
        updated(place)
        verdict = read_record(run).verdict
        assert verdict is not None and (verdict.step, verdict.iterations) == (back, back), when
        assert not judged or verdict == before.verdict, when
        assert max(peek_versions(run.replica)[1]) == back, when
        assert [step for step, _ in told(place)] == list(range(1, back + 1)), when
        [past] = run.root.glob("steps-1.jsonl")
        assert len(past.read_text().splitlines()) == STEPS, when
        [audit] = map(json.loads, complete_lines(run.audits))
        assert (audit["step"], audit["passed"]) == (back, True), when

    kept(explore(folder, make, updated, judge, fills=fills), 20)
