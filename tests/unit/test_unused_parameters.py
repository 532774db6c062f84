"""Parameters that no rank used: read off the map, left out of their steps, said where assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.chain import torch_steps
from support.incarnations import Life, floats
from support.lives import Both
from support.staged import Chain, played
from support.used import SomeUnused, Static, StaticUnused, Told, Unused

from flowcheck.findings.catalog.collective_evidence import MAP_LEFT_OUT
from flowcheck.findings.catalog.job_restarts import NOT_FOLLOWED, OTHERWISE_USED
from flowcheck.findings.catalog.lost_steps import (
    NO_USED_MAP,
    STEP_REFUSED,
    UNUSED_IN_ONE_BACKWARD,
    UNUSED_NOT_ZERO,
)
from flowcheck.findings.catalog.refused_trainers import UNUSED_CUTS_OPEN
from flowcheck.findings.catalog.replica_update_notes import UNUSED_LEFT_OUT
from flowcheck.findings.finding import Finding
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticRun,
    SyntheticTraffic,
    write_pcap,
)
from flowcheck.messages import AuditRecord, Drained, StepLost
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, incarnation_of
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap, note_first_unused_step
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import LearnedJob, decode_job, encode_job

SHAPES, BUCKETS = ((30, 40), (30,), (20, 30), (20,)), ((3, 2), (1, 0))
JOB = SyntheticJob(shapes=SHAPES, buckets=BUCKETS, steps=6, version="2.29")
JOBS = [JOB, SyntheticJob(shapes=SHAPES, buckets=BUCKETS, ranks=4, channels=2, steps=6)]
UNUSED_BYTES = 4 * (1200 + 30 + 600 + 20)


Play = Callable[[SyntheticRun], tuple[Chain, dict[int, bytes]]]
"""The stage on a trainer's frames, and what it ought to find by step."""


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Play]:
    chains: list[Chain] = []

    def make_chain(trainer: SyntheticRun) -> tuple[Chain, dict[int, bytes]]:
        traffic = trainer.generate()
        write_pcap(capture := tmp_path / "job.pcap", traffic.frames_at_port(0))
        chains.append(Chain(tmp_path, shm / "run", [capture], 256))
        return chains[-1], dict(enumerate(traffic.gradients, 1))

    yield make_chain
    for chain in chains:
        chain.close()


def read(trainer: SyntheticRun, folder: Path) -> Reading:
    write_pcap(path := folder / "job.pcap", trainer.generate().frames_at_port(0))
    tape = read_capture_files([path])
    return read_stream(tape.flows, tape.messages)


def learned(trainer: SyntheticRun, folder: Path) -> LearnedJob:
    reading = read(trainer, folder)
    assert reading.job is not None, reading.why_not
    return reading.job


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
@pytest.mark.parametrize("metric_every", [0, 2])
@pytest.mark.parametrize("trainer", [Unused, SomeUnused])
def test_map_of_every_iteration_lies_behind_its_gradient(
    trainer: type[Told], metric_every: int, job: SyntheticJob, play: Play
) -> None:
    chain, wanted = play(trainer(replace(job, metric_every=metric_every)))
    assert played(chain) == wanted
    known = decode_job(chain.run.learned_job.read_bytes())
    assert known.has_usage_map and known.buckets == ((2, 3), (0, 1), (4,))
    own = UnusedParameterMap(known, 1)
    for step, whole in wanted.items():
        gradient, used = own.split(np.frombuffer(whole, np.uint8))
        assert gradient.tobytes() == whole[:UNUSED_BYTES] and used is not None
        some = trainer is SomeUnused and step % 2 == 0
        assert np.flatnonzero(~used).tolist() == ([1, 3] if some else [])


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
@pytest.mark.parametrize(("trainer", "never"), [(Static, ()), (StaticUnused, (1,))])
def test_static_graph_reduces_two_iterations_before_its_plan(
    trainer: type[Told], never: tuple[int, ...], job: SyntheticJob, play: Play
) -> None:
    chain, wanted = play(trainer(replace(job, metric_every=4)))
    assert played(chain) == wanted and len(wanted) == job.steps + 1
    known = decode_job(chain.run.learned_job.read_bytes())
    assert known.unused_parameters == never and len(known.first_iterations) == 2
    _, used = UnusedParameterMap(known, 1).split(np.frombuffer(wanted[2], np.uint8))
    assert (used is None) == (not never)
    assert used is None or tuple(np.flatnonzero(~used)) == never


class KeepsGradients(SomeUnused):
    """No zero_grad(): what nobody used still has the gradient of the step before."""

    def iteration(self) -> None:
        left_out, self.unused = self.unused, frozenset()
        self._step(self.buckets)
        self.truth.gradients[-1] += self.map(*(i not in left_out for i in range(len(SHAPES))))


def test_gradient_of_what_nobody_used_stops_before_its_step(play: Play) -> None:
    chain, wanted = play(KeepsGradients(JOB))
    assert played(chain) == {1: wanted[1]}
    lost = chain.heard.of(StepLost)[0]
    assert isinstance(lost, StepLost)
    assert lost.step == 2 and lost.why is not None and lost.why.is_any_of(UNUSED_NOT_ZERO)


