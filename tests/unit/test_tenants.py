"""Two tenants of one fabric whose addresses and queue pairs are the same, and one job's frames
that pass several mirrors: who is one flow, and who is not."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from scapy.contrib.erspan import ERSPAN_II
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import GRE, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw
from scapy.utils import wrpcap
from support.transport import ACK, Packet, Run, parsed, write
from support.wireshark import tshark
from support.writes import payload

from flowcheck._core import lib

Wrap = Callable[[bytes], bytes]
SIZES = (700, 2000, 100, 1500, 600, 2000)


def vlan(number: int, *, ethertype: int = 0x8100) -> Wrap:
    """An access port's frame on a trunk, or on the VLAN of a mirror session (RSPAN)."""
    return lambda frame: frame[:12] + struct.pack(">HH", ethertype, number) + frame[12:]


def vxlan(number: int) -> Wrap:
    outer = Ether() / IP(src="9.9.9.1", dst="9.9.9.2") / UDP(sport=5, dport=4789)
    return lambda frame: bytes(outer / VXLAN(vni=number) / Raw(frame))


def nvgre(number: int) -> Wrap:
    """RFC 7637: the network's 24 bits, then 8 that spread its flows."""
    outer = Ether() / IP(src="9.9.9.1", dst="9.9.9.2")
    tunnel = outer / GRE(proto=0x6558, key_present=1, key=number << 8 | 0x5A)
    return lambda frame: bytes(tunnel / Raw(frame))


def erspan(session: int) -> Wrap:
    outer = Ether() / IP(src="9.9.9.1", dst="9.9.9.2") / GRE(proto=0x88BE, seqnum_present=1)
    return lambda frame: bytes(outer / ERSPAN_II(session_id=session) / Raw(frame))


def both(outer: Wrap, inner: Wrap) -> Wrap:
    return lambda frame: outer(inner(frame))


def bare(frame: bytes) -> bytes:
    return frame


def life(fill: int, *, rkey: int = 7, pkey: int = 0xFFFF, port: int = 50000) -> list[Packet]:
    """The packets of six messages whose bytes are nobody else's."""
    packets: list[Packet] = []
    like = Packet(0, 0, pkey=pkey, port=port)
    for nth, size in enumerate(SIZES):
        data = payload(size, fill + nth)
        packets += write(data, psn=len(packets), va=(nth + 1) << 16, rkey=rkey, like=like)
    return packets


def sent(fill: int) -> list[bytes]:
    return [payload(size, fill + nth) for nth, size in enumerate(SIZES)]


def whole(run: Run, flow: int) -> list[bytes]:
    """The bytes of the flow's messages, by marks alone; all of each must be there."""
    found = run.reassembled()
    records = [m for m in run.table.messages() if m.flow == flow]
    for m in records:
        assert m.position in found and all(found[m.position][1]), (flow, m.first_psn)
    return [bytes(found[m.position][0]) for m in sorted(records, key=lambda m: m.first_psn)]


def woven(seed: int, *streams: Sequence[bytes]) -> list[bytes]:
    """The streams through one port: each in its order, which of them comes next drawn."""
    turns = [n for n, stream in enumerate(streams) for _ in stream]
    Random(seed).shuffle(turns)
    ways = [iter(stream) for stream in streams]
    return [next(ways[n]) for n in turns]


APART: dict[str, tuple[Wrap, Wrap]] = {
    "vxlan": (vxlan(1), vxlan(2)),
    "vxlan in erspan": (both(erspan(1), vxlan(1)), both(erspan(1), vxlan(2))),
    "vlan": (vlan(10), vlan(20)),
    "vlan under the vlan of a mirror": (both(vlan(99), vlan(10)), both(vlan(99), vlan(20))),
    "vlan in erspan": (both(erspan(1), vlan(10)), both(erspan(1), vlan(20))),
    "overlay beside what is in none": (bare, vxlan(2)),
    "nvgre": (nvgre(5), nvgre(6)),
}


