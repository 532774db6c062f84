"""Trainers whose settings keep them from being followed: the finding names the setting."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.loss import Restless
from support.used import Static, Told, Unused

from flowcheck.findings.catalog.collective_evidence import WEIGHTS_IN_ONE_LINE
from flowcheck.findings.catalog.job_learning import BUFFERS_OF_TEMPLATE, SAME_TYPE
from flowcheck.findings.catalog.refused_trainers import (
    BUCKET_TWIN,
    OTHER_HOOK,
    SEVERAL_DTYPES_BROADCAST,
    SKIPPED_UNUSED,
    STATIC_GRAPH,
    TWO_MODELS,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.lab.synthetic_traffic import ring_collectives
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticRun,
    SyntheticTraffic,
    write_pcap,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

SHAPES, BUCKETS = ((30, 40), (30,), (20, 30), (20,)), ((3, 2), (1, 0))
JOB = SyntheticJob(shapes=SHAPES, buckets=BUCKETS, steps=5, version="2.29")
JOBS = [JOB, SyntheticJob(shapes=SHAPES, buckets=BUCKETS, ranks=4, channels=2, steps=5)]


class Trainer(Told):
    """A trainer of which a part goes otherwise than DDP's usual way."""

    def gather(self, block: bytes) -> None:
        self._play(ring_collectives.all_gather([block] * self.job.ranks))
        self.truth.collectives.append(("all_gather", block * self.job.ranks))


class PowerSgd(Trainer):
    """Two low-rank factors of every bucket instead of it."""

    def _all_reduce(self, tensors: list[bytes], dtype: torch.dtype) -> bytes:
        for size in (52, 72):
            SyntheticRun._all_reduce(self, [tensor[:size] for tensor in tensors], dtype)
        return b""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        local = [self._made_up(shape) for shape in self.job.shapes]
        for bucket in buckets:
            own = b"".join(local[i] for i in bucket)
            self._all_reduce([own] * self.job.ranks, self.job.dtype)


class SkipsUnused(Unused):
    """skip_all_reduce_unused_params=True: a bucket that nobody used is not reduced."""

    def iteration(self) -> None:
        self.buckets = ((2, 3), (0, 1))[len(self.truth.gradients) % 2 :]
        super().iteration()


class StaticInAnotherOrder(Static):
    """Two iterations before the plan, of which the first has no whole gradient."""

    def generate(self) -> SyntheticTraffic:
        self._startup_broadcasts()
        self.map(1, 1, 1, 1)
        self.plan(BUCKETS)
        for _ in range(self.job.steps):
            Told._step(self, BUCKETS)
        self.truth.frames = self.fabric.frames
        return self.truth


class SeveralWithoutPlan(Trainer):
    """The second layer is of another type: broadcasts and buckets of its own, but no plan."""

    def generate(self) -> SyntheticTraffic:
        self._startup_broadcasts()
        for _ in range(self.job.steps):
            self._step(BUCKETS)
        self.truth.frames = self.fabric.frames
        return self.truth

    def _startup_broadcasts(self) -> None:
        broadcast = self._broadcast

        def in_parts(data: bytes) -> None:
            if data is not self.truth.weights:
                return broadcast(data)
            cut = self.sizes[0] + self.sizes[1]
            broadcast(data[:cut])
            return broadcast(_narrow(data[cut:]))

        self._broadcast = in_parts  # type: ignore[method-assign]
        super()._startup_broadcasts()
        self._broadcast = broadcast  # type: ignore[method-assign]

    def _all_reduce(self, tensors: list[bytes], dtype: torch.dtype) -> bytes:
        if len(tensors[0]) == self.sizes[2] + self.sizes[3]:
            super()._all_reduce(list(map(_narrow, tensors)), torch.bfloat16)
            return tensors[0]
        return super()._all_reduce(tensors, dtype)


class TwoModels(Trainer):
    """A second wrapper starts up before the first one steps."""

    def _startup_broadcasts(self) -> None:
        super()._startup_broadcasts()
        self.gather(struct.pack("<q", 2))
        self.tell(9, 5, 5, 1, 9, 1, code="q")
        self._broadcast(bytes(range(216)))


