"""What `analyze` must not tell, or not as certain, without statements: judged by a generator that
shares nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.found_codes import codes
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.findings.catalog.job_learning import ELEMENT_BYTES_OPEN, SENDS_UNREAD
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import Canvas
from flowcheck.wire.learn.verdict.collect import contradictory

SMALL = ((11, 13), (11,))
BF16 = Options(shapes=SMALL, dtype="bfloat16", steps=3, version=(2, 23))


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize(("buffers", "counters"), [(64, 0), (300, 0), (3, 1), (0, 2)])
def test_buffers_of_the_first_forward_are_no_initial_weights(
    protocol: str, buffers: int, counters: int, tmp_path: Path
) -> None:
    """Nor are those that the start-up sends behind the parameters."""
    options = Options(protocol=protocol, buffers=buffers, counters=counters, steps=3)
    truth, reading = read(options, tmp_path)
    assert reading.job is not None, reading.why_not
    meant = [c.meaning for c in reading.collectives if c.kind == "broadcast"]
    sent = [c for c in truth.collectives if c.kind == "broadcast"]
    plan = ["bucket order", "bucket sizes"]
    start = sum(c.step == -1 for c in sent)
    first = sum(c.step == 0 for c in sent)
    assert meant[:start] == ["parameter shapes", "initial weights", *["buffers"] * (start - 2)]
    assert meant[start:] == ["buffers"] * first + plan + ["buffers"] * 2 * first
    assert reading.weights is not None and reading.weights.complete
    assert reading.weights.result.tobytes() == truth.weights


CUT = [
    replace(BF16, protocol="Simple", ranks=3, buffers=64, manners=Manners(snap=256)),
    replace(BF16, protocol="Simple", ranks=2, buffers=100, manners=Manners(snap=460)),
    replace(BF16, protocol="LL", ranks=4, channels=2, manners=Manners(snap=256)),
    replace(BF16, protocol="LL", ranks=4, directions="tx", manners=Manners(snap=192)),
    replace(BF16, protocol="LL", ranks=3, compress="float16", manners=Manners(snap=256)),
    replace(
        BF16,
        shapes=((300, 120), (120,), (5, 120)),
        protocol="Simple",
        mix=((1024, "LL"),),
        buffers=64,
        counters=1,
        find_unused=True,
        channels=2,
        version=(2, 30),
        seed=38,
        manners=Manners(snap=512),
    ),
]


@pytest.mark.parametrize("options", CUT)
def test_where_frames_were_cut_no_size_is_told_that_nothing_bears_out(
    options: Options, tmp_path: Path
) -> None:
    """Weights of two bytes an element, of which no broadcast was captured: neither 1, nor 4 bytes
    an element is told, nor a tensor of such a size."""
    truth, reading = read(options, tmp_path)
    assert reading.job is None
    weights = reading.weights
    assert weights is None or weights.bytes == len(truth.weights)
    sizes = {(c.kind, len(c.result)) for c in truth.collectives}
    named = [c for c in reading.collectives if c.meaning in ("initial weights", "gradient bucket")]
    assert all((c.kind, c.bytes) in sizes or c.doubtful for c in named)


def test_the_refusal_says_that_no_size_of_an_element_was_seen(tmp_path: Path) -> None:
    options = replace(BF16, protocol="Simple", ranks=3, manners=Manners(snap=256))
    _, reading = read(options, tmp_path)
    assert ELEMENT_BYTES_OPEN.code in codes(reading.why_not)


LINES = Options(protocol="Simple", mix=((100, "LL"), (40000, "LL128")), version=(2, 26))


@pytest.mark.parametrize(
    "options",
    [
        replace(
            LINES, seed=993, ranks=5, channels=2, shapes=((320,),), buffers=64, grants_lost=(12,)
        ),
        replace(
            LINES,
            seed=496,
            ranks=3,
            shapes=((48, 2), (96,)),
            counters=16,
            qps=2,
            grants_lost=(2, 5, 17),
        ),
    ],
)
def test_no_collective_is_told_whose_copies_contradict_it(options: Options, tmp_path: Path) -> None:
    """Sizes alone made these sums of parts of others."""
    _, reading = read(replace(options, mtu=4096 if options.channels > 1 else 1024), tmp_path)
    assert not [c for c in reading.collectives if c.conflicts]
    assert SENDS_UNREAD.code in codes(reading.why_not)


def cut(kind: CollectiveKind, *, licensed: bool, size: int = 1000) -> Cut:
    op = Op(
        kind=kind, work_bytes=size, protocol=Protocol.SIMPLE, licensed="DDP" if licensed else ""
    )
    return Cut(op, ((0,),), ((0,),), (), (), 3, 0)


def painted(differing: int, size: int = 1000) -> Canvas:
    canvas = Canvas(size)
    data = np.full(size, 7, np.uint8)
    seen = np.ones(size, np.bool_)
    canvas.put(0, data, seen)
    other = data.copy()
    other[:differing] = 8
    canvas.put(0, other, seen)
    return canvas


@pytest.mark.parametrize(
    ("licensed", "differing", "untold"),
    [
        (False, [0], []),
        (False, [950], [0]),
        (False, [1], [0]),
        (False, [1, 0], [0]),
        (True, [1], []),
        (True, [501], [0]),
    ],
)
def test_what_contradicts_itself_is_not_told(
    licensed: bool, differing: Sequence[int], untold: Sequence[int]
) -> None:
    """Damaged frames leave most of what a plan gives, or what was seen whole elsewhere."""
    kind = CollectiveKind.BROADCAST
    told = [
        (cut(kind, licensed=licensed, size=1000 + i), painted(n)) for i, n in enumerate(differing)
    ]
    assert contradictory(told) == set(untold)


def test_a_damaged_frame_of_what_was_also_seen_whole_is_told() -> None:
    one = cut(CollectiveKind.ALL_REDUCE, licensed=False)
    assert not contradictory([(one, painted(1)), (one, painted(0))])
    assert contradictory([(one, painted(900)), (one, painted(0))]) == {0}


@pytest.mark.parametrize(("start", "untold"), [(3000, set()), (1000, {0}), (4000, {0})])
def test_what_fills_up_the_blocks_of_a_gather_contradicts_nothing(
    start: int, untold: set[int]
) -> None:
    """Two blocks of two groups of LL128, the second of which may end anywhere."""
    gather = cut(CollectiveKind.ALL_GATHER, licensed=False, size=3840)
    gather = replace(gather, op=replace(gather.op, protocol=Protocol.LL128))
    canvas = painted(0, 7680)
    other = np.full(100, 8, np.uint8)
    canvas.put(start, other, np.ones(100, np.bool_))
    assert contradictory([(gather, canvas)]) == untold


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.ALL_REDUCE])
@pytest.mark.parametrize(
    ("protocol", "start", "untold"),
    [
        (Protocol.LL128, 1921, set()),
        (Protocol.LL128, 1920, {0}),
        (Protocol.LL, 3833, set()),
        (Protocol.LL, 3832, {0}),
        (Protocol.SIMPLE, 3839, {0}),
    ],
)
def test_what_fills_up_the_last_line_contradicts_nothing(
    kind: CollectiveKind, protocol: Protocol, start: int, untold: set[int]
) -> None:
    """Of a tensor whose size only the wire tells, which may end anywhere in its last line or
    group but before its first byte; Simple sends no byte more than there are."""
    one = cut(kind, licensed=False, size=3840)
    one = replace(one, op=replace(one.op, protocol=protocol))
    canvas = painted(0, 3840)
    other = np.full(3840 - start, 8, np.uint8)
    canvas.put(start, other, np.ones(len(other), np.bool_))
    assert contradictory([(one, canvas)]) == untold


def test_a_sum_of_one_byte_is_told_whatever_fills_up_its_line(tmp_path: Path) -> None:
    """A barrier comes first, in lines whose other bytes are of every hop's own."""
    options = Options(
        ranks=4, protocol="LL128", version=(2, 30), channels=2, habit="early", mirrored=(1,)
    )
    truth, reading = read(options, tmp_path)
    first, seen = truth.collectives[0], reading.collectives[0]
    assert (first.kind, len(first.result), first.protocol) == ("all_reduce", 1, "LL128")
    assert (seen.kind, seen.protocol) == (first.kind, Protocol.LL128)
    assert seen.sha256 is None and SENDS_UNREAD.code not in codes(reading.why_not)