@pytest.mark.parametrize("rkey", [7, 8], ids=["same key", "other key"])
@pytest.mark.parametrize("name", APART)
def test_tenants_with_the_same_addresses_and_queue_pair_are_two_flows(
    name: str, rkey: int, shm: Path
) -> None:
    """Same PSNs, same memory addresses, same UDP port: the network alone tells them apart."""
    one, other = APART[name]
    for seed in range(6):
        mine = [one(p.frame()) for p in life(0)]
        others = [other(p.frame()) for p in life(100, rkey=rkey)]
        with parsed(shm, woven(seed, mine, others)) as run:
            assert len(run.table.flows()) == 2
            kept = [whole(run, flow) for flow in (0, 1)]
            assert sorted(kept) == sorted([sent(0), sent(100)]), seed
            assert run.verdicts() == {"write": len(mine) + len(others)}


def test_partitions_are_two_flows_whose_member_bits_say_nothing(shm: Path) -> None:
    """IB 10.9.3: the low 15 bits of a P_Key are the partition."""
    mine = life(0, pkey=0x8001)
    full = [p.frame() for p in mine[:9]] + [p.frame() for p in life(0, pkey=0x0001)[9:]]
    others = [p.frame() for p in life(100, pkey=0x8002)]
    for seed in range(6):
        with parsed(shm, woven(seed, full, others)) as run:
            assert [int(f["key"]["partition"]) for f in run.table.flows()] in ([1, 2], [2, 1])
            kept = [whole(run, flow) for flow in (0, 1)]
            assert sorted(kept) == sorted([sent(0), sent(100)]), seed


def test_tshark_tells_the_same_frames_apart(shm: Path, tmp_path: Path) -> None:
    streams = [
        [vxlan(1)(p.frame()) for p in life(0)],
        [vxlan(2)(p.frame()) for p in life(100)],
        [vlan(10)(p.frame()) for p in life(200)],
        [vlan(20)(p.frame()) for p in life(300)],
        [p.frame() for p in life(400, pkey=0x8003)],
    ]
    wire = woven(3, *streams)
    wrpcap(str(tmp_path / "port.pcap"), [Ether(frame) for frame in wire])
    fields = ("vxlan.vni", "vlan.id", "infiniband.bth.p_key", "infiniband.bth.psn")
    rows = tshark(tmp_path / "port.pcap", *fields)
    assert {row[3] for row in rows} == {str(n) for n in range(len(streams[0]))}
    with parsed(shm, wire) as run:
        flows: dict[tuple[str, ...], set[int]] = defaultdict(set)
        for row, mark in zip(rows, run.marks(), strict=True):
            flows[tuple(row[:3])].add(mark.flow)
            assert int(row[3]) == mark.psn & 0xFFFFFF
        assert len(flows) == 5
        assert all(len(own) == 1 for own in flows.values()), flows
        assert len(set(chain(*flows.values()))) == 5


