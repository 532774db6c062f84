"""Models whose start-up fits others as well: nothing that no rank held is told without `assumed`,
judged by a generator that shares nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

BF16, FP32 = "bfloat16", "float32"
LINES = Manners(filler="stale")


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(tape.flows, tape.messages)


def false_and_certain(truth: Truth, reading: Reading) -> list[str]:
    """Collectives that ranks of the job did not run, and weights that are not the job's."""
    ran = {(each.kind, each.sha256) for each in truth.collectives}
    own = hashlib.sha256(truth.weights).hexdigest()
    ran.add(("broadcast", own))  # buffers behind the weights are cut off
    wrong = [
        f"{c.kind} of {c.bytes} bytes: {c.meaning}"
        for c in reading.collectives
        if c.sha256 is not None and not c.assumed and (c.kind, c.sha256) not in ran
    ]
    weights = reading.weights
    if weights is not None and weights.sha256 not in (None, own) and not weights.assumed:
        wrong.append(f"weights of {weights.bytes} bytes")
    return wrong


NO_BYTES_ALONE = {
    "a scalar and lines filled with what was sent before": Options(
        seed=5087, ranks=4, protocol="LL128", version=(2, 12), dtype="float16", steps=2,
        shapes=((), (191, 84)), buffers=1, counters=1, find_unused=True, caps_bytes=(777, 1501),
        mirrored=(1,), manners=LINES,
    ),
    "types whose parts together are as many bytes as there are elements": Options(
        seed=5042, ranks=3, protocol="LL128", mix=((1024, "LL"),), version=(2, 26), steps=3,
        shapes=((1,), (7,), (121, 4), (17,), (76, 53), (64, 63), (4, 52)),
        dtypes=(BF16, FP32, BF16, BF16, FP32, BF16, BF16), compress="float16",
        caps_bytes=(100, 3000), mirrored=(1,), directions="rx",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_BYTES_ALONE)
def test_no_parameter_has_elements_of_one_byte(name: str, tmp_path: Path) -> None:
    """NCCL sums none of that size for torch, so no gradient has them."""
    truth, reading = read(NO_BYTES_ALONE[name], tmp_path)
    assert not false_and_certain(truth, reading)
    assert reading.job is None or min(p.element_bytes for p in reading.job.parameters) > 1


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 3), (26, 14), (1, 65), (), (4, 5), (72,)),
        ((1, 5), (46, 101), (8, 4), (3, 3), (), (30, 27)),
    ],
)
def test_a_scalar_beside_a_row_is_no_parameter_of_odd_strides(
    shapes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    """Of (1, n) and a scalar the list of sizes and strides is that of (1,) with stride n and (n,)
    as well, which no trainer has; where the scalar stands is told or assumed."""
    _, reading = read(Options(shapes=shapes, steps=3, caps_bytes=(4000, 20000)), tmp_path)
    assert reading.job is not None, reading.why_not
    told = [(one.sizes, one.strides) for one in reading.job.parameters]
    made = [(tuple(t.shape), t.stride()) for t in map(torch.empty, shapes)]
    assert [one for one in told if one[0]] == [one for one in made if one[0]]
    assert len(told) == len(made)
    assert told == made or {"job.scalars_open", "job.scalars_likeliest", "job.scalars_first"} & {
        one.code for one in reading.job.assumed
    }


UNBORNE = {
    "buckets that sizes leave open": Options(
        seed=5143, ranks=16, protocol="LL128", version=(2, 21), find_unused=True, steps=3,
        shapes=((66, 62), (1, 6, 3, 3), (1,)), caps_bytes=(777, 1501), metric_every=3,
        mirrored=(4,), directions="rx", manners=Manners(ring="each", values="whole", tags="zero"),
    ),
    "weights of one group of lines": Options(
        ranks=4, protocol="LL128", version=(2, 30), dtype="float16", shapes=((7, 14), (1,)),
        steps=3, mirrored=(3,),
    ),
    "several types, buckets of lines": Options(
        seed=5101, ranks=3, protocol="LL128", mix=((1024, "LL"),), version=(2, 30), steps=2,
        shapes=((16, 18), (7, 5), (131, 62), (18, 11), (11, 17), (83, 77), (1,)),
        dtypes=(BF16, FP32, FP32, BF16, FP32, BF16, FP32), caps_bytes=(12000, 12000),
        mirrored=(0, 1), directions="rx", manners=Manners(filler="zero"),
    ),
    "gathers of sharded training": Options(
        seed=5120, ranks=8, channels=8, version=(2, 20), sharded=True, mirrored=(2,), steps=3,
        shapes=((40, 30), (30,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNBORNE)
def test_what_only_a_program_speaks_for_is_assumed(name: str, tmp_path: Path) -> None:
    truth, reading = read(UNBORNE[name], tmp_path)
    assert not false_and_certain(truth, reading)


BEHIND = Options(
    ranks=3, channels=2, protocol="LL128", version=(2, 23), buffers=1001, steps=3, mtu=4096,
    shapes=((29, 50), (56, 78), (106, 44)),
)  # fmt: skip


def test_weights_of_two_channels_with_buffers_behind_them_are_read(tmp_path: Path) -> None:
    """Groups of lines on two channels have room for more than was sent: no size that fills them
    all is spread so."""
    truth, reading = read(BEHIND, tmp_path)
    assert reading.job is not None and reading.weights is not None
    assert reading.weights.data.tobytes() == truth.weights


@pytest.mark.parametrize(("ranks", "channels", "seed"), [(2, 4, 6002), (8, 2, 5103)])
def test_weights_whose_spread_buffers_leave_open_are_not_complete(
    ranks: int, channels: int, seed: int, tmp_path: Path
) -> None:
    """NCCL 2.22 gives the first channel another part of a few bytes more."""
    options = Options(
        seed=seed, ranks=ranks, channels=channels, protocol="LL128", version=(2, 22), buffers=64,
        shapes=((97, 115),) if ranks == 2 else ((46, 50),), steps=3, mtu=4096,
        dtype="float32" if ranks == 2 else "float16",
    )  # fmt: skip
    truth, reading = read(options, tmp_path)
    assert not false_and_certain(truth, reading)


def test_weights_among_what_is_refused_as_open_are_not_complete(tmp_path: Path) -> None:
    """More bytes of buffers than of parameters: as many as of wider ones and something else."""
    options = Options(
        ranks=3, protocol="Simple", version=(2, 21), dtype="float16", buffers=300, steps=4,
        shapes=((7, 1), (7, 2, 3, 3), (1,)), caps_bytes=(1, 1),
    )  # fmt: skip
    truth, reading = read(options, tmp_path)
    assert not false_and_certain(truth, reading)
