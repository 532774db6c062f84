"""Sizes alone may fit the partitions of two NCCL releases: then nothing is called complete."""

from hashlib import sha256
from pathlib import Path

import pytest

from flowcheck.findings.catalog.collective_evidence import RELEASE_OPEN
from flowcheck.findings.catalog.job_learning import RELEASE_CONTRADICTED, RELEASE_STATED
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.collectives.nccl_parameters import era_of
from flowcheck.wire.learn import Reading, read_stream

# 7,755 elements over two of three channels: aligned parts (2.20) and interleaved chunks (2.19)
# have the same sizes on every connection and put them at other places.
JOB = SyntheticJob(shapes=((77, 100), (55,)), ranks=3, channels=3, steps=3, version="2.20")


@pytest.fixture(params=["with", "without"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Reading]:
    frames = make_traffic(JOB).frames_at_port(1)
    kept = [f for f in frames if request.param == "with" or f.kind == "data"]
    write_pcap(tmp_path / "x.pcap", kept)
    tape = read_capture_files([tmp_path / "x.pcap"])
    return request.param, read_stream(tape.flows, tape.messages)


def captured(folder: Path, *, grants: bool) -> CaptureContents:
    frames = [f for f in make_traffic(JOB).frames_at_port(1) if grants or f.kind == "data"]
    write_pcap(folder / "x.pcap", frames)
    return read_capture_files([folder / "x.pcap"])


def test_a_stated_release_decides_where_sizes_do_not_and_every_byte_is_right(
    tmp_path: Path,
) -> None:
    tape = captured(tmp_path, grants=False)
    read = read_stream(tape.flows, tape.messages, release=era_of("2.21.5"))
    assert read.job is not None
    assert RELEASE_STATED("2.20-2.21") in read.job.evidence
    told = [c.sha256 for c in read.collectives if c.kind == "all_reduce" and c.bytes == 7755 * 4]
    truth = [result for kind, result in make_traffic(JOB).collectives if kind == "all_reduce"]
    assert len(told) == JOB.steps and told == [sha256(result).hexdigest() for result in truth]


def test_a_stated_release_the_frames_contradict_changes_nothing_but_is_told(
    tmp_path: Path,
) -> None:
    tape = captured(tmp_path, grants=True)
    read = read_stream(tape.flows, tape.messages, release=era_of("2.29"))
    assert read.job is not None and read.job.era is era_of("2.20")
    assert RELEASE_CONTRADICTED(">=2.29") in read.job.evidence


@pytest.mark.parametrize(
    ("version", "rule"),
    [("2.4", "<=2.19"), ("2.19.3", "<=2.19"), ("2.20", "2.20-2.21"), ("2.21.5", "2.20-2.21"),
     ("2.22.3", "2.22"), ("2.23", "2.23-2.25"), ("2.25.1", "2.23-2.25"), ("2.26", "2.26-2.28"),
     ("2.28.9", "2.26-2.28"), ("2.29", ">=2.29"), ("2.31.1", ">=2.29")],
)  # fmt: skip
def test_every_release_has_its_era(version: str, rule: str) -> None:
    assert era_of(version) == rule


@pytest.mark.parametrize("version", ["", "2", "v2.21", "3.0", "2.x", "2.21.5.1"])
def test_what_is_no_release_is_none(version: str) -> None:
    with pytest.raises(ValueError, match="no release"):
        era_of(version)


def test_only_the_clear_to_send_tells_two_partitions_of_equal_sizes_apart(
    reading: tuple[str, Reading],
) -> None:
    grants, read = reading
    reduces = [c for c in read.collectives if c.kind == "all_reduce" and c.bytes == 7755 * 4]
    assert len(reduces) == JOB.steps
    assert all((c.sha256 is not None) == (grants == "with") for c in reduces)
    assert (read.job is not None) == (grants == "with")
    if grants == "without":
        assert all(RELEASE_OPEN() in c.assumed for c in reduces)
