"""Sizes alone may fit the partitions of two NCCL releases: then nothing is called complete."""

from pathlib import Path

import pytest

from flowcheck.lab.synthetic import SyntheticJob, make, write_pcap
from flowcheck.plane.tape import read_tape
from flowcheck.wire.learn import Reading, read_stream

# 7,755 elements over two of three channels: aligned parts (2.20) and interleaved chunks (2.19)
# have the same sizes on every connection and put them at other places.
JOB = SyntheticJob(shapes=((77, 100), (55,)), ranks=3, channels=3, steps=3, version="2.20")


@pytest.fixture(params=["with", "without"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Reading]:
    frames = make(JOB).seen_at(1)
    kept = [f for f in frames if request.param == "with" or f.kind == "data"]
    write_pcap(tmp_path / "x.pcap", kept)
    tape = read_tape([tmp_path / "x.pcap"])
    return request.param, read_stream(tape.flows, tape.messages)


def test_only_the_clear_to_send_tells_two_partitions_of_equal_sizes_apart(
    reading: tuple[str, Reading],
) -> None:
    grants, read = reading
    reduces = [c for c in read.collectives if c.kind == "all_reduce" and c.bytes == 7755 * 4]
    assert len(reduces) == JOB.steps
    assert all((c.sha256 is not None) == (grants == "with") for c in reduces)
    assert (read.job is not None) == (grants == "with")
    if grants == "without":
        assert all(any("NCCL release" in sentence for sentence in c.assumed) for c in reduces)
