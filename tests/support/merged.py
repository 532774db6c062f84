"""Captures of several jobs as one mirror port would have carried them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

HEADER = struct.Struct("<IHHiIII")
RECORD = struct.Struct("<IIII")


def merged(captures: Sequence[Path], out: Path, later_us: Sequence[int] = ()) -> Path:
    """Microsecond pcap files of one link type in the order of time; later_us: by how much each of
    them came later than it says."""
    frames: list[tuple[int, bytes]] = []
    head = b""
    for number, path in enumerate(captures):
        raw = path.read_bytes()
        head, at = raw[: HEADER.size], HEADER.size
        while at < len(raw):
            seconds, micro, kept, _ = RECORD.unpack_from(raw, at)
            when = seconds * 10**6 + micro + (later_us[number] if later_us else 0)
            frames.append((when, raw[at + 8 : at + RECORD.size + kept]))
            at += RECORD.size + kept
    frames.sort(key=lambda one: one[0])
    out.write_bytes(
        head + b"".join(struct.pack("<II", *divmod(at, 10**6)) + rest for at, rest in frames)
    )
    return out