class SkipsLater(Unused):
    """skip_all_reduce_unused_params=True: in iteration 4 nobody used the last two parameters."""

    def iteration(self) -> None:
        late = len(self.truth.gradients) == 4
        self.unused = frozenset({2, 3}) if late else frozenset()
        self.buckets = ((0, 1),) if late else ((2, 3), (0, 1))
        super().iteration()


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
def test_iteration_that_leaves_a_bucket_out_is_no_extra_collective(
    job: SyntheticJob, play: Play
) -> None:
    chain, wanted = play(SkipsLater(replace(job, steps=8)))
    assert played(chain) == {step: wanted[step] for step in range(1, 5)}
    lost = chain.heard.of(StepLost)[0]
    assert isinstance(lost, StepLost)
    assert lost.step == 5 and lost.why == STEP_REFUSED(step=5, reason=MAP_LEFT_OUT())


class SwitchedOn(Life):
    """The incarnation after: find_unused_parameters is set, and all fits into one bucket."""

    def generate(self) -> SyntheticTraffic:
        self._startup_broadcasts()
        for _ in range(self.job.steps):
            self._step((tuple(range(len(SHAPES))),))
            counts = np.ones(len(SHAPES), "<i4").tobytes()
            self._all_reduce([counts] * self.job.ranks, torch.int32)
        self.truth.frames = self.fabric.frames
        return self.truth


def test_next_incarnation_with_a_map_is_not_taken_for_the_one_before(
    shm: Path, tmp_path: Path
) -> None:
    job = replace(JOB, buckets=((3, 2, 1, 0),))
    life = Life(job)
    gradients = [floats(gradient) for gradient in life.generate().gradients]
    steps = torch_steps(floats(life.truth.weights), gradients, "adamw", lr=1e-3)
    second = SwitchedOn(replace(job, seed=1), steps[2], number=1)
    second.generate()
    write_pcap(path := tmp_path / "lives.pcap", life.frames_of() + second.frames_of())
    both = Both(Chain(tmp_path, shm / "memory", [path], 256), replica={"keep_bytes": 1 << 22})
    try:
        both.drive()
        assert incarnation_of(both.chain.run) == Incarnation()
        [drained] = both.chain.heard.of(Drained)
        assert isinstance(drained, Drained)
        assert drained.steps == job.steps and drained.why is not None
        assert drained.why.arguments["what"] == NOT_FOLLOWED(OTHERWISE_USED())
    finally:
        both.close()


@pytest.mark.parametrize(("middle", "told"), [(1, False), (5, True)])
def test_buckets_that_may_lie_otherwise_are_not_followed(
    middle: int, told: bool, tmp_path: Path
) -> None:
    class Cut(Unused):
        """An LL line has room for one number more: the middle one is in either bucket."""

        buckets = ((1, 2), (0,))

    job = SyntheticJob(shapes=((31,), (middle,), (31,)), steps=4)
    reading = read(Cut(job), tmp_path)
    assert (reading.job is not None) is told
    if reading.job is not None:
        assert reading.job.buckets == ((1, 2), (0,), (3,))
    else:
        assert reading.why_not[0].is_any_of(UNUSED_CUTS_OPEN)


def test_what_counts_no_ranks_is_no_map(tmp_path: Path) -> None:
    known = learned(Unused(JOB), tmp_path)
    gradient = np.zeros(UNUSED_BYTES // 4, "<i4")
    for counts, is_one in (((2, 1, 0, 2), True), ((0, 0, 0, 0), False), ((3, 1, 1, 1), False)):
        whole = np.concatenate([gradient, np.array(counts, "<i4")]).view(np.uint8)
        why = UnusedParameterMap(known, 1).problem(whole)
        assert why == (None if is_one else NO_USED_MAP())
    whole = np.concatenate([gradient, np.array((2, 1, 0, 2), "<i4")]).view(np.uint8)
    assert UnusedParameterMap(known, 2).problem(whole) == UNUSED_IN_ONE_BACKWARD(2)


def test_gradient_that_may_be_kept_is_assumed_to_be_none_until_an_audit(
    tmp_path: Path, shm: Path
) -> None:
    run = RunDir.create(tmp_path / "run", shm / "run")
    run.learned_folder.mkdir(exist_ok=True)
    run.learned_job.write_bytes(encode_job(learned(SomeUnused(JOB), tmp_path)))

    def told() -> list[Finding]:
        return [found for found in assumptions_of(run) if found.is_any_of(UNUSED_LEFT_OUT)]

    assert not told()
    for step in (4, 6):
        note_first_unused_step(run.first_unused_step, step)
        assert told() == [UNUSED_LEFT_OUT(4)]
    for step, still in ((3, True), (4, False)):
        line = AuditRecord(step=step, passed=True, file="x", tensors=1)
        with run.audits.open("ab") as log:
            log.write(msgspec.json.encode(line) + b"\n")
        assert bool(told()) is still
