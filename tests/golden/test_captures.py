"""Real captures: collectives, coverage, hashes and weights against truth, with and without loss."""

from __future__ import annotations

import json
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

from flowcheck.ops.analyze import as_dict, run
from flowcheck.plane.tape import read_tape
from flowcheck.wire.learn import Collective, Reading, read_stream
from flowcheck.wire.learn.verdict.ends import END_BY_CONTENT


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
        tape = read_tape(paths)
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


def same(one: Reading, other: Reading) -> bool:
    """Two readings say the same of every collective and of the weights."""
    return [
        {k: v for k, v in entry.items() if k not in ("sources", "communicator")}
        for entry in as_dict({}, one)["collectives"]
    ] == [
        {k: v for k, v in entry.items() if k not in ("sources", "communicator")}
        for entry in as_dict({}, other)["collectives"]
    ] and as_dict({}, one)["weights"] == as_dict({}, other)["weights"]


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_and_the_weights_are_what_the_truth_says(
    name: str, captures: Path, truth: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = Truth(truth, name)
    assert run([captures / f"{name}.pcapng"], as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    found = [c for c in told["collectives"] if c["kind"] == "all_reduce"]
    assert [c["bytes"] for c in found] == [a["count"] * 4 for a in known.all_reduces]
    assert [c["coverage"] for c in found] == [a["coverage"] for a in known.all_reduces]
    assert [c["sha256"] for c in found] == [a["sha256_le"] for a in known.all_reduces]
    assert all(c["missing"] == [] for c in found)
    assert told["frames"]["total"] == sum(known.values["frame_census"].values())
    assert (
        sum(n for verdict, n in told["frames"].items() if verdict != "total")
        == (told["frames"]["total"])
    )
    assert told["frames"]["unknown"] == 0
    broadcast = known.values.get("ddp_init_broadcast")
    if broadcast is None:
        assert told["weights"] is None
    else:
        assert told["weights"]["sha256"] == broadcast["sha256_le"]
        assert told["weights"]["bytes"] == broadcast["count"] * 4
        assert told["weights"]["shapes"] == [[1, broadcast["count"]]]
    indices = [c["index"] for c in told["collectives"]]
    assert indices == list(range(len(indices)))


@pytest.mark.parametrize("name", NAMES)
def test_flows_have_the_roles_peers_and_losses_of_the_truth(
    name: str, captures: Path, truth: Path
) -> None:
    known = Truth(truth, name)
    tape = read_tape([captures / f"{name}.pcapng"])
    flows = {(f["dst"], f["dest_qp"]): f for f in as_dict({}, _reading(tape))["flows"]}
    data = {(f["dst_ip"], f["dst_qpn"]): f for f in known.values["flows"] if f["data_sends"]}
    for key, expected in data.items():
        flow = flows[key]
        assert flow["role"] == "data"
        assert flow["protocol"].lower() == expected["role"].split(":")[1].lower()
        assert flow["peer_dest_qp"] == expected["peer_qpn"]
        assert flow["messages"] == expected["data_sends"]
        assert flow["problems"] == [] and "psn count" in flow["numbered_by"]
    grants = {(f["dst_ip"], f["dst_qpn"]) for f in known.values["flows"] if f["cts_sent"]}
    assert {key for key, f in flows.items() if f["role"] == "cts"} == grants
    lost = known.values["psn_summary"]["missing_packets_incl_message_tails"]
    assert sum(f["psn_missing"] for f in flows.values()) == lost


def _reading(tape: object) -> Reading:
    return read_stream(tape.flows, tape.messages)  # type: ignore[attr-defined]


def test_addstep_names_the_nine_packets_its_last_message_lost(captures: Path) -> None:
    tape = read_tape([captures / "allreduce_addstep.pcapng"])
    reading = _reading(tape)
    cut = [f.seen for f in reading.flows if f.seen.psn_missing]
    assert [f.psn_missing for f in cut] == [9]
    assert cut[0].key.dest_qp == 0x825
    assert [c.complete for c in reading.collectives] == [True]


def test_an_end_that_only_the_last_line_tells_is_assumed_and_one_of_a_plan_is_not(
    captures: Path,
) -> None:
    """The patched trainer of one capture sent no start-up; the other one's names every size."""
    for name, assumed in (("allreduce_addstep", True), ("iter_40000_p2p_iter10", False)):
        tape = read_tape([captures / f"{name}.pcapng"])
        reading = read_stream(tape.flows, tape.messages)
        reduces = [c for c in reading.collectives if c.kind == "all_reduce"]
        assert reduces
        assert all((END_BY_CONTENT in c.assumed) is assumed for c in reduces)


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
    "name",
    [pytest.param(n, marks=pytest.mark.nightly) if n == "allreduce_addstep" else n for n in NAMES],
)
def test_a_capture_cut_short_anywhere_is_never_more_than_it_holds(
    name: str, captures: Path, truth: Path, judge: Judge
) -> None:
    known = Truth(truth, name)
    frames = read_frames(captures / f"{name}.pcapng")
    for part in range(1, 12):
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
