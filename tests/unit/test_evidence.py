"""Streams made by hand that look like more than they are: no tensor is called whole on sizes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from flowcheck.findings.catalog.collective_evidence import FEWEST_RANKS, OTHER_RANKS
from flowcheck.wire.learn import Collective, Reading, read_stream
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

PSN_OF_START = 1 << 32
PMTU = 1024
DICE = np.random.default_rng(1)


@dataclass
class Flow:
    """One direction of one queue pair; every send is one write with immediate."""

    qp: int
    source: str = "A"
    destination: str = "B"
    simple: bool = False
    psn: int = PSN_OF_START
    count: int = 0
    messages: list[ObservedMessage] = field(default_factory=list)

    @property
    def key(self) -> FlowKey:
        return FlowKey(source=self.source, destination=self.destination, dest_qp=self.qp)

    def send(self, data: bytes, at: int, *, seen: bool = True) -> None:
        flag = self.count + 1
        payload = np.frombuffer(data, np.uint8) if self.simple else lines(data, flag)
        slot = 0 if self.simple else self.count % 8 * 65_536
        size = len(payload)
        packets = max(1, -(-size // PMTU))
        if seen:
            self.messages.append(
                ObservedMessage(
                    flow=self.key,
                    first_psn=self.psn,
                    packets=packets,
                    number=self.count,
                    psn_counted=True,
                    va=(self.qp << 32) + slot,
                    rkey=self.qp,
                    immediate=int.from_bytes(struct.pack("<I", size), "big"),
                    wire_bytes=size,
                    payload=payload,
                    first_ns=at,
                    order=at,
                )
            )
        self.psn += packets
        self.count += 1

    def as_seen(self) -> ObservedFlow:
        return ObservedFlow(
            key=self.key,
            udp_source_port=50_000 + self.qp,
            pmtu_bytes=PMTU,
            frames=self.psn - PSN_OF_START,
            payload_bytes=sum(m.wire_bytes for m in self.messages),
            psn_missing=0,
            psn_duplicate=0,
            icrc_bad=0,
            acks=0,
            first_ns=self.messages[0].first_ns,
            last_ns=self.messages[-1].first_ns,
        )


def lines(data: bytes, flag: int) -> np.ndarray:
    """LL: two words of data, each with the flag behind it."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u4").reshape(-1, 2)
    out = np.empty((len(words), 4), "<u4")
    out[:, 0], out[:, 2] = words[:, 0], words[:, 1]
    out[:, 1] = out[:, 3] = flag
    return out.reshape(-1).view(np.uint8).copy()


def floats(count: int) -> np.ndarray:
    return DICE.standard_normal(count).astype("<f4")


def noise(count: int) -> bytes:
    return floats(count).tobytes()


def read(*flows: Flow) -> Reading:
    messages = sorted((m for f in flows for m in f.messages), key=lambda m: m.first_ns)
    return read_stream([f.as_seen() for f in flows], messages)


def reduced(reading: Reading) -> list[Collective]:
    return [c for c in reading.collectives if c.kind == "all_reduce"]


def test_a_broadcast_as_large_as_a_chunk_is_no_added_ring_step() -> None:
    flow = Flow(1)
    for step in range(4):
        flow.send(noise(1928), 100 * step)
        flow.send(noise(3072), 100 * step + 1)
        flow.send(noise(1928), 100 * step + 2)
    for found in reduced(read(flow)):
        assert found.coverage == 3072 / 5000
        assert found.sha256 is None
        assert found.assumed


def test_an_added_step_is_believed_where_ranks_add_the_same() -> None:
    flow = Flow(1)
    for step in range(2):
        part = floats(5000)
        flow.send(part[3072:].tobytes(), 100 * step)
        flow.send((2 * part[:3072]).tobytes(), 100 * step + 1)
        flow.send((2 * part[3072:]).tobytes(), 100 * step + 2)
    assert [c.complete for c in reduced(read(flow))] == [True, True]


def test_one_and_a_half_all_reduces_are_not_one_with_an_added_step() -> None:
    flow, other = Flow(1), Flow(2)
    flow.send(noise(904), 1)
    flow.send(noise(2048), 2)
    flow.send(noise(904), 9)
    other.send(b"", 1)
    other.send(noise(2048), 2)
    other.send(b"", 9)
    assert not any(c.complete for c in reduced(read(flow, other)))


def test_empty_sends_of_the_next_all_reduce_are_no_added_step() -> None:
    """The start of the second all-reduce taken for the end of the first."""
    flow, other = Flow(1), Flow(2)
    for qp, sizes in ((flow, (904, 2048)), (other, (0, 2048))):
        for number, count in enumerate((*sizes, *sizes)):
            qp.send(noise(count), 10 * number + qp.qp)
    found = reduced(read(flow, other))
    assert found and not any(c.complete for c in found)


