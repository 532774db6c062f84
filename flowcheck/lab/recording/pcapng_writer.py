"""Writes pcapng files of one interface."""

from __future__ import annotations

import struct
from pathlib import Path

from flowcheck.closing_context import Closeable

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
BYTE_ORDER = 0x1A2B3C4D
ETHERNET = 1
END, COMMENT = 0, 1
USERAPPL, IF_NAME, IF_TSRESOL = 4, 2, 9
IFRECV, IFDROP = 4, 5
NANOSECONDS = 9
"""Time stamps are in units of 10**-9 s (pcapng, if_tsresol)."""


class PcapngWriter(Closeable):
    """A pcapng file with one section and one interface, little endian."""

    def __init__(self, path: Path, *, interface: str, comment: str) -> None:
        self._file = path.open("wb")
        section = struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1)
        written_by = _option(COMMENT, comment.encode()) + _option(USERAPPL, b"flowcheck lab record")
        self._block(SECTION, section + written_by + _option(END, b""))
        options = _option(IF_NAME, interface.encode()) + _option(IF_TSRESOL, bytes([NANOSECONDS]))
        self._block(INTERFACE, struct.pack("<HHI", ETHERNET, 0, 0) + options + _option(END, b""))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def packet(self, frame: bytes, at_ns: int) -> None:
        """Writes a frame without FCS. at_ns: when it was captured, nanoseconds since 1970."""
        size = len(frame)
        head = struct.pack("<IIIII", 0, at_ns >> 32, at_ns & 0xFFFFFFFF, size, size)
        self._block(PACKET, head + _padded(frame))

    def statistics(self, *, received: int, dropped: int, at_ns: int) -> None:
        """Writes the interface statistics: frames received and dropped by the socket."""
        head = struct.pack("<III", 0, at_ns >> 32, at_ns & 0xFFFFFFFF)
        counts = _option(IFRECV, struct.pack("<Q", received))
        counts += _option(IFDROP, struct.pack("<Q", dropped))
        self._block(STATISTICS, head + counts + _option(END, b""))

    def _block(self, kind: int, body: bytes) -> None:
        size = len(body) + 12
        self._file.write(struct.pack("<II", kind, size) + body + struct.pack("<I", size))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)
