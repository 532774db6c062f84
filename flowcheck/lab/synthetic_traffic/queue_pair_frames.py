"""Queue pairs between virtual ranks: each send becomes numbered, acknowledged frames with
clear-to-send messages and immediates, as in NCCL's net_ib (src/transport/net_ib)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address

from flowcheck.lab.synthetic_traffic.roce_frames import NicPort, acknowledge, frame, write_packets

FIFO_SLOTS = 8
"""Slots of a FIFO: NCCL_STEPS (src/include/device.h)."""
LL_SLOT_BYTES = 65536
"""Bytes of an LL buffer slot on the wire: the default buffer of 524,288 bytes
(src/include/device.h) in FIFO_SLOTS slots."""
AR_THRESHOLD_BYTES = 8192
"""Bytes: NCCL_IB_AR_THRESHOLD (src/transport/net_ib)."""


@dataclass(frozen=True, slots=True)
class WireFrame:
    """One frame between two ranks."""

    time_ns: int
    sender: int
    receiver: int
    kind: str
    """"data", "cts" or "ack"."""
    channel: int
    """Channel; -1: point-to-point."""
    message: int
    """Number of its message in its flow; for an ACK, of the acknowledged message."""
    frame: bytes = field(repr=False)


@dataclass(slots=True)
class QueuePair:
    """One RC queue pair from a sender to a receiver: data in one direction, CTS in the other."""

    sender: int
    receiver: int
    channel: int
    capacity_bytes: int
    dest_qp: int
    """QP number of the receiver, for data."""
    reverse_qp: int
    """QP number of the sender, for CTS and ACKs."""
    udp_source_port: int
    base_va: int
    rkey: int
    fifo_va: int
    fifo_rkey: int
    slot_bytes: int
    psn: int = 0
    cts_psn: int = 0
    sent: int = 0
    completed: int = 0
    """RDMA messages that the receiver has completed, the MSN of its ACKs (two per send with
    adaptive routing)."""


class Fabric:
    """All connections of one job, and their frames in wire order."""

    def __init__(
        self, ranks: int, *, pmtu_bytes: int, version: str, ip_version: int, adaptive: bool
    ) -> None:
        self.pmtu_bytes, self.version, self.adaptive = pmtu_bytes, version, adaptive
        prefix = "fe80::a00:" if ip_version == 6 else "10.0.0."
        self.hosts = [
            NicPort(bytes([2, 0, 0, 0, 0, rank + 1]), ip_address(f"{prefix}{rank + 1}"))
            for rank in range(ranks)
        ]
        self.frames: list[WireFrame] = []
        self.clock_ns = 1_700_000_000_000_000_000
        self._next_qp = 0x1A0

    def connect(self, sender: int, receiver: int, channel: int, *, simple: bool) -> QueuePair:
        """A new connection that starts at PSN 0; QP numbers ascend in order of creation. simple:
        for the Simple protocol."""
        qp = self._next_qp
        self._next_qp += 2
        return QueuePair(
            sender,
            receiver,
            channel,
            capacity_bytes=131072 if simple else LL_SLOT_BYTES,
            dest_qp=qp,
            reverse_qp=qp + 1,
            udp_source_port=0xC000 | qp * 37 & 0x3FFF,
            base_va=0x7F00_0000_0000 + qp * 0x100_0000,
            rkey=0x20_0000 + qp,
            fifo_va=0x5500_0000_0000 + qp * 0x1_0000,
            fifo_rkey=0x10_0000 + qp,
            slot_bytes=131072 if simple else LL_SLOT_BYTES,
        )

    def send(self, connection: QueuePair, payload: bytes) -> None:
        """Adds the frames of one send: CTS of the receiver, the message, and the receiver's ACK."""
        address = connection.base_va + connection.sent % FIFO_SLOTS * connection.slot_bytes
        self._grant(connection, address)
        immediate = struct.pack(">I" if self.version == "2.29" else "<I", len(payload))
        split = self.adaptive and len(payload) > AR_THRESHOLD_BYTES
        self._write(connection, payload, address, connection.rkey, None if split else immediate)
        if split:
            self._write(connection, b"", 0, 0, immediate)
        connection.sent += 1
        back = acknowledge(connection.reverse_qp, connection.psn - 1, connection.completed)
        self._emit(connection, back, kind="ack", message=connection.sent - 1, reverse=True)

    def _write(
        self, connection: QueuePair, payload: bytes, va: int, rkey: int, immediate: bytes | None
    ) -> None:
        packets = write_packets(
            payload,
            dest_qp=connection.dest_qp,
            psn=connection.psn,
            va=va,
            rkey=rkey,
            pmtu_bytes=self.pmtu_bytes,
            immediate=immediate,
        )
        connection.psn += len(packets)
        connection.completed += 1
        for packet in packets:
            self._emit(connection, packet, kind="data", message=connection.sent)

    def _grant(self, connection: QueuePair, address: int) -> None:
        entry = self._cts_entry(connection, address)
        stride = len(entry) * FIFO_SLOTS
        packets = write_packets(
            entry,
            dest_qp=connection.reverse_qp,
            psn=connection.cts_psn,
            va=connection.fifo_va + connection.sent % 256 * stride,
            rkey=connection.fifo_rkey,
            pmtu_bytes=self.pmtu_bytes,
            immediate=None,
        )
        connection.cts_psn += 1
        self._emit(connection, packets[0], kind="cts", message=connection.sent, reverse=True)

    def _cts_entry(self, connection: QueuePair, address: int) -> bytes:
        """struct ncclIbSendFifo of the release: 32 bytes up to 2.19, 64 since."""
        size, key, tag, index = (
            connection.capacity_bytes,
            connection.rkey,
            connection.sender,
            connection.sent + 1,
        )
        if self.version == "2.19":
            return struct.pack("<QiIIIQ", address, size, key, 1, tag, index)
        if self.version in ("2.20", "2.23"):
            body = struct.pack("<QiIIIIIQ", address, size, key, 0, 1, tag, 0, index)
        elif self.version == "2.26":
            body = struct.pack("<QQ4IIIQ", address, size, key, 0, 0, 0, 1, tag, index)
        else:
            body = struct.pack("<QQ8IIIQ", address, size, key, *[0] * 7, 1, tag, index)
        return body.ljust(64, b"\0")

    def _emit(
        self,
        connection: QueuePair,
        transport: bytes,
        *,
        kind: str,
        message: int,
        reverse: bool = False,
    ) -> None:
        sender, receiver = connection.sender, connection.receiver
        if reverse:
            sender, receiver = receiver, sender
        self.clock_ns += 2000
        content = frame(
            self.hosts[sender], self.hosts[receiver], connection.udp_source_port, transport
        )
        self.frames.append(
            WireFrame(self.clock_ns, sender, receiver, kind, connection.channel, message, content)
        )
