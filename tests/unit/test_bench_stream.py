"""The job that the bench at rate feeds: iterations that are made out of earlier ones are what the
generator sends, and all of them are read as one job."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.job_stream import job_options, layers, make_stream
from support.netib.manners import Manners
from support.netib.options import LL128, SIMPLE

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

SHAPES = layers(96, 2)
ACKNOWLEDGE = 0x11
REPEATED = 3


def writes(path: Path) -> dict[bytes, list[bytes]]:
    """{receiver's address and queue pair: its writes} of a capture file; how many acknowledgements
    there are is a matter of chance."""
    content, at = path.read_bytes(), 24
    found = defaultdict(list)
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at + 8)
        frame = content[at + 16 : at + 16 + size]
        if frame[42] != ACKNOWLEDGE:
            found[frame[30:34] + frame[46:50]].append(frame)
        at += 16 + size
    return found


@pytest.mark.parametrize("protocol", [LL128, SIMPLE])
def test_repeated_iterations_are_what_the_generator_sends(tmp_path: Path, protocol: str) -> None:
    options = replace(
        job_options(SHAPES, protocol, channels=2), manners=Manners(values="same", filler="zero")
    )
    whole = replace(options, steps=options.steps + REPEATED)
    make_stream(whole, tmp_path / "generated.pcap", whole.steps)
    made = make_stream(options, tmp_path / "repeated.pcap", whole.steps, doubling=False)
    assert made.iterations == whole.steps
    generated, repeated = (writes(tmp_path / f"{n}.pcap") for n in ("generated", "repeated"))
    assert generated.keys() == repeated.keys()
    for place, frames in generated.items():
        assert frames == repeated[place]


@pytest.mark.parametrize("protocol", [LL128, SIMPLE])
def test_all_iterations_are_read(tmp_path: Path, protocol: str) -> None:
    stream = make_stream(job_options(SHAPES, protocol), tmp_path / "job.pcap", 2 + REPEATED)
    seen = read_capture_files([stream.path])
    reading = read_stream(seen.flows, seen.messages)
    assert reading.job is not None, reading.why_not
    assert reading.weights is not None and reading.weights.result is not None
    assert reading.weights.result.tobytes() == stream.truth.weights
    results = [each.result for each in reading.collectives if str(each.kind) == "all_reduce"]
    read = np.concatenate([np.frombuffer(each, "<f4") for each in results if each is not None])
    # Iteration by iteration, in the order of buckets: the same values, which their sums tell.
    wanted = np.concatenate([np.sort(gradient) for gradient in stream.gradients()])
    each = len(wanted) // stream.iterations
    assert len(read) == len(wanted)
    for number in range(stream.iterations):
        own = slice(number * each, (number + 1) * each)
        assert np.array_equal(np.sort(read[own]), wanted[own])