def test_empty_sends_in_a_row_tell_of_an_added_step() -> None:
    flow, other = Flow(1), Flow(2)
    for step in range(2):
        for qp, sizes in ((flow, (904, 2048, 904)), (other, (0, 2048, 0))):
            for number, count in enumerate(sizes):
                qp.send(noise(count), 100 * step + 10 * number + qp.qp)
    assert [c.complete for c in reduced(read(flow, other))] == [True, True]


def test_all_reduces_of_two_ranks_are_not_one_of_four() -> None:
    flow = Flow(1)
    for step in range(6):
        flow.send(noise(2048), 10 * step)
    found = reduced(read(flow))
    assert [c.bytes for c in found] == [16_384] * 3
    assert [c.coverage for c in found] == [0.0] * 3
    assert all(any(a.is_any_of(FEWEST_RANKS, OTHER_RANKS) for a in c.assumed) for c in found)


def two_ports(port: str) -> Reading:
    flow, other = Flow(1), Flow(2, destination="B2")
    parcel = Flow(9, destination=port, simple=True)
    for step in range(3):
        flow.send(noise(904), 100 * step + 1)
        flow.send(noise(2048), 100 * step + 2)
        other.send(b"", 100 * step + 1)
        other.send(noise(2048), 100 * step + 2)
        parcel.send(noise(904), 100 * step + 9)
    return read(flow, other, parcel)


@pytest.mark.nightly
def test_a_parcel_goes_where_the_channel_that_lacks_it_goes() -> None:
    assert all("p2p (inferred)" in c.sources for c in reduced(two_ports("B")))
    assert all(c.coverage == 1 for c in reduced(two_ports("B")))
    assert not any(c.coverage == 1 for c in reduced(two_ports("B2")))


@pytest.mark.parametrize(
    "lost",
    [
        *(0, 3, 5, 8, 11),  # each place, both lengths, with noise and without
        *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 4, 6, 7, 9, 10)),
    ],
)
def test_parcels_are_counted_through_any_hole(lost: int) -> None:
    """Parcels and all-reduces lost, in turns and not: what is complete is of one step."""
    flow, parcel = Flow(1), Flow(9, simple=True)
    whole = []
    for step in range(6):
        tensor = floats(5000)
        whole.append(tensor.tobytes())
        gone = lost // 2 % 3 <= step - 1 <= lost // 6 + lost // 2 % 3
        flow.send(noise(1928), 100 * step, seen=not (gone and lost % 2))
        flow.send(tensor[:3072].tobytes(), 100 * step + 1, seen=not (gone and step % 2))
        parcel.send(tensor[3072:].tobytes(), 100 * step + 50, seen=not gone)
    found = [c for c in reduced(read(flow, parcel)) if c.complete]
    assert found and all(c.result.tobytes() in whole for c in found)


def test_a_stream_joined_late_is_not_called_whole() -> None:
    flow, back = Flow(1), Flow(2, source="B", destination="A")
    for step in range(8):
        for way in (flow, back):
            way.send(noise(2048), 100 * step, seen=step > 2)
            way.send(noise(2048), 100 * step + 1, seen=step > 1)
    assert reduced(read(flow, back))
    assert not any(c.complete and not c.assumed for c in reduced(read(flow, back)))


def test_bytes_of_which_two_copies_differ_are_not_covered() -> None:
    flow, back = Flow(1), Flow(2, source="B", destination="A")
    for step in range(2):
        flow.send(noise(1928), 100 * step)
        back.send(noise(3072), 100 * step + 1)
        flow.send(noise(3072), 100 * step + 2)
        back.send(noise(1928), 100 * step + 3)
    assert [c.complete for c in reduced(read(flow, back))] == [True, True]
    flow.messages[1] = replace(flow.messages[1], conflicts=((1024, 2048),))
    first, second = reduced(read(flow, back))
    assert first.missing == ((512, 1024),) and first.sha256 is None and first.conflicts
    assert second.complete


def test_a_parcel_does_not_tell_which_of_two_equal_chunks_it_is() -> None:
    """One direction, chunks of equal size, no rank named: nothing tells the first from the
    second."""
    flow, parcel = Flow(1), Flow(9, simple=True)
    for step in range(3):
        flow.send(noise(2048), 100 * step)
        flow.send(noise(2048), 100 * step + 1)
        parcel.send(noise(2048), 100 * step + 50)
    found = reduced(read(flow, parcel))
    assert found and not any(c.complete for c in found)
