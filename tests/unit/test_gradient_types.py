"""Gradients that a hook reduces in another type than the parameters have: learned, and followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.refused_as import refused_as
from torch import nn

from flowcheck.config import JobConfig, OptimizerConfig, job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import replica_update_notes
from flowcheck.findings.catalog.job_learning import COMPRESSED
from flowcheck.findings.catalog.parameter_layouts import BYTE_COUNT, GRADIENT_BYTES
from flowcheck.findings.catalog.refused_settings import ONE_OF
from flowcheck.findings.catalog.refused_trainers import BUCKET_TWIN, GRADIENT_TYPE_OPEN
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, SyntheticRun, write_pcap
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import decode_job, encode_job

SHAPES, BUCKETS = ((30, 40), (30,), (20, 30), (20,)), ((3, 2), (1, 0))
JOB = SyntheticJob(shapes=SHAPES, buckets=BUCKETS, steps=5, version="2.29")
JOBS = [JOB, SyntheticJob(shapes=SHAPES, buckets=BUCKETS, ranks=4, channels=2, steps=5)]
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
OWN = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class Compressed(SyntheticRun):
    """A hook casts a bucket to 16 bits, divides it, and reduces that."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        sizes = [torch.Size(shape).numel() for shape in self.job.shapes]
        gradient: dict[int, bytes] = {}
        for bucket in buckets:
            count = sum(sizes[i] for i in bucket)
            ranks = range(self.job.ranks)
            made = [torch.randn(count, generator=self.random) for _ in ranks]
            cast = [m.half().div_(self.job.ranks).numpy().tobytes() for m in made]
            reduced = self._all_reduce(cast, torch.float16)
            at = 0
            for i in bucket:
                gradient[i] = reduced[at : at + 2 * sizes[i]]
                at += 2 * sizes[i]
        self.truth.gradients.append(b"".join(gradient[i] for i in sorted(gradient)))


class CompressedBesideWhole(Compressed):
    """It reduces as many numbers of 4 bytes for itself, too."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        super()._step(buckets)
        for bucket in buckets:
            size = sum(self.sizes[i] for i in bucket)
            super()._all_reduce([bytes(range(1, 5)) * (size // 4)] * self.job.ranks, torch.float32)


def read(trainer: SyntheticRun, folder: Path) -> Reading:
    write_pcap(path := folder / "job.pcap", trainer.generate().frames_at_port(0))
    tape = read_capture_files([path])
    return read_stream(tape.flows, tape.messages)


def stated(**model: object) -> JobConfig:
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    return job_from({"source": [{"file": "x"}], "optimizer": optimizer, "model": model})


@pytest.mark.parametrize("job", JOBS, ids=["2 ranks", "4 ranks"])
def test_gradients_of_a_hook_are_learned_in_their_own_type(
    job: SyntheticJob, tmp_path: Path
) -> None:
    trainer = Compressed(job)
    reading = read(trainer, tmp_path)
    learned = reading.job
    assert learned is not None, reading.why_not
    assert decode_job(encode_job(learned)) == learned
    assert learned.gradient_element_bytes == 2
    assert [p.element_bytes for p in learned.parameters] == [4] * 4
    assert learned.gradient_bytes == 2 * sum(torch.Size(s).numel() for s in SHAPES)
    assert reading.weights is not None
    assert reading.weights.result.tobytes() == trainer.truth.weights
    results = [result for kind, result in trainer.truth.collectives if kind == "all_reduce"]
    gradients = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert [c.result.tobytes() for c in gradients] == results
    assert COMPRESSED(gradient_bytes=2, parameter_bytes=4) in learned.assumed


def test_job_that_reduces_both_types_is_refused(tmp_path: Path) -> None:
    reading = read(CompressedBesideWhole(JOB), tmp_path)
    assert reading.job is None
    [why] = reading.why_not
    assert why.is_any_of(GRADIENT_TYPE_OPEN, BUCKET_TWIN)


def test_type_of_a_hook_must_be_stated_and_must_fit(tmp_path: Path) -> None:
    learned, plain = (read(kind(JOB), tmp_path).job for kind in (Compressed, SyntheticRun))
    assert learned is not None and plain is not None
    with refused_as(replica_update_notes.GRADIENT_TYPE_OPEN):
        layout_of(learned, stated())
    with refused_as(replica_update_notes.GRADIENT_TYPE_SIZE, sizes="2"):
        layout_of(learned, stated(gradient_dtype="float32"))
    with refused_as(replica_update_notes.GRADIENT_TYPE_SIZE, sizes="4"):
        layout_of(plain, stated(gradient_dtype="bfloat16"))
    with refused_as(ONE_OF, kind=ConfigError, key="model.gradient_dtype", value="'half'"):
        stated(gradient_dtype="half")
    assert layout_of(learned, stated(gradient_dtype="bfloat16")).gradient_dtype == "bfloat16"
    assert layout_of(plain, stated(gradient_dtype="float32")) == layout_of(plain, stated())


@pytest.mark.parametrize("hook", HALF)
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_on_compressed_gradients_have_torchs_bits(
    hook: str, own: str, clip: float | None, tmp_path: Path
) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(6, 31)).to(OWN[own])
    net = net.to(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    shapes = [(tuple(p.shape), p.stride()) for p in parameters]
    layout = Layout.of(shapes, dtype=own, gradient_dtype=hook)
    config = OptimizerConfig(name="adamw", learning_rate=0.01, clip_norm=clip)
    replica = Replica.create(tmp_path / "state", layout, config, flat(parameters))
    for step in range(1, 5):
        # default_hooks.py, _compress_hook: what was reduced is written into the bucket.
        bucket = torch.randn(sum(p.numel() for p in parameters), dtype=OWN[own])
        reduced = bucket.to(HALF[hook]).div_(3)
        bucket.copy_(reduced)
        at = 0
        for p in parameters:
            p.grad = torch.as_strided(bucket, p.shape, p.stride(), at)
            at += p.numel()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        replica.apply(step, reduced.view(torch.uint8).numpy())
        assert replica.parameters().tobytes() == flat(parameters).tobytes(), step
    with refused_as(GRADIENT_BYTES, BYTE_COUNT):
        replica.apply(5, bytes(7))
    replica.close()


def flat(tensors: list[nn.Parameter]) -> np.ndarray:
    """Memory order, as DDP's buckets hold them."""
    own = [torch.as_strided(t.detach(), (t.numel(),), (1,)) for t in tensors]
    return torch.cat(own).view(torch.uint8).numpy().copy()
