"""All-reduces by NVLS trees of an independent generator, start-ups round rings on the same queue
pairs: every sum, and every step's gradient, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from property.test_netib_followed import follow
from support.netib import Options, generate

from flowcheck.findings.catalog.job_learning import SEARCH_BROKEN_OFF
from flowcheck.findings.catalog.refused_trainers import NVLS_PORTS_MISSING
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.cuts import purse
from flowcheck.wire.training_job.learned_job import decode_job

WIDE = ((300, 128), (300,), (64, 300), (64,))
LARGE = ((500, 700), (700,), (64, 500), (64,))
NVLS = Options(
    shapes=WIDE, ranks=4, gpus=2, channels=2, version=(2, 30), protocol="Simple",
    mix=((100, "LL"), (20_000, "LL128")), nvls_above=1, nvls_channels=4,
    caps_bytes=(40_000, 90_000), mtu=4096, steps=3,
)  # fmt: skip
LARGER = replace(NVLS, shapes=LARGE, caps_bytes=(400_000, 900_000))
FOLLOWED = {
    "two-nodes": NVLS,
    "other-node": replace(NVLS, mirrored=(1,)),
    "four-gpus": replace(NVLS, gpus=4, ranks=8, nvls_channels=16),
    "eight-gpus": replace(LARGER, gpus=8, ranks=16, nvls_channels=16),
    "four-nics": replace(NVLS, gpus=8, ranks=16, nics=4, nvls_channels=8),
    "one-nic": replace(NVLS, gpus=4, ranks=8, nics=1),
    "one-file": replace(NVLS, manners=replace(NVLS.manners, merged=True)),
    "218": replace(LARGER, version=(2, 18), nvls_channels=8),
    "219": replace(LARGER, version=(2, 19), nvls_channels=8),
    "220": replace(LARGER, version=(2, 20), nvls_channels=8),
    "221-bf16": replace(LARGER, version=(2, 21), nvls_channels=6, dtype="bfloat16"),
    "222": replace(LARGER, version=(2, 22), nvls_channels=8),
    "226-fp16-hook": replace(LARGER, version=(2, 26), nvls_channels=8, compress="float16"),
    "shared": replace(LARGER, ring_exits="crossed", channels=4),
    "shared-eight-gpus": replace(
        LARGER, gpus=8, ranks=16, ring_exits="crossed", channels=16, nvls_channels=16
    ),
    "through-other-nics": replace(LARGER, gpus=4, ranks=8, ring_exits="own", channels=4),
    "three-nodes": replace(NVLS, ranks=6),
    "three-nodes-inner": replace(NVLS, ranks=6, mirrored=(2,)),
    "four-nodes": replace(NVLS, gpus=4, ranks=16, mirrored=(1,)),
    "four-nodes-root": replace(NVLS, ranks=8, mirrored=(3,), nvls_channels=8),
}
BY_DAY = ("two-nodes", "shared", "three-nodes-inner", "one-file")
OF_HALVES = ("221-bf16", "226-fp16-hook")
"""The truth of a step's gradient is made of float32 alone; their sums are judged by themselves."""
NAMES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in FOLLOWED
]


@pytest.mark.parametrize("name", NAMES)
def test_each_sum_is_told(name: str, tmp_path: Path) -> None:
    made = generate(FOLLOWED[name], tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    told = [c for c in reading.collectives if c.algorithm is Algorithm.NVLS_TREE]
    truth = [c for c in made.truth.collectives if c.kind == "all_reduce"]
    assert [c.sha256 for c in told] == [c.sha256 for c in truth]
    assert reading.job is not None and reading.why_not == ()
    assert reading.weights is not None
    assert reading.weights.data.tobytes() == made.truth.weights


@pytest.mark.parametrize("name", [one for one in NAMES if one.values[0] not in OF_HALVES])
def test_jobs_are_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options = FOLLOWED[name]
    chain = follow(options, tmp_path, shm)
    job = decode_job(chain.run.learned_job.read_bytes())
    assert job.communicators[0].ranks == options.ranks
    assert job.communicators[0].heads == options.heads
    assert any(op.algorithm is Algorithm.NVLS_TREE for op in job.each)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def effort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing takes all that it may: by day a tenth of it, by night all."""
    if not request.param:
        monkeypatch.setattr(purse, "MOST_LAID", tuple(most // 10 for most in purse.MOST_LAID))


@pytest.mark.nightly  # by day of two GPUs, below
@pytest.mark.timeout(600)
@pytest.mark.parametrize("left", [(0,), (0, 2), (0, 1, 3)])
def test_a_port_that_is_missing_is_named_and_no_sum_is_told(
    left: tuple[int, ...], tmp_path: Path
) -> None:
    made = generate(replace(NVLS, gpus=4, ranks=8, channels=1), tmp_path)
    tape = read_capture_files([made.files[number] for number in left])
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is None
    assert not any(c.complete for c in reading.collectives if c.kind == "all_reduce")
    (why,) = [one for one in reading.why_not if one.is_any_of(NVLS_PORTS_MISSING)]
    assert why.arguments["missing"] == tuple(gpu for gpu in range(4) if gpu not in left)


@pytest.mark.timeout(600)
def test_a_missing_port_stands_before_the_end_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two GPUs, of which one writes as a head. What is told first is what `status` shows."""
    monkeypatch.setattr(purse, "MOST_LAID", tuple(most // 200 for most in purse.MOST_LAID))
    tape = read_capture_files(generate(NVLS, tmp_path).files[:1])
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is None
    assert not any(c.complete for c in reading.collectives if c.kind == "all_reduce")
    first, second = reading.why_not[:2]
    assert first.is_any_of(NVLS_PORTS_MISSING) and first.arguments["missing"] == (1,)
    assert second.is_any_of(SEARCH_BROKEN_OFF)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("effort")
def test_connections_of_which_the_channel_is_open_are_refused(tmp_path: Path) -> None:
    """The weights use one of the ring's four channels; its others are among the heads' too."""
    options = replace(
        NVLS, ring_exits="crossed", channels=4, mix=((1 << 30, "LL"),), version=(2, 22)
    )
    small = replace(options, shapes=((40, 30), (30,)), caps_bytes=(3000, 3000))
    tape = read_capture_files(generate(small, tmp_path).files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is None and reading.why_not
