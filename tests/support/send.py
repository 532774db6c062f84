"""Sends every frame of a pcap file out of an interface: send.py INTERFACE FILE [PAUSE_EVERY]."""

from __future__ import annotations

import socket
import sys
import time

from scapy.utils import RawPcapReader


def main(interface: str, path: str, pause_every: int) -> None:
    """A pause of a millisecond after every `pause_every` frames; 0: none."""
    with RawPcapReader(path) as reader:
        frames = [frame for frame, _ in reader]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((interface, 0))
        for index, frame in enumerate(frames):
            sender.send(frame)
            if pause_every and index % pause_every == 0:
                time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
