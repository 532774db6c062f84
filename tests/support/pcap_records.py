"""The frames of a pcap file, as they lie there."""

from __future__ import annotations

import struct

FILE_HEADER_BYTES, RECORD_HEADER_BYTES = 24, 16
CAPTURED_BYTES_AT = 8
"""Of a record's header: how many bytes of the frame follow it, little-endian."""


def records_of(capture: bytes) -> list[bytes]:
    """Each frame with its record's header."""
    found, at = [], FILE_HEADER_BYTES
    while at < len(capture):
        (length,) = struct.unpack_from("<I", capture, at + CAPTURED_BYTES_AT)
        end = at + RECORD_HEADER_BYTES + length
        found.append(capture[at:end])
        at = end
    return found
