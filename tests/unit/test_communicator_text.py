"""What `analyze` explains of a communicator, against jobs whose traffic is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.learned import read

from flowcheck.findings.finding import Finding
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
    write_pcap,
)
from flowcheck.ops.analysis.communicator_summary import CommunicatorSummary, summarize_communicators
from flowcheck.ops.analysis.communicator_text import communicator_lines, facts_of, ring_order
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Collective, Reading, read_stream

RANKS = 4
SHAPES = ((300, 40), (40,), (700, 40))


@pytest.fixture(scope="module")
def traffic() -> SyntheticTraffic:
    return make_traffic(
        SyntheticJob(ranks=RANKS, shapes=SHAPES, steps=3, channels=2, version="2.23")
    )


def only(reading: Reading) -> CommunicatorSummary:
    (found,) = summarize_communicators(reading)
    return found


def largest(reading: Reading) -> Collective:
    return max((c for c in reading.collectives if c.kind == "all_reduce"), key=lambda c: c.bytes)


def seen_by(traffic: SyntheticTraffic, folder: Path, *ports: tuple[int, str]) -> Reading:
    """Several mirror points of one job."""
    files = []
    for rank, direction in ports:
        files.append(folder / f"{rank}-{direction}.pcap")
        write_pcap(files[-1], traffic.frames_at_port(rank, direction))
    tape = read_capture_files(files)
    return read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize("direction", ["rx", "tx"])
@pytest.mark.parametrize("rank", [0, 2])
def test_one_direction_lacks_what_is_said_and_the_other_one_adds_it(
    rank: int, direction: str, traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    both = ((rank, "rx"), (rank, "tx"))
    reading = seen_by(traffic, tmp_path, *both)
    whole = only(reading)
    assert whole.coverage is not None and len(whole.links) == 2
    assert whole.coverage.once_bytes == whole.coverage.bytes == largest(reading).covered_bytes
    sender = rank if direction == "tx" else (rank - 1) % RANKS
    link = next(link for link in whole.links if link.sender == sender)
    one, _ = read(traffic, rank, direction, tmp_path)
    told = only(one)
    assert told.coverage is not None
    # Nothing tells one direction which ring index it is, nor sometimes how long the ring is.
    if told.ranks == RANKS and told.links[0].sender == sender:
        assert told.coverage.once_bytes == largest(one).covered_bytes
        assert told.coverage.missing_chunks == ((sender + 1) % RANKS,)
        adds = {gain.adds_bytes for gain in told.coverage.gains}
        assert adds == {told.coverage.bytes - told.coverage.once_bytes}
        assert told.links[0].connections[0].messages == link.connections[0].messages


def test_a_third_link_makes_everything_seen_twice(
    traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    two = only(seen_by(traffic, tmp_path, (0, "rx"), (0, "tx")))
    assert two.coverage is not None
    assert two.coverage.twice_bytes < two.coverage.bytes
    (gain,) = two.coverage.gains
    assert (gain.links, gain.adds_bytes) == ((1, 2), 0)
    assert gain.twice_bytes == two.coverage.bytes
    three = only(seen_by(traffic, tmp_path, (0, "rx"), (0, "tx"), (1, "tx")))
    assert three.coverage is not None and len(three.links) == 3
    assert three.coverage.twice_bytes == three.coverage.bytes


def test_connections_hold_what_the_flows_do(traffic: SyntheticTraffic, tmp_path: Path) -> None:
    reading = seen_by(traffic, tmp_path, (0, "rx"), (0, "tx"))
    of_flow = {flow.seen.key.dest_qp: flow for flow in reading.flows if flow.role == "data"}
    connections = [c for link in only(reading).links for c in link.connections]
    assert sorted(c.queue_pairs[0] for c in connections) == sorted(of_flow)
    for connection in connections:
        flow = of_flow[connection.queue_pairs[0]]
        assert (connection.messages, connection.bytes) == (flow.messages, flow.bytes)
        assert connection.protocols == ("LL",)
    assert {c.channel for c in connections} == {0, 1}


def test_the_words_say_ring_mix_and_what_to_mirror(
    traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    lines = communicator_lines(
        summarize_communicators(seen_by(traffic, tmp_path, (0, "rx"), (0, "tx")))
    )
    assert lines[0].startswith("Communicator 0: a ring of 4 ranks, 2 channels, NCCL 2.23")
    text = "\n".join(lines)
    assert "ring    0 fe80::a00:1 -> 1 fe80::a00:2 -> 2 ? -> 3 fe80::a00:4 -> 0" in text
    assert "carry everything, 50 % of it in one copy only" in text
    assert "1 -> 2 (out of fe80::a00:2) or 2 -> 3 (into fe80::a00:4): everything is seen" in text


def test_facts_hold_numbers_and_names_and_no_sentence(
    traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    (one,) = summarize_communicators(seen_by(traffic, tmp_path, (0, "rx")))
    facts = {fact.code: fact for _, fact in facts_of(one)}
    assert facts.keys() >= {"communicator.is", "communicator.covers", "communicator.more"}
    texts = [text for fact in facts.values() for text in _texts(fact)]
    assert texts and [text for text in texts if len(text.split()) > 3] == []
    assert "ring" not in texts
    covers = facts["communicator.covers"]
    assert covers.arguments["links"] == ("3 -> 0",)
    again = msgspec.json.decode(msgspec.json.encode(covers), type=Finding)
    assert (again, str(again)) == (covers, str(covers))


def _texts(fact: Finding) -> Iterator[str]:
    """Every text among the arguments of a finding and of those within it."""
    for value in fact.arguments.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Finding):
                yield from _texts(one)
            elif isinstance(one, str):
                yield one


def test_a_fact_of_an_earlier_release_is_shown_as_that_release_said_it() -> None:
    stored = b"""{"code": "communicator.covers", "until_audit": false, "arguments":
        {"text": "of a sum of 8 bytes ...", "bytes": 8, "once_bytes": 8, "twice_bytes": 8,
         "missing_chunks": [], "weights": true}, "sentence": "of a sum of 8 bytes ..."}"""
    assert str(msgspec.json.decode(stored, type=Finding)) == "of a sum of 8 bytes ..."


def test_a_point_to_point_send_is_of_no_ring(tmp_path: Path) -> None:
    job = SyntheticJob(ranks=2, steps=2, point_to_point=True)
    found = summarize_communicators(read(make_traffic(job), 0, "tx", tmp_path)[0])
    assert [one.ring for one in found] == [True, False]
    assert found[1].coverage is None
    assert any("point-to-point" in line for line in communicator_lines(found))


def test_a_long_ring_names_only_whom_a_mirror_saw() -> None:
    values: dict[str, Any] = {
        "number": 0,
        "ranks": 512,
        "ring": True,
        "channels": 1,
        "rules": [],
        "assumed": [],
        "links": [{"sender": 7, "receiver": 8, "connections": []}],
        "protocols": {},
        "kinds": {},
    }
    order = str(ring_order(msgspec.convert(values, CommunicatorSummary)))
    assert order == "(7 not seen) -> 7 ? -> 8 ? -> (503 not seen) -> 0"
