"""Real captures cut apart by scapy, and what must remain of their tensors, from truth alone."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scapy.utils import RawPcapNgReader, RawPcapWriter

RANK_0_MAC = bytes.fromhex("0c42a19f58f8")
NAMES = (
    "allreduce+partial_p2p",
    "allreduce+partial_p2p_new",
    "allreduce_addstep",
    "iter_40000_p2p",
    "iter_40000_p2p_iter10",
    "iter_40000_p2p_iter2",
    "iter_80000_p2p",
)
TWO_DIRECTIONS = NAMES[:3]
_WRITES = range(0x06, 0x0C)
"""IB specification vol 1, 9.2: RC RDMA WRITE First .. Only with Immediate."""


@dataclass(frozen=True)
class Frame:
    """One frame; `write` is (destination address, queue pair, PSN) of an RC RDMA write."""

    raw: bytes
    seconds: int
    microseconds: int
    write: tuple[bytes, int, int] | None

    @property
    def from_rank_0(self) -> bool:
        return self.raw[6:12] == RANK_0_MAC


def read_frames(path: Path) -> list[Frame]:
    """Every frame of a capture of this lab: IPv6 without extension headers."""
    return list(_frames_of(path))


@cache
def _frames_of(path: Path) -> list[Frame]:
    frames = []
    with RawPcapNgReader(str(path)) as reader:
        for raw, meta in reader:
            micro = (meta.tshigh << 32) | meta.tslow
            frames.append(Frame(raw, *divmod(micro, 1_000_000), _write(raw)))
    return frames


def _write(raw: bytes) -> tuple[bytes, int, int] | None:
    roce = raw[12:14] == b"\x86\xdd" and raw[20] == 17 and raw[56:58] == struct.pack(">H", 4791)
    if not roce or raw[62] not in _WRITES:
        return None
    return raw[38:54], int.from_bytes(raw[67:70], "big"), int.from_bytes(raw[71:74], "big")


def write_pcap(path: Path, frames: Iterable[Frame]) -> Path:
    """The frames as a classic pcap, time stamps kept."""
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame.raw, sec=frame.seconds, usec=frame.microseconds)
    return path


class Truth:
    """The truth file of one capture."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.values: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())

    @property
    def all_reduces(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.values["all_reduces"]
        return found

    def tensor(self, index: int) -> NDArray[np.uint8]:
        """[bytes] result of an all-reduce."""
        return np.fromfile(self.folder / self.all_reduces[index]["tensor_file"], np.uint8)

    def remaining(self, index: int, kept: set[tuple[bytes, int, int]]) -> NDArray[np.bool_]:
        """[bytes] of an all-reduce: does some kept packet carry its final value?"""
        found = self.all_reduces[index]
        covered = np.zeros(found["count"] * 4, np.bool_)
        for packet, start, stop in self.final_packets(index):
            if packet in kept:
                covered[start:stop] = True
        return covered

    def final_packets(self, index: int) -> list[tuple[tuple[bytes, int, int], int, int]]:
        """(packet, first byte, stop byte) of every packet that carries final values."""
        packets = []
        for piece in self.all_reduces[index]["pieces"]:
            if not self.is_final(piece):
                continue
            message, mtu = self._message(piece["source"])
            # LL: half of the bytes are flags; the second, Simple, communicator is plain.
            data_bytes = mtu if "p2p" in piece["source"] else mtu // 2
            first, stop = piece["offset"] * 4, (piece["offset"] + piece["count"]) * 4
            for i in range(-(-message["dma_len"] // mtu)):
                start = first + i * data_bytes
                packet = (*self._flow(message["flow"]), message["psn_first"] + i)
                packets.append((packet, start, min(start + data_bytes, stop)))
        return packets

    def is_final(self, piece: dict[str, Any]) -> bool:
        """Final values that tell where they belong. Only one of the two files with a copy sends
        it to the ring's own address (facts of the capture, not of its truth file)."""
        copy = piece["kind"] == "copy-via-p2p" and self.name.endswith("_new")
        return bool(piece["count"]) and (copy or piece["kind"].startswith("reduced"))

    def message_packets(self, source: str) -> list[tuple[bytes, int, int]]:
        """Every packet of the message a piece names as its source."""
        message, mtu = self._message(source)
        count = max(1, -(-message["dma_len"] // mtu))
        flow = self._flow(message["flow"])
        return [(*flow, message["psn_first"] + i) for i in range(count)]

    def _message(self, source: str) -> tuple[dict[str, Any], int]:
        flow, step = map(int, re.findall(r"flow (\d+) step (\d+)", source)[0])
        return self._data[flow][step], self._flows[flow]["path_mtu_observed"]

    @cached_property
    def _data(self) -> dict[int, list[dict[str, Any]]]:
        """{flow: its messages that carry data}"""
        found: dict[int, list[dict[str, Any]]] = {}
        for message in self.values["rdma_messages"]:
            if message["kind"].startswith("data"):
                found.setdefault(message["flow"], []).append(message)
        return found

    @cached_property
    def _flows(self) -> dict[int, dict[str, Any]]:
        return {flow["id"]: flow for flow in self.values["flows"]}

    def _flow(self, number: int) -> tuple[bytes, int]:
        flow = self._flows[number]
        return ip_address(flow["dst_ip"]).packed, flow["dst_qpn"]


def without(frames: Iterable[Frame], lost: Callable[[tuple[bytes, int, int]], bool]) -> list[Frame]:
    """The frames a mirror would have left had it lost these write packets."""
    return [f for f in frames if f.write is None or not lost(f.write)]


def packets_of(frames: Iterable[Frame]) -> set[tuple[bytes, int, int]]:
    """The write packets among the frames."""
    return {frame.write for frame in frames if frame.write is not None}
