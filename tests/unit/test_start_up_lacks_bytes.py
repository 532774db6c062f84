"""A start-up of which a message lacks bytes, or came in two copies that differ: the reason is that
message, and waiting is no remedy. The frame is found by what the generator put into it."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from support.faults import forged, frames
from support.netib import Generated, Options, generate

from flowcheck.findings.catalog.job_learning import (
    COUNT_LOST,
    PLAN_COPIES_DIFFER,
    PLAN_LACKS_BYTES,
    SHAPES_COPIES_DIFFER,
    SHAPES_LACK_BYTES,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

FEW = ((64, 100), (64,), (10, 64), (10,))
SHAPES_BEGIN = struct.pack("<4q", *FEW[0], FEW[0][1], 1)
MANY = ((8, 9), (8,), (9, 8)) * 14


def without_frame_of(content: bytes, made: Generated, folder: Path, number: int = 0) -> Reading:
    """What the job's capture tells without the first frame whose data begin with `content`, or a
    later one by its number."""
    seen = frames.read(made.files[0])
    such = (n for n, frame in enumerate(seen) if data_of(frame).startswith(content))
    lost = next(islice(such, number, None))
    frames.write(folder / "lossy.pcap", [*seen[:lost], *seen[lost + 1 :]], "")
    tape = read_capture_files([folder / "lossy.pcap"])
    return read_stream(tape.flows, tape.messages)


def data_of(frame: frames.Frame) -> bytes:
    """Of LL lines: four bytes of data, four of flag."""
    raw = frame.header.payload if frame.header is not None else b""
    return b"".join(raw[at : at + 4] for at in range(0, len(raw), 8))


@pytest.mark.parametrize("shapes", [FEW, MANY], ids=["one packet", "one packet of several"])
def test_shapes_that_lack_bytes_are_named(
    shapes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    """Sizes and strides (torch/csrc/distributed/c10d/reducer.cpp,
    verify_params_across_processes)."""
    options = Options(steps=4, version=(2, 23), shapes=shapes, mtu=512)
    begin = struct.pack("<4q", *shapes[0], shapes[0][1], 1)
    reading = without_frame_of(begin, generate(options, tmp_path), tmp_path)
    assert reading.job is None
    assert reading.why_not == (SHAPES_LACK_BYTES(parameters=len(shapes)),)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_count_of_parameters_is_named(rank: int, tmp_path: Path) -> None:
    """The same file, verify_params_across_processes: each rank tells how many it has, as int64."""
    made = generate(Options(steps=4, version=(2, 23), shapes=FEW), tmp_path)
    reading = without_frame_of(struct.pack("<q", len(FEW)), made, tmp_path, number=rank)
    assert reading.job is None and reading.why_not == (COUNT_LOST(),)


def test_an_order_of_parameters_that_lacks_bytes_is_named(tmp_path: Path) -> None:
    """The same file, sync_bucket_indices: int32 indices, then how many buckets; its weights and
    its first gradients were read."""
    made = generate(Options(steps=4, version=(2, 23), shapes=FEW), tmp_path)
    order = struct.pack("<4i", *(index for bucket in made.truth.buckets for index in bucket))
    reading = without_frame_of(order, made, tmp_path)
    assert reading.job is None and reading.why_not == (PLAN_LACKS_BYTES(),)
    assert reading.weights is not None and reading.weights.complete


def by_two_mirrors(begin: bytes, word: int, made: Generated, folder: Path, damaged: int) -> Reading:
    """What the job's capture tells of two mirrors, of which one has another bit in that word, from
    the end, of the frame whose data begin with `begin`; its ICRC is right."""
    seen = frames.read(made.files[0])
    at = next(n for n, frame in enumerate(seen) if data_of(frame).startswith(begin))
    header = seen[at].header
    assert header is not None
    body = bytearray(header.body)
    body[-4 * word] ^= 4
    data = forged.made(header, header.opcode, header.psn, bytes(body))
    assert len(data) == len(seen[at].data)
    paths = [folder / "0.pcap", folder / "1.pcap"]
    frames.write(paths[1 - damaged], seen, "")
    frames.write(paths[damaged], [*seen[:at], replace(seen[at], data=data), *seen[at + 1 :]], "")
    tape = read_capture_files(paths)
    return read_stream(tape.flows, tape.messages)


DATA, FLAG = 8, 7
"""Words of an LL packet, counted from its end."""


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("what", ["shapes", "order"])
def test_copies_that_differ_are_told_as_that(what: str, damaged: int, tmp_path: Path) -> None:
    made = generate(Options(steps=4, version=(2, 23), shapes=FEW), tmp_path)
    order = struct.pack("<4i", *(index for bucket in made.truth.buckets for index in bucket))
    begin, why = {
        "shapes": (SHAPES_BEGIN, SHAPES_COPIES_DIFFER(parameters=len(FEW))),
        "order": (order, PLAN_COPIES_DIFFER()),
    }[what]
    reading = by_two_mirrors(begin, DATA, made, tmp_path, damaged)
    assert reading.job is None and reading.why_not == (why,)


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("what", ["shapes", "order", "weights"])
def test_of_a_flag_one_copy_is_enough(what: str, damaged: int, tmp_path: Path) -> None:
    made = generate(Options(steps=4, version=(2, 23), shapes=FEW), tmp_path)
    begin = {
        "shapes": SHAPES_BEGIN,
        "order": struct.pack("<4i", *(index for bucket in made.truth.buckets for index in bucket)),
        "weights": made.truth.weights[:16],
    }[what]
    reading = by_two_mirrors(begin, FLAG, made, tmp_path, damaged)
    assert reading.job is not None and reading.weights is not None and reading.weights.complete
    assert reading.weights.data.tobytes() == made.truth.weights
