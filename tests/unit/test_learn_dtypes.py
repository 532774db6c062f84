"""Parameters of several dtypes, told from sizes; judged by a generator that shares nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.netib import Options, Truth, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_learning.proved_job import has_consistent_buckets
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.trainer.habits import BUCKET, Habits
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.learn.trainer.told import after
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter, decode_job, encode_job

SMALL = ((96, 40), (96,), (30, 96), (30,), (7, 30))
MIXED = ("bfloat16", "float32", "bfloat16", "float32", "bfloat16")
JOB = Options(
    shapes=SMALL,
    dtypes=MIXED,
    protocol="Simple",
    channels=2,
    version=(2, 23),
    caps_bytes=(6000, 6000),
)
JOBS = {
    "simple": JOB,
    "ll": replace(JOB, protocol="LL"),
    "4 ranks": replace(JOB, ranks=4, protocol="LL", version=(2, 30)),
    "mixed protocols": replace(JOB, ranks=3, mix=((8000, "LL"),)),
    "wide": replace(JOB, dtypes=("float32", "float64", "float32", "float32", "float64")),
    "three": replace(JOB, dtypes=("float16", "float64", "float32", "float32", "float16")),
    "buffers": replace(JOB, buffers=96, counters=1),
    "hook": replace(JOB, compress="float16"),
    "metric": replace(JOB, metric_every=1),
}


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize("name", JOBS)
def test_each_parameter_has_the_size_of_its_dtype(name: str, tmp_path: Path) -> None:
    options = JOBS[name]
    truth, reading = read(options, tmp_path)
    learned = reading.job
    assert learned is not None, reading.why_not
    sizes = [getattr(torch, dtype).itemsize for dtype in options.dtypes]
    assert [p.element_bytes for p in learned.parameters] == sizes
    assert learned.gradient_element_bytes == (2 if options.compress else 0)
    assert learned.buckets == tuple(map(tuple, truth.buckets))
    assert has_consistent_buckets(learned) and decode_job(encode_job(learned)) == learned
    weights = reading.weights
    assert weights is not None and weights.complete
    assert weights.result.tobytes() == truth.weights
    buckets = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert [c.result.tobytes() for c in buckets] == [each.result for each in truth.gradients]
    assert_covers(learned)


def assert_covers(learned: LearnedJob) -> None:
    """Every byte of the flat gradient has a place in the plans of iteration 0 and of the others."""
    for part in ("first", "each"):
        seen = np.zeros(learned.gradient_bytes, bool)
        for plan in compile_flow_plans(learned):
            for segment in getattr(plan, part).segments:
                seen[int(segment["dst_byte"]) :][: int(segment["data_bytes"])] = True
        assert seen.all(), part


@pytest.mark.parametrize("each", [(4, 2, 4), (2, 4, 4, 2), (4, 8, 2)])
def test_iteration_0_has_the_dtype_that_came_last_first(each: tuple[int, ...]) -> None:
    """torch itself: the assignment by dtype, which DDP hands to its reducer reversed."""
    kinds = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
    tensors = [torch.empty(3, dtype=kinds[size]) for size in each]
    assigned, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [1 << 62])
    parameters = [Parameter(sizes=(3,), strides=(1,), element_bytes=size) for size in each]
    assert ddp_messages.first_buckets(parameters) == tuple(map(tuple, reversed(assigned)))


@pytest.mark.parametrize(
    "options",
    [
        replace(JOB, dtypes=("bfloat16", "float16", "float32", "bfloat16", "float32")),
        pytest.param(
            replace(
                JOB,
                shapes=((2, 3), (2,), (1,)),
                dtypes=("float32", "bfloat16", "float32"),
                protocol="LL128",
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["two of one size", "all in one group"],
)
def test_what_sizes_do_not_tell_is_refused(options: Options, tmp_path: Path) -> None:
    _, reading = read(options, tmp_path)
    assert reading.why_not
    assert reading.job is None or (reading.weights and not reading.weights.complete)


@pytest.mark.parametrize("stage", [Stage.SHAPED, Stage.STEPPED])
def test_bucket_known_from_elsewhere_tells_nothing_before_the_weights(stage: Stage) -> None:
    """A search that goes on behind what was lost knows buckets, and no weights."""
    op = Op(
        kind=CollectiveKind.ALL_REDUCE,
        work_bytes=8,
        protocol=Protocol.LL,
        licensed="DDP",
        meaning=BUCKET,
    )
    cut = Cut(op, starts=(), channels=(), schedules=(), rules=(), matched=0, lost=0)
    habits = after(Habits(stage=stage), cut, None)  # type: ignore[arg-type]
    assert habits.stage is Stage.STEPPED and not habits.reduced
