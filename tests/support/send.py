"""Sends every frame of a pcap file out of an interface: send.py INTERFACE FILE [PAUSE_EVERY]."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def frames_of(path: str) -> Iterator[bytes]:
    """Frames of a pcap file of this machine's byte order: 24 bytes ahead, 16 before each."""
    data, at = Path(path).read_bytes(), 24
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at + 8)
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def main(interface: str, path: str, pause_every: int) -> None:
    """A pause of a millisecond after every `pause_every` frames; 0: none."""
    frames = list(frames_of(path))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((interface, 0))
        for index, frame in enumerate(frames):
            sender.send(frame)
            if pause_every and index % pause_every == 0:
                time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
