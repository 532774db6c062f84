"""Frames of LL or Simple messages on many flows, interleaved packet by packet."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.lab.synthetic_traffic.roce_frames import NicPort, frame, write_packets
from flowcheck.plane.shared_memory.frame_ring import FrameRing

HOSTS = [NicPort(bytes([2, 0, 0, 0, 0, n]), IPv6Address(f"fe80::{n}")) for n in (1, 2)]


@dataclass(frozen=True, slots=True)
class Load:
    """`frames` is a power of two; every message has `wire_bytes` and whole packets."""

    frames: int
    flows: int
    pmtu_bytes: int
    protocol: str = "LL"
    wire_bytes: int = 65536

    @property
    def packets(self) -> int:
        """Per message."""
        return self.wire_bytes // self.pmtu_bytes

    @property
    def data_bytes(self) -> int:
        """Per message, unpacked."""
        return self.wire_bytes // 2 if self.protocol == "LL" else self.wire_bytes

    @property
    def rounds(self) -> int:
        """Messages per flow."""
        return self.frames // (self.flows * self.packets)

    @property
    def whole_frames(self) -> int:
        """Frames of whole messages on every flow."""
        return self.rounds * self.flows * self.packets


def payload(load: Load, number: int) -> bytes:
    """Message `number` of any flow."""
    words = np.arange(load.wire_bytes // 4, dtype="<u4") * np.uint32(2654435761) + number
    if load.protocol == "LL":
        words[1::2] = number + 1
    return words.astype("<u4").tobytes()


def frames(load: Load) -> Iterator[bytes]:
    """Every frame, with right PSNs and ICRCs."""
    for number in range(load.rounds):
        content = payload(load, number)
        per_flow = [
            write_packets(
                content,
                dest_qp=0x100 + flow,
                psn=number * load.packets,
                va=0x7F00_0000_0000 + flow * 0x80_0000 + number % 8 * load.wire_bytes,
                rkey=0x2000 + flow,
                pmtu_bytes=load.pmtu_bytes,
                immediate=struct.pack("<I", load.wire_bytes),
            )
            for flow in range(load.flows)
        ]
        for packet in range(load.packets):
            for flow in range(load.flows):
                yield frame(*HOSTS, 0xC000 + flow, per_flow[flow][packet])


def fill(ring: FrameRing, load: Load) -> int:
    """Puts every frame into an empty ring; returns how many."""
    count = 0
    for content in frames(load):
        code = lib.fc_ring_put(ring.handle, count, content, len(content), len(content), 0, count)
        assert code == 0, code
        count += 1
    commit = ring.capture_commit()
    commit.source_frames = count
    commit.counters.rx_frames = commit.counters.pushed_frames = count
    lib.fc_ring_publish(ring.handle, count, commit)
    return count


def write_pcap(path: Path, load: Load) -> int:
    """The frames as a capture file; returns how many."""
    count = 0
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for content in frames(load):
            file.write(struct.pack("<IIII", 1, count % 10**9, len(content), len(content)))
            file.write(content)
            count += 1
    return count


assert ffi.sizeof("struct fc_slot") == 64