class Normed(Trainer):
    """SyncBatchNorm: statistics are gathered in forward, and reduced in backward."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        self.gather(bytes(range(1, 85)))
        self._all_reduce([bytes(range(160))] * self.job.ranks, torch.int32)
        super()._step(buckets)


class Buffered(Trainer):
    """BatchNorm: running statistics and their counts are broadcast in every forward."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        self._broadcast(bytes(range(80)))
        super()._step(buckets)


def _narrow(data: bytes) -> bytes:
    values = torch.frombuffer(bytearray(data), dtype=torch.float32).bfloat16()
    return values.view(torch.uint8).numpy().tobytes()


def read(trainer: SyntheticRun, folder: Path) -> Reading:
    write_pcap(path := folder / "job.pcap", trainer.generate().frames_at_port(0))
    tape = read_capture_files([path])
    return read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
@pytest.mark.parametrize(
    ("trainer", "cause"),
    [
        (PowerSgd, OTHER_HOOK),
        (SkipsUnused, SKIPPED_UNUSED),
        (StaticInAnotherOrder, STATIC_GRAPH),
        (SeveralWithoutPlan, SEVERAL_DTYPES_BROADCAST([1240, 4920])),
        (TwoModels, TWO_MODELS(parameters=2, first_parameters=4)),
    ],
)
def test_refusal_names_the_setting_that_causes_it(
    trainer: type[Trainer], cause: Entry | Finding, job: SyntheticJob, tmp_path: Path
) -> None:
    reading = read(trainer(job), tmp_path)
    assert reading.job is None
    [why] = reading.why_not
    assert why.is_any_of(cause) if isinstance(cause, Entry) else why == cause


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
def test_all_reduce_as_large_as_a_bucket_in_every_iteration_is_refused(
    job: SyntheticJob, tmp_path: Path
) -> None:
    reading = read(Restless(job, twice=1), tmp_path)
    assert reading.job is None
    assert reading.why_not[0].is_any_of(BUCKET_TWIN)


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
def test_collectives_of_the_models_own_are_no_part_of_the_gradient(
    job: SyntheticJob, tmp_path: Path
) -> None:
    trainer = Normed(job)
    reading = read(trainer, tmp_path)
    assert reading.job is not None, reading.why_not
    roles = [(op.kind, op.role) for op in reading.job.each]
    assert roles == [
        ("all_gather", "ignored"),
        ("all_reduce", "ignored"),
        ("all_reduce", "bucket"),
        ("all_reduce", "bucket"),
    ]
    results = [result for kind, result in trainer.truth.collectives if kind == "all_reduce"]
    gradients = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert [c.result.tobytes() for c in gradients] == [r for r in results if len(r) != 160]
    assert all(c.complete for c in gradients)


@pytest.mark.parametrize(("trainer", "told"), [(SyntheticRun, False), (Buffered, True)])
def test_buffers_are_said_to_be_no_part_of_the_replica(
    trainer: type[SyntheticRun], told: bool, tmp_path: Path
) -> None:
    reading = read(trainer(JOB), tmp_path)
    assert reading.job is not None, reading.why_not
    assert (BUFFERS_OF_TEMPLATE() in reading.job.assumed) is told


@pytest.mark.parametrize("shapes", [((1,),), ((1, 1), (1,))])
def test_weights_of_one_line_are_no_model_for_sure(
    shapes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    reading = read(SyntheticRun(SyntheticJob(shapes=shapes, steps=5)), tmp_path)
    assert reading.weights is not None and not reading.weights.complete
    assert reading.weights.why_not is not None and reading.weights.why_not.is_any_of(
        WEIGHTS_IN_ONE_LINE
    )
    assert reading.weights.why_not in reading.why_not


@pytest.mark.parametrize(("dtype", "told"), [(torch.float32, False), (torch.float16, True)])
def test_hook_into_the_other_type_of_two_bytes_is_said_not_to_show(
    dtype: torch.dtype, told: bool, tmp_path: Path
) -> None:
    reading = read(SyntheticRun(replace(JOB, dtype=dtype)), tmp_path)
    assert reading.job is not None, reading.why_not
    assert (SAME_TYPE() in reading.job.assumed) is told
