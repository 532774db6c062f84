"""Real captures: collectives, coverage, hashes and weights against truth, with and without loss."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.captured import (
    NAMES,
    TWO_DIRECTIONS,
    Frame,
    Truth,
    packets_of,
    read_frames,
    without,
    write_pcap,
)

from flowcheck.ops.analysis.analyze_command import as_dict
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Collective, Reading, read_stream


@pytest.fixture
def judge(truth: Path, tmp_path: Path) -> Judge:
    return Judge(truth, tmp_path)


class Judge:
    """Reads frames through the real ring and parser, and holds the result against truth."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch

    def read(self, *files: Sequence[Frame]) -> Reading:
        """The reading of frames given as one file or several."""
        paths = [write_pcap(self.scratch / f"{i}.pcap", frames) for i, frames in enumerate(files)]
        tape = read_capture_files(paths)
        return read_stream(tape.flows, tape.messages)

    def check_remains(self, name: str, frames: Sequence[Frame]) -> list[Collective]:
        """Coverage is exactly what the frames still carry; a hash only where that is all."""
        known = Truth(self.folder, name)
        found = reduced(self.read(frames), known)
        assert len(found) == len(known.all_reduces)
        kept = packets_of(frames)
        for i, collective in enumerate(found):
            expected = known.remaining(i, kept)
            seen = covered(collective)
            assert (seen == expected).all(), f"all-reduce {i}: {seen.sum()} of {expected.sum()}"
            assert (collective.result[seen] == known.tensor(i)[seen]).all()
            assert collective.coverage == expected.mean()
            whole = known.all_reduces[i]["sha256_le"]
            assert collective.sha256 == (whole if expected.all() else None)
        return found


def reduced(reading: Reading, known: Truth) -> list[Collective]:
    """All-reduces, in order; all are as large as the truth says."""
    found = [c for c in reading.collectives if c.kind == "all_reduce"]
    assert {c.bytes for c in found} <= {a["count"] * 4 for a in known.all_reduces}
    return found


def covered(collective: Collective) -> np.ndarray:
    mask = np.ones(collective.bytes, np.bool_)
    for start, stop in collective.missing:
        mask[start:stop] = False
    return mask


PER_MIRROR = ("sources", "carried_by", "communicator")
"""What a reading says of its mirror points, not of what the collective was."""


def same(one: Reading, other: Reading) -> bool:
    """Two readings say the same of every collective and of the weights."""
    return [
        {k: v for k, v in entry.items() if k not in PER_MIRROR}
        for entry in as_dict({}, one)["collectives"]
    ] == [
        {k: v for k, v in entry.items() if k not in PER_MIRROR}
        for entry in as_dict({}, other)["collectives"]
    ] and as_dict({}, one)["weights"] == as_dict({}, other)["weights"]


@pytest.mark.parametrize("name", TWO_DIRECTIONS)
def test_rank_0_alone_covers_what_truth_says_of_its_direction(
    name: str, captures: Path, truth: Path, judge: Judge
) -> None:
    frames = [f for f in read_frames(captures / f"{name}.pcapng") if f.from_rank_0]
    known = Truth(truth, name)
    (found,) = reduced(judge.read(frames), known)
    expected = known.all_reduces[0]["coverage_rank0_outbound_only"]
    assert found.coverage == expected
    assert found.sha256 == (known.all_reduces[0]["sha256_le"] if expected == 1 else None)
    assert (found.result[covered(found)] == known.tensor(0)[covered(found)]).all()