COPIES: dict[str, tuple[Wrap, Wrap]] = {
    "a tag that one port strips": (bare, vlan(10)),
    "mirror sessions of two vlans": (vlan(100), vlan(101)),
    "mirror sessions around the job's own vlan": (
        both(vlan(100), vlan(10)),
        both(vlan(101), vlan(10)),
    ),
    "routed from one vlan into another": (vlan(10), vlan(20)),
    "host port and uplink of a tunnel's end": (bare, vxlan(5)),
    "before and behind a router between overlays": (vxlan(5), vxlan(6)),
    "two erspan sessions": (erspan(1), erspan(2)),
    "erspan beside a local mirror": (vlan(10), erspan(2)),
    "a service tag beside a customer's": (vlan(3, ethertype=0x88A8), vlan(4)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_one_job_through_two_mirrors_are_one_flow(name: str, shm: Path) -> None:
    """In whatever order the copies come."""
    one, other = COPIES[name]
    packets = life(0)
    for seed in range(12):
        wire = woven(seed, *([wrap(p.frame()) for p in packets] for wrap in (one, other)))
        with parsed(shm, wire) as run:
            assert len(run.table.flows()) == 1, seed
            assert whole(run, 0) == sent(0)
            assert run.counters()["duplicate_packets"] == len(packets)


@pytest.mark.parametrize("name", COPIES)
def test_what_one_mirror_loses_the_other_gives(name: str, shm: Path) -> None:
    """A tenth is lost at each, the first packets among it; no packet at both."""
    one, other = COPIES[name]
    packets = life(0)
    for seed in range(12):
        drawn = Random(seed)
        lost = [drawn.choice((0, 0, 0, 0, 1, 2)) for _ in packets]
        lost[0] = seed % 3
        wire = []
        for packet, where in zip(packets, lost, strict=True):
            copies = [one(packet.frame())] * (where != 1) + [other(packet.frame())] * (where != 2)
            drawn.shuffle(copies)
            wire += copies
        with parsed(shm, wire) as run:
            assert len(run.table.flows()) == 1, seed
            assert whole(run, 0) == sent(0), seed


@pytest.mark.parametrize("name", COPIES)
def test_a_flow_whose_packets_take_two_paths_is_one(name: str, shm: Path) -> None:
    """Each packet passes one of the mirrors only."""
    one, other = COPIES[name]
    for seed in range(12):
        drawn = Random(seed)
        wire = [drawn.choice((one, other))(p.frame()) for p in life(0)]
        with parsed(shm, wire) as run:
            assert len(run.table.flows()) == 1, seed
            assert whole(run, 0) == sent(0), seed


def test_a_flow_met_amid_a_message_is_one(shm: Path) -> None:
    packets = life(0)
    for start in range(1, 12):
        for seed in range(4):
            wire = woven(seed, *([w(p.frame()) for p in packets[start:]] for w in (bare, vlan(9))))
            with parsed(shm, wire) as run:
                assert len(run.table.flows()) == 1, (start, seed)


def test_answers_of_a_tenant_make_no_way_for_another(shm: Path) -> None:
    """Acknowledgements come first, in both networks, then writes to the same queue pair."""
    answers = [Packet(ACK, n, msn=n) for n in range(3)]
    early = [wrap(p.frame()) for p in answers for wrap in (vxlan(1), vxlan(2))]
    writes = [[w(p.frame()) for p in life(n)] for n, w in ((0, vxlan(1)), (100, vxlan(2)))]
    with parsed(shm, [*early, *woven(1, *writes)]) as run:
        assert len(run.table.flows()) == 2
        assert sorted(whole(run, flow) for flow in (0, 1)) == sorted([sent(0), sent(100)])


def test_packets_of_another_network_without_an_address_are_placed_nowhere(shm: Path) -> None:
    """Made up by a tenant whose own queue pair was never seen."""
    packets = [n for _ in range(12) for n in life(0)]
    own = [vxlan(1)(p.frame()) for p in frames_on(packets)]
    foreign = life(100)
    made = [vxlan(2)(p.frame()) for p in frames_on([foreign[4]] * 8, at=len(packets) - 20)]
    wire = [*own[:-20], *made, *own[-20:]]
    with parsed(shm, wire) as run:
        told = [mark.said for mark in run.marks()]
        start = len(own) - 20
        assert set(told[start : start + len(made)]) == {"doubtful"}
        assert not run.table.flows()[0]["duplicate_packets"]


def frames_on(packets: Sequence[Packet], *, at: int = 0) -> list[Packet]:
    """With PSNs of their own, from `at` on."""
    return [replace(p, psn=at + n) for n, p in enumerate(packets)]


def test_so_many_networks_are_told_apart_and_no_more(shm: Path) -> None:
    """Whoever makes up networks takes a bounded part of the table and of the time."""
    mine = [vxlan(1)(p.frame()) for p in life(0)]
    made = [vxlan(n)(life(100 + n, rkey=n)[0].frame()) for n in range(2, 200)]
    for cut in (0, 4, 12):
        with parsed(shm, [*mine[:cut], *made, *mine[cut:]]) as run:
            own = {mark.flow for mark in run.marks()[:cut] + run.marks()[cut + len(made) :]}
            assert len(own) == 1, cut
            assert whole(run, own.pop()) == sent(0)


@pytest.mark.parametrize("name", ["vxlan", "vlan", "nvgre"])
def test_a_refusal_is_of_the_queue_pair_in_its_own_network(name: str, shm: Path) -> None:
    """IB 9.7.5.2.1: the NAK names a PSN that both tenants have under way."""
    nak = Packet(
        ACK, 4, syndrome=0x62, dest_qp=0x22, source="10.0.0.2", destination="10.0.0.1", msn=1
    )
    one, other = APART[name]
    writes = [[w(p.frame()) for p in life(n)] for n, w in ((0, one), (100, other))]
    with parsed(shm, [*woven(2, *writes), other(nak.frame())]) as run:
        refused = {m.flow for m in run.table.messages() if m.flags & lib.FC_MESSAGE_REFUSED}
        assert len(refused) == 1
        assert whole(run, 1 - refused.pop()) == sent(0)
