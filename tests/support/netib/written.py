"""Frames in a file, as capture programs write them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from support.netib.encapsulation import wrap
from support.netib.fabric import Emitted
from support.netib.options import Options

SNAP_BYTES = 65535


def write(path: Path, options: Options, frames: Sequence[Emitted]) -> None:
    """pcap of microseconds, or what the manners say."""
    container = options.manners.container
    order = ">" if container == "big" else "<"
    with path.open("wb") as out:
        if container == "ng":
            out.write(block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)))
            out.write(block(1, struct.pack("<HHI", 1, 0, 0)))
        else:
            magic = 0xA1B23C4D if container == "nano" else 0xA1B2C3D4
            out.write(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, SNAP_BYTES, 1))
        for number, each in enumerate(frames):
            whole = wrap(options.wrap, framed(options, each.frame), number)
            kept = whole[: options.manners.snap or SNAP_BYTES]
            at_us = stamp(options, each.at_us)
            if container == "ng":
                head = struct.pack(
                    "<IIIII", 0, at_us >> 32, at_us & 0xFFFFFFFF, len(kept), len(whole)
                )
                out.write(block(6, head + kept + bytes(-len(kept) % 4)))
                continue
            seconds, part = divmod(at_us, 1_000_000)
            part *= 1000 if container == "nano" else 1
            out.write(struct.pack(order + "IIII", seconds, part, len(kept), len(whole)) + kept)


def block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size


def framed(options: Options, frame: bytes) -> bytes:
    """The frame with what the manners say of its ends."""
    if options.manners.icrc == "zero" and frame[12:14] != b"\x08\x06":
        frame = frame[:-4] + bytes(4)
    if options.manners.fcs:
        frame += struct.pack("<I", zlib.crc32(frame))
    return frame


def stamp(options: Options, at_us: int) -> int:
    clock = options.manners.clock
    if clock == "equal":
        return 1_700_000_000_000_000
    return at_us // 1000 * 1000 if clock == "coarse" else at_us