def test_a_send_to_another_address_is_no_source_however_well_it_fits(
    captures: Path, truth: Path, judge: Judge
) -> None:
    frames = read_frames(captures / "allreduce+partial_p2p.pcapng")
    for some in (frames, [f for f in frames if f.from_rank_0]):
        reading = judge.read(some)
        assert all("p2p (inferred)" not in c.sources for c in reading.collectives)
        assert [c.bytes for c in reading.collectives if c.kind == "send_recv"] == [3616]
    (inferred,) = reduced(
        judge.read(read_frames(captures / "allreduce+partial_p2p_new.pcapng")),
        Truth(truth, "allreduce+partial_p2p_new"),
    )
    assert "p2p (inferred)" in inferred.sources


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["first", "last", "middle"])
def test_one_packet_lost_from_every_final_message_costs_its_bytes_alone(
    name: str, which: str, captures: Path, truth: Path, judge: Judge
) -> None:
    known = Truth(truth, name)
    lost = set()
    for found in known.all_reduces:
        for source in [p["source"] for p in found["pieces"] if known.is_final(p)]:
            packets = known.message_packets(source)
            at = {"first": 0, "last": -1, "middle": len(packets) // 2}[which]
            lost.add(packets[at])
    frames = without(read_frames(captures / f"{name}.pcapng"), lost.__contains__)
    judge.check_remains(name, frames)


@pytest.mark.parametrize("name", NAMES)
def test_a_final_message_lost_whole_is_a_hole_not_a_shift(
    name: str, captures: Path, truth: Path, judge: Judge
) -> None:
    known = Truth(truth, name)
    frames = read_frames(captures / f"{name}.pcapng")
    pieces = [p for a in known.all_reduces[:3] for p in a["pieces"]]
    for piece in pieces:
        if piece["kind"] == "reduced" and piece["count"]:
            lost = set(known.message_packets(piece["source"]))
            judge.check_remains(name, without(frames, lost.__contains__))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_random_loss_in_all_reduces_costs_exactly_the_packets_lost(
    name: str, seed: int, captures: Path, truth: Path, judge: Judge
) -> None:
    known = Truth(truth, name)
    dice = random.Random(f"{name} {seed}")
    lost: set[tuple[bytes, int, int]] = set()
    for found in known.all_reduces:
        for piece in found["pieces"]:
            inside = known.message_packets(piece["source"])[1:-1]
            lost |= {packet for packet in inside if dice.random() < 0.05 * (seed + 1)}
    frames = without(read_frames(captures / f"{name}.pcapng"), lost.__contains__)
    judge.check_remains(name, frames)


@pytest.mark.parametrize(
    "parts", [(2, 5, 8, 11), pytest.param(range(1, 12), marks=pytest.mark.nightly, id="all")]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_capture_cut_short_anywhere_is_never_more_than_it_holds(
    name: str, parts: Sequence[int], captures: Path, truth: Path, judge: Judge
) -> None:
    known = Truth(truth, name)
    frames = read_frames(captures / f"{name}.pcapng")
    for part in parts:
        for some in (frames[: len(frames) * part // 12], frames[len(frames) * part // 12 :]):
            _assert_nothing_made_up(judge.read(some), known, packets_of(some))


def _assert_nothing_made_up(
    reading: Reading, known: Truth, kept: Iterable[tuple[bytes, int, int]]
) -> None:
    """Every hash is one the truth has, and every all-reduce with a hash is really all there."""
    whole = {
        a["sha256_le"]
        for i, a in enumerate(known.all_reduces)
        if known.remaining(i, set(kept)).all()
    }
    broadcast = known.values.get("ddp_init_broadcast")
    for collective in reading.collectives:
        if collective.kind == "all_reduce" and collective.sha256:
            assert collective.sha256 in whole
    if reading.weights is not None and reading.weights.sha256:
        assert broadcast is not None and reading.weights.sha256 == broadcast["sha256_le"]


@pytest.mark.parametrize("name", NAMES)
def test_two_mirror_points_that_share_the_frames_read_as_one(
    name: str, captures: Path, judge: Judge
) -> None:
    frames = read_frames(captures / f"{name}.pcapng")
    whole = judge.read(frames)
    assert same(judge.read(frames[::2], frames[1::2]), whole)
    ways = [[f for f in frames if f.from_rank_0], [f for f in frames if not f.from_rank_0]]
    assert same(judge.read(*ways), whole)
    assert same(judge.read(frames, frames), whole)
