"""What is of no data-parallel job: known early, then counted and not kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chain import wait_until
from support.netib import Generated, Options, generate
from support.staged import Chain

from flowcheck.messages import Note
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.wire.learn import Reading, read_stream

BESIDE = {"10.0.0.200", "10.0.0.201"}
"""Where the generator's tensor-parallel and pipeline neighbours live."""
JOB = Options(
    shapes=((40, 30), (40,)), version=(2, 30), tensor_layers=3, pipeline_bytes=9000, steps=4
)
SLOTS = 1 << 14
pytestmark = pytest.mark.xdist_group("others")
"""The job is made, and its beginning looked for, once."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(JOB, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def begun(made: Generated) -> tuple[CaptureContents, int]:
    """The messages, and how many there are when the first gradient was reduced."""
    tape = read_capture_files(made.files)
    for count in range(20, len(tape.messages), 10):
        reading = read_stream(tape.flows, tape.messages[:count], ended=False, hasty=True)
        if any(c.meaning == "gradient bucket" for c in reading.collectives):
            return tape, count
    raise AssertionError("no gradient")


def reading_of(tape: CaptureContents, count: int) -> Reading:
    return read_stream(tape.flows, tape.messages[:count], ended=False)


def test_flows_of_no_job_are_known_before_the_job_is(begun: tuple[CaptureContents, int]) -> None:
    tape, count = begun
    reading = reading_of(tape, count)
    used = {message.flow for message in tape.messages[:count]}
    theirs = {key for key in used if {key.source, key.destination} & BESIDE}
    assert reading.job is None
    assert theirs and set(reading.others) == theirs
    everything = read_stream(tape.flows, tape.messages)
    assert everything.job is not None
    assert not {key for edge in everything.job.edges for key in edge.flows} & set(reading.others)


@pytest.mark.nightly
def test_before_any_job_began_nothing_is_known_to_be_of_none(
    begun: tuple[CaptureContents, int],
) -> None:
    tape, _ = begun
    alone = [m for m in tape.messages if {m.flow.source, m.flow.destination} & BESIDE]
    assert len(alone) > 20 and not read_stream(tape.flows, alone).others


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.nightly), 7])
def test_a_communicator_that_lost_sends_may_be_the_job_yet(
    begun: tuple[CaptureContents, int], lost: int
) -> None:
    tape, count = begun
    theirs = [m for m in tape.messages if "10.0.0.200" in (m.flow.source, m.flow.destination)]
    data = [m for m in theirs if m.immediate is not None]
    kept = [m for m in tape.messages[:count] if m is not data[lost]]
    reading = read_stream(tape.flows, kept, ended=False)
    assert not {data[0].flow} & set(reading.others)


def test_the_stage_keeps_nothing_of_them_and_follows_the_job(
    shm: Path, tmp_path: Path, made: Generated, begun: tuple[CaptureContents, int]
) -> None:
    chain = Chain(tmp_path, shm / "memory", made.files, SLOTS)
    service = chain.service()

    def noted() -> bool:
        service.work()
        notes = chain.heard.of(Note)
        return any("of no data-parallel job" in str(note) for note in notes)

    tape, count = begun
    last = tape.messages[count - 1]
    seen = sum(m.packets for m in tape.messages if m.order <= last.order)
    while not noted() and not chain.run.learned_job.exists():
        chain.feed(max(1, seen // 20))
        wait_until(lambda: noted() or not service._learner.busy, 60, "a reading")
    assert noted(), "the job was learned before"
    table = chain.parts[0][1]
    staged = {message.flow for message in staged_snapshot_of(service._extractors[0]).messages()}
    assert staged and not [key for key in staged if {key.source, key.destination} & BESIDE]
    assert len(table.flows()) > len(staged)
    chain.drive(service)
    assert chain.gradients[1] == made.truth.gradients[0].result
    assert len(chain.gradients) == JOB.steps
    with FrameRing.open(chain.run.ring(0)) as ring:
        commit = ring.extract_commit()
        assert commit.counters.ignored_packets > 0
    service.stop()
    chain.close()
