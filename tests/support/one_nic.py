"""Captures of hosts of one GPU each, as if some of the GPUs were behind one NIC of one node."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from scapy.utils import RawPcapNgReader
from support.netib.packets import checksum, ipv4

IP, UDP, BTH = 14, 34, 42
ROCE = struct.pack(">H", 4791)


def behind_one_nic(capture: Path, out: Path, same: Mapping[bytes, bytes]) -> Path:
    """RoCE frames over plain IPv4 alone, {address: that of its NIC}; what then goes from an address
    to itself stays in the node. Invariant CRCs are made anew (IB specification, annex A17)."""
    with RawPcapNgReader(str(capture)) as frames, out.open("wb") as kept:
        kept.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for raw, meta in frames:
            if raw[12:14] != b"\x08\x00" or raw[IP + 9] != 17 or raw[UDP + 2 : UDP + 4] != ROCE:
                continue
            source, destination = (same.get(a, a) for a in (raw[26:30], raw[30:34]))
            if source == destination:
                continue
            length = struct.unpack(">H", raw[UDP + 4 : UDP + 6])[0]
            whole = raw[: UDP + length]
            made = ipv4(source, destination, length, tos=whole[IP + 1])
            made = made[:4] + whole[IP + 4 : IP + 10] + b"\0\0" + made[12:]
            made = made[:10] + struct.pack(">H", checksum(made)) + made[12:]
            masked = made[:1] + b"\xff" + made[2:8] + b"\xff" + made[9:10] + b"\xff\xff" + made[12:]
            rest = whole[UDP : UDP + 6] + b"\xff\xff" + whole[BTH : BTH + 4] + b"\xff"
            covered = b"\xff" * 8 + masked + rest + whole[BTH + 5 : -4]
            icrc = struct.pack("<I", zlib.crc32(covered))
            at_ns = ((meta.tshigh << 32) | meta.tslow) * 1_000_000_000 // meta.tsresol
            frame = whole[:IP] + made + whole[UDP:-4] + icrc
            kept.write(struct.pack("<IIII", *divmod(at_ns, 10**9), len(frame), len(frame)) + frame)
    return out
