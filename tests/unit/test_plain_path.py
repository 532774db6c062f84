"""What nearly every frame is takes a shorter path through the parser: with the same result as the
general path, whatever the frames are."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.transport import ACK, LAST_IMM, MIDDLE, ONLY, ONLY_IMM, Packet, send, write
from unit.test_flows_kill import SLOTS, filled, hostile_traffic, outcome

from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.packet_counters import VERDICTS

MACS_BYTES, TAG = 12, bytes([0x81, 0, 0, 5])
"""A tag of VLAN 5 between the addresses and the EtherType takes a frame off the short path, and
moves all behind it by four bytes."""
PLACES = ("l3_at", "udp_at", "bth_at", "icrc_at", "payload_at")
HEADERS_BYTES = 14 + 40 + 8 + 12 + 16 + 4
NIGHTLY = pytest.mark.nightly
FEW_FLOWS = 64
"""Up to so many, headers are remembered (fc_flow_ops.h)."""
WRITE = VERDICTS.index("write")


def _frames(dice: random.Random) -> list[bytes]:
    ends = dice.choice([("10.0.0.1", "10.0.0.2"), ("fe80::1", "2001:db8::2")])
    like = Packet(0, 0, source=ends[0], destination=ends[1], port=dice.randrange(1 << 16))
    size = dice.choice([0, 1, 16, 255, 256, 257, 700, 4096])
    data = dice.choice([dice.randbytes(size), bytes(size), b"\1\0\0\0" * (size // 4)])
    packets = write(data, psn=dice.randrange(1 << 24), immediate=dice.choice([None, 7]), like=like)
    packets += [*send(data, psn=3, like=like), replace(like, opcode=ACK)]
    packets += [replace(like, opcode=dice.randrange(256), payload=data[:300])]
    return [packet.frame() for packet in packets]


def _damaged(frame: bytes, dice: random.Random) -> bytes:
    """Some bytes of the headers are others, and the end is cut or has more."""
    out = bytearray(frame)
    for _ in range(dice.choice([0, 0, 1, 1, 2, 5])):
        at = dice.randrange(MACS_BYTES, min(len(out), HEADERS_BYTES))
        out[at] = dice.choice([0, 1, 255, out[at] ^ 1 << dice.randrange(8), dice.randrange(256)])
    cut = dice.choice([0, 0, 0, 1, 4, 17])
    return bytes(out[: len(out) - cut]) + bytes(dice.choice([0, 0, 0, 2, 60]))


def _decoded(frame: bytes, wire_bytes: int) -> dict[str, Any]:
    out = ffi.new("struct fc_packet *")
    said = lib.fc_decode(frame, len(frame), wire_bytes, out)
    assert said == out.verdict
    fields = {name: getattr(out, name) for name, _ in ffi.typeof(out[0]).fields}
    fields["key"] = bytes(ffi.buffer(ffi.addressof(out, "key")))
    fields["spare"] = bytes(fields["spare"])
    return fields


def test_a_tag_changes_nothing_of_a_frame_but_its_network_and_its_places() -> None:
    dice = random.Random(11)
    seen = dict.fromkeys(range(len(VERDICTS)), 0)
    for _ in range(2500):
        for whole in _frames(dice):
            frame = _damaged(whole, dice)
            more = dice.choice([0, 0, 100])
            plain = _decoded(frame, len(frame) + more)
            tagged = frame[:MACS_BYTES] + TAG + frame[MACS_BYTES:]
            other = _decoded(tagged, len(tagged) + more)
            assert other["flags"] & 2, "the tag was not seen"
            if plain["flags"] & 2:
                continue  # damaged to be a tag
            other["flags"] &= ~2
            other["network"] -= 5 << 32
            for name in PLACES:
                other[name] -= 4 * bool(other[name])
            assert plain == other, frame.hex()
            seen[plain["verdict"]] += 1
    assert seen[WRITE] > 2000 and sum(count > 50 for count in seen.values()) > 8, seen


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=NIGHTLY) for n in range(2, 12))])
def test_every_mark_and_record_is_that_of_the_general_path(seed: int, shm: Path) -> None:
    frames = hostile_traffic(seed)
    found = []
    for general in (0, 1):
        ring, table = filled(shm / str(general), frames)
        with Parser(ring, table) as parser:
            lib.fc_parser_generally(parser.handle, general)
            assert parser.parse(1 << 20) == SLOTS
        found.append(outcome(ring, table))
        table.close()
        ring.close()
    assert found[0] == found[1]
    opcodes = {frame[42] for frame in frames}
    assert {MIDDLE, LAST_IMM, ONLY, ONLY_IMM, ACK} <= opcodes


def _changed_headers(seed: int) -> list[bytes]:
    """Messages over both kinds of IP, of few flows or of many that are alike but for their queue
    pairs, at equal sequence numbers; in some packets a bit of the headers is another one."""
    dice = random.Random(seed)
    alike, frames = seed % 2, list[bytes]()
    ends = [("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.2"), ("fe80::1", "2001:db8::2")]
    flows = [
        Packet(0, 0, source=a, destination=b, dest_qp=dice.choice([7, 7, 8 + n]), port=700 + n % 2)
        for n, (a, b) in enumerate(ends * 4)
    ]
    if alike:
        flows = [replace(flows[0], dest_qp=dice.randrange(1 << 24)) for _ in range(48)]
    psn = [5 if alike else dice.randrange(1 << 24) for _ in flows]
    while len(frames) < 1500:
        which = range(len(flows)) if alike else [dice.randrange(len(flows))]
        packets = dice.randrange(3, 20)
        messages = [
            write(dice.randbytes(4) * (64 * packets), psn=psn[n], immediate=7, like=flows[n])
            for n in which
        ]
        for n in which:
            psn[n] = (psn[n] + packets) % (1 << 24)
        for packet in (packet for row in zip(*messages, strict=True) for packet in row):
            frame = bytearray(packet.frame())
            if dice.random() < (0.005 if alike else 0.1):
                at = dice.randrange(MACS_BYTES, HEADERS_BYTES)
                frame[at] ^= 1 << dice.randrange(8)
            frames.append(bytes(frame) + bytes(dice.choice([0, 0, 0, 2, 60])))
    return frames[:SLOTS]


@pytest.mark.parametrize("icrc_every", [0, 1])
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=NIGHTLY) for n in range(8, 60))]
)
def test_headers_like_those_before_are_told_from_others(
    seed: int, icrc_every: int, shm: Path
) -> None:
    frames = _changed_headers(seed)
    found = []
    for general in (0, 1):
        ring, table = filled(shm / str(general), frames)
        with Parser(ring, table, icrc_every=icrc_every) as parser:
            lib.fc_parser_generally(parser.handle, general)
            assert parser.parse(1 << 20) == len(frames)
        assert len(table.flows()) <= FEW_FLOWS
        found.append(outcome(ring, table))
        table.close()
        ring.close()
    assert found[0] == found[1]
