"""Parted optimizers from a generator that shares nothing with the reader: parameters by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.netib import generate
from support.netib.options import Options, Truth
from support.netib.shapes import SMALL, WIDE
from support.staged import Chain, played
from test_netib_joined import behind, frames_in

from flowcheck.findings.catalog.distributed_optimizers import (
    GATHERS_NOT_PLACED,
    MASTERS_BY_ROUNDED,
    ORDER_OPEN,
    STEP_1_UNKNOWN,
    SUMS_EACH_PASS,
)
from flowcheck.findings.catalog.refused_trainers import STEPS_ITS_OWN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.replica.sharding.gather_units import ShardedModel, model_units
from flowcheck.replica.sharding.zero_megatron_layout import (
    NamedParameter,
    ShardingSettings,
    shard_parameters,
)
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import (
    BufferBroadcast,
    FollowedData,
    Parameter,
    decode_job,
)
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardingStyle

STYLES = {"deepspeed": ShardingStyle.ZERO, "megatron": ShardingStyle.MEGATRON}
ZERO = Options(shapes=SMALL, parted="deepspeed", version=(2, 30), steps=4)
BUCKETS = Options(shapes=WIDE, parted="megatron", unit_elements=8000, version=(2, 26), steps=4)
ONE = replace(BUCKETS, unit_elements=0)
CASES = {
    "r2-ll-zero": ZERO,
    "r2-ll-one-bucket": replace(ONE, shapes=SMALL),
    "r3-simple-bf16-late": replace(
        BUCKETS, ranks=3, protocol="Simple", dtype="bfloat16", late=True, mirrored=(1,), channels=2
    ),
}
OTHERS = {
    "r2-ll128-zero-bf16": replace(ZERO, protocol="LL128", dtype="bfloat16", channels=2),
    "r4-simple-zero-219": replace(
        ZERO, shapes=WIDE, ranks=4, protocol="Simple", version=(2, 19), channels=4, mirrored=(2,)
    ),
    "r4-mix-one-bucket-221": replace(
        ONE, ranks=4, version=(2, 21), mix=((1024, "LL"),), protocol="LL128", mirrored=(3,)
    ),
    "r2-simple-one-bucket-bf16": replace(ONE, protocol="Simple", dtype="bfloat16", channels=8),
    "r5-ll-buckets-late": replace(BUCKETS, ranks=5, version=(2, 23), late=True, mirrored=(4,)),
    "r8-simple-one-bucket-ipv6": replace(
        ONE, ranks=8, protocol="Simple", version=(2, 30), channels=2, mirrored=(5,), ipv6=True
    ),
    "r3-ll128-one-bucket-beside": replace(
        ONE, ranks=3, protocol="LL128", metrics_group=True, pipeline_bytes=5000, channels=2
    ),
}


def model_of(options: Options, **settings: object) -> ShardedModel:
    every = [
        NamedParameter(name=f"p{n}", shape=shape, dtype=options.dtype)
        for n, shape in enumerate(options.shapes)
    ]
    how = ShardingSettings(
        style=STYLES[options.parted], bucket_elements=options.unit_elements or None, **settings
    )
    return shard_parameters([every], every, options.ranks, how)


def units_of(truth: Truth, options: Options) -> list[bytes]:
    """[step] what was gathered, in the order of the units."""
    gathered = [c.result for c in truth.collectives if c.kind == "all_gather"]
    count = len(model_of(options).units)
    steps = range(0, len(gathered), count)
    return [b"".join(gathered[at : at + count][:: -1 if options.late else 1]) for at in steps]


def read(options: Options, folder: Path, model: ShardedModel) -> tuple[Reading, list[bytes], bytes]:
    """(what is read, parameters after every step, those sent before)."""
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages, parted=model.sharded_wire)
    return reading, made.truth.parted, made.truth.weights


@pytest.mark.parametrize(
    "name", [*CASES, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]
)
def test_every_gathered_step_is_the_trainers(name: str, tmp_path: Path) -> None:
    options = (CASES | OTHERS)[name]
    model = model_of(options)
    reading, truth, begun = read(options, tmp_path, model)
    assert reading.job is not None, reading.why_not
    assert reading.job.kind is FollowedData.PARAMETERS and reading.gathered is not None
    sizes = [p.nbytes for p in reading.job.parameters]
    placing, _ = model_units(sizes, options.ranks, model)
    base = placing.parameters(reading.gathered.result).tobytes()
    assert base == (begun or truth[0])
    own = [op.bucket for op in reading.job.each if op.role == "bucket"]
    gathers = [c for c in reading.collectives if c.meaning == "gathered parameters"]
    assert all(c.complete for c in gathers)
    for step, expected in enumerate(truth[: len(gathers) // len(own)]):
        parts = gathers[step * len(own) :][: len(own)]
        units = [parts[own.index(unit)].result for unit in range(len(own))]
        assert placing.parameters(np.concatenate(units)).tobytes() == expected
    assert len(gathers) // len(own) == options.steps - options.late


def test_whoever_sums_gradients_is_not_taken_for_it(tmp_path: Path) -> None:
    """DDP of a model whose one bucket needs no padding: sizes, steps and copies are the same."""
    shapes = ((64, 64), (64, 64))
    ddp = Options(shapes=shapes, version=(2, 30), steps=4)
    reading, *_ = read(ddp, tmp_path, model_of(replace(ddp, parted="megatron")))
    assert reading.job is not None and reading.job.kind is FollowedData.GRADIENTS
    alone = replace(ddp, parted="deepspeed", seed=5)
    reading, *_ = read(alone, tmp_path, model_of(replace(alone, parted="megatron")))
    print(reading.why_not)
    assert reading.job is None and "[sharded] style" in " ".join(map(str, reading.why_not))


def test_buckets_alike_both_ways_need_their_order_stated(tmp_path: Path) -> None:
    options = replace(BUCKETS, shapes=((128, 64), (128, 64)), late=True)
    reading, *_ = read(options, tmp_path, model_of(options))
    assert reading.job is None and ORDER_OPEN() in reading.why_not
    reading, truth, _ = read(options, tmp_path, model_of(options, overlap_param_gather=True))
    assert reading.gathered is not None and reading.gathered.result.tobytes() == b"".join(
        truth[0][start : start + 32768] for start in (32768, 0)
    )


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("r2-ll-one-bucket", 0.3),
        pytest.param("r3-simple-bf16-late", 0.45, marks=pytest.mark.nightly),
        pytest.param("r2-ll-zero", 0.35, marks=pytest.mark.nightly),
        pytest.param("r2-simple-one-bucket-bf16", 0.2, marks=pytest.mark.nightly),
        pytest.param("r2-simple-one-bucket-bf16", 0.37, marks=pytest.mark.nightly),
        pytest.param("r4-mix-one-bucket-221", 0.33, marks=pytest.mark.nightly),
        pytest.param("r5-ll-buckets-late", 0.4, marks=pytest.mark.nightly),
    ],
)
def test_one_that_is_met_amid_its_run_is_followed_from_a_whole_step_on(
    name: str, share: float, tmp_path: Path, shm: Path
) -> None:
    options = replace((CASES | OTHERS)[name], steps=10)
    made = generate(options, tmp_path)
    files = [
        behind(file, int(share * frames_in(file)), tmp_path / str(n))
        for n, file in enumerate(made.files)
    ]
    model = model_of(options)
    right = units_of(made.truth, options)
    chain = Chain(tmp_path, shm / "memory", files, 512)
    chain.run.units.write_bytes(msgspec.json.encode(model))
    found = played(chain, 32)
    job = decode_job(chain.run.learned_job.read_bytes())
    began = chain.run.weights.read_bytes()
    chain.close()
    assert job.midstream and not job.awaits_base and STEP_1_UNKNOWN() in job.assumed
    later = right[right.index(began) :]
    assert len(found) >= len(later) - 1 >= 3 and list(found.values()) == later[: len(found)]


@pytest.mark.parametrize(
    "shapes",
    [
        ((128, 64), (128, 64)),
        pytest.param(((128, 64), (64, 64)), marks=pytest.mark.nightly),
    ],
)
def test_units_gathered_in_another_order_once_are_not_taken_for_each_other(
    shapes: tuple[tuple[int, ...], ...], tmp_path: Path, shm: Path
) -> None:
    options = replace(BUCKETS, shapes=shapes, unit_elements=4000, late=True, forced=5, steps=8)
    made = generate(options, tmp_path)
    model = model_of(options, overlap_param_gather=True)
    gathered = [c.result for c in made.truth.collectives if c.kind == "all_gather"]
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    chain.run.units.write_bytes(msgspec.json.encode(model))
    found = played(chain, 32)
    chain.close()
    steps = {n + 1: gathered[2 * n : 2 * n + 2] for n in range(4)}
    right = {step: b"".join(units[::-1]) for step, units in steps.items()}
    assert found == right


SOME = {
    "r2-ll-one-bucket": replace(ONE, shapes=SMALL, metric_every=3),
    "r3-simple-bf16-late": replace(CASES["r3-simple-bf16-late"], metric_every=3),
    "r2-ll-zero-skips": replace(ZERO, skipped=5),
    "r3-simple-zero-skips": replace(ZERO, ranks=3, protocol="Simple", skipped=5, mirrored=(1,)),
}


@pytest.mark.parametrize(
    "name",
    ["r2-ll-one-bucket", *(pytest.param(n, marks=pytest.mark.nightly) for n in list(SOME)[1:])],
)
def test_what_comes_in_some_steps_alone_is_left_out(name: str, tmp_path: Path, shm: Path) -> None:
    options = replace(SOME[name], steps=8)
    made = generate(options, tmp_path)
    model = model_of(options)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    chain.run.units.write_bytes(msgspec.json.encode(model))
    found = played(chain, 32)
    chain.close()
    assert list(found.values()) == units_of(made.truth, options)[: len(found)]
    assert len(found) == options.steps - options.late - bool(options.skipped)


@pytest.mark.parametrize(
    ("dtype", "shapes", "ranks"),
    [
        ("float32", SMALL, 2),
        ("bfloat16", SMALL, 2),
        ("bfloat16", WIDE, 2),
        pytest.param("bfloat16", WIDE, 3, marks=pytest.mark.nightly),
    ],
)
def test_gradients_of_a_stated_model_are_refused_where_its_optimizer_has_other_parameters(
    dtype: str, shapes: tuple[tuple[int, ...], ...], ranks: int, tmp_path: Path
) -> None:
    options = replace(ZERO, dtype=dtype, shapes=shapes, ranks=ranks)
    each = getattr(torch, dtype).itemsize
    parameters = tuple(
        Parameter(sizes=s, strides=(s[1], 1) if len(s) > 1 else (1,), element_bytes=each)
        for s in options.shapes
    )
    stated = OperatorStatement(parameters=parameters, order=tuple(range(len(parameters)))[::-1])
    tape = read_capture_files(generate(options, tmp_path).files)
    reading = read_stream(tape.flows, tape.messages, stated=stated)
    if dtype == "float32":
        assert reading.job is not None and reading.job.kind is FollowedData.GRADIENTS
    else:
        assert reading.job is None and STEPS_ITS_OWN() in reading.why_not


def other_ranks(options: Options) -> ShardedModel:
    return model_of(replace(options, ranks=options.ranks + 1))


WHOLE = {
    "r2-ll128-bf16": OTHERS["r2-ll128-zero-bf16"],
    "r3-simple-bf16": replace(
        ZERO, ranks=3, protocol="Simple", dtype="bfloat16", channels=2, mirrored=(1,)
    ),
    "r2-ll-bf16": replace(ZERO, dtype="bfloat16"),
    "r4-simple": OTHERS["r4-simple-zero-219"],
}


@pytest.mark.parametrize("name", WHOLE)
def test_where_the_optimizer_is_stated_sums_are_followed_and_gathers_lie_behind_them(
    name: str, tmp_path: Path
) -> None:
    options = WHOLE[name]
    each = getattr(torch, options.dtype).itemsize
    parameters = tuple(
        Parameter(sizes=s, strides=(s[1], 1) if len(s) > 1 else (1,), element_bytes=each)
        for s in options.shapes
    )
    order = tuple(range(len(parameters)))[::-1]
    stated = OperatorStatement(parameters=parameters, order=order, steps_masters=True)
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    model = model_of(options)
    reading = read_stream(tape.flows, tape.messages, stated=stated, parted=model.sharded_wire)
    job = reading.job
    assert job is not None and job.kind is FollowedData.GRADIENTS, reading.why_not
    gathered = model.units[0].block_bytes * options.ranks
    assert job.buffer_broadcasts == (BufferBroadcast(numbers=(), nbytes=gathered, unit=0),)
    assert (MASTERS_BY_ROUNDED() in job.assumed) == (options.dtype == "bfloat16")
    covered = np.zeros(job.gradient_bytes + gathered, bool)
    for plan in compile_flow_plans(job):
        for part in plan.each.segments:
            at = int(part["dst_byte"])
            covered[at : at + int(part["data_bytes"])] = True
    assert covered.all()
    twice = model_of(options, sums_per_step=2)
    for parted, why in ((other_ranks(options), GATHERS_NOT_PLACED()), (twice, SUMS_EACH_PASS(2))):
        wire = parted.sharded_wire
        reading = read_stream(tape.flows, tape.messages, stated=stated, parted=wire)
        job = reading.job
        if why == GATHERS_NOT_PLACED() and options.dtype == "float32":
            assert job is not None and why in job.assumed  # no copies that only gathers show
        else:
            assert job is None or job.kind is FollowedData.PARAMETERS
        assert all(part.job is None or part.job is job for part in reading.parts)
