"""Seed inputs for the transport's fuzzer: frames of every kind, made by scapy and by hand.

python seeds.py FOLDER [CAPTURE...]
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, LLC, STP, Dot1AD, Dot1Q, Dot3, Ether
from scapy.packet import Raw
from scapy.utils import RawPcapNgReader, RawPcapReader
from support.transport import ACK, READ_REQUEST, SEND_ONLY, Packet, send, write

FRAMES_PER_INPUT = 24


def pack(frames: list[bytes], options: int = 1) -> bytes:
    """Frames as the harness reads them; option 1: mend the ICRC, 2: cut by a snap length."""
    return b"".join(struct.pack(">HB", len(frame), options) + frame for frame in frames)


def made_by_hand() -> list[list[bytes]]:
    """Inputs, each a list of frames."""
    roce = UDP(sport=49152, dport=4791)
    others = [
        Ether() / ARP(),
        Dot3() / LLC() / STP(),
        Ether() / Dot1AD() / Dot1Q() / IP() / TCP(),
        Ether() / IP() / ICMP(),
        Ether() / IP() / UDP() / BOOTP(),
        Ether() / IPv6() / IPv6ExtHdrFragment() / roce,
        Ether() / IPv6() / IPv6ExtHdrHopByHop() / roce / Raw(bytes(40)),
        Ether(type=0x88CC) / Raw(bytes(46)),
    ]
    data = bytes(i & 0xFF for i in range(1500))
    size = int.from_bytes((1500).to_bytes(4, "little"), "big")
    message = [packet.frame() for packet in write(data, psn=0, immediate=size)]
    second = [packet.frame() for packet in write(data, psn=6, va=0x2000, immediate=size)]
    renewed = [packet.frame() for packet in write(data, psn=0, rkey=99)]
    wrapped = [packet.frame() for packet in write(data, psn=0xFFFFFD)]
    six = Packet(0, 0, source="fe80::1", destination="fe80::2")
    sends = [packet.frame() for packet in send(data, psn=12, end="imm")]
    refusal = Packet(ACK, 3, syndrome=0x62, source="10.0.0.2", destination="10.0.0.1").frame()
    rest = [
        Packet(ACK, 3, msn=2),
        Packet(ACK, 3, syndrome=0x60),
        Packet(SEND_ONLY, 9, b"abcd"),
        Packet(READ_REQUEST, 10, length=5000),
        Packet(0x64, 1, bytes(264), dest_qp=1),
        Packet(0x81, 0, bytes(16)),
    ]
    shim = Packet(0xAA, 0, bytes(16) + Packet(0x64, 1, bytes(264)).body(), dest_qp=0xBBBBBB)
    return [
        [bytes(frame) for frame in others],
        message,
        message[1:] + second,
        message[::-1],
        message + second[1:],
        message + renewed,
        message + second + sends,
        sends[1::2] + sends[::2] + message,
        [*message, refusal, *second],
        wrapped + message,
        [packet.frame() for packet in write(data, psn=5, like=six)],
        [packet.frame() for packet in rest],
        [shim.frame()],
    ]


def from_capture(path: Path) -> list[list[bytes]]:
    """The first frames of a capture file, a few inputs of them."""
    reader = RawPcapNgReader if path.suffix == ".pcapng" else RawPcapReader
    with reader(str(path)) as packets:
        frames = [frame for frame, _ in zip((data for data, _ in packets), range(96), strict=False)]
    return [frames[at : at + FRAMES_PER_INPUT] for at in range(0, len(frames), FRAMES_PER_INPUT)]


def main(folder: Path, captures: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inputs = made_by_hand()
    for path in captures:
        inputs += from_capture(path)
    for nth, frames in enumerate(inputs):
        (folder / f"seed{nth:04}").write_bytes(pack(frames))
        (folder / f"snapped{nth:04}").write_bytes(pack([f[: len(f) // 2] for f in frames[:4]], 2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
