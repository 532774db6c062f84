"""Promiscuous mode of a kernel interface, and frames that the kernel dropped before its packet
sockets.

DPDK's af_packet of 22.11 does not tell what the kernel dropped before it.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flowcheck.closing_context import Closeable
from flowcheck.errors import CaptureError
from flowcheck.findings.catalog.capture_file_problems import NO_PACKET_SOCKET
from flowcheck.plane.shared_memory.frame_ring import FrameRing

SYSFS = Path("/sys/class/net")
IFF_PROMISC = 0x100
"""net/if.h"""
SOL_PACKET, PACKET_STATISTICS = 263, 6
"""linux/socket.h, linux/if_packet.h"""
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 1, 1
PACKET_MREQ = struct.Struct("=iHH8s")
"""struct packet_mreq of linux/if_packet.h: interface, type, length and bytes of an address."""
TPACKET_STATS = struct.Struct("=II")
"""struct tpacket_stats of linux/if_packet.h: tp_packets, tp_drops."""


def is_promiscuous(interface: str, sysfs: Path = SYSFS) -> bool:
    """Whether the interface takes in every frame; False where there is no such interface."""
    try:
        return bool(int((sysfs / interface / "flags").read_text(), 16) & IFF_PROMISC)
    except OSError:
        return False


class PromiscuousSocket(Closeable):
    """An interface takes in every frame while this is open. The kernel counts such sockets and
    takes the mode back when the last one is gone, also of a process that was killed; the
    interface's own flag, which DPDK sets, would stay."""

    def __init__(self, interface: str) -> None:
        """Raises OSError without CAP_NET_RAW, or where there is no such interface."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # of no protocol: no frames
        try:
            index = socket.if_nametoindex(interface)
            wanted = PACKET_MREQ.pack(index, PACKET_MR_PROMISC, 0, b"")
            self._socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, wanted)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()


class KernelDrops:
    """Frames that the kernel had no room for in the rings of this process's packet sockets.

    The kernel counts them as it drops them (packet(7), PACKET_STATISTICS, tp_drops), and forgets
    them as they are read. A difference of the interface's counters and ours is no such count:
    frames that wait in the kernel's ring, for seconds where the machine is busy, are in the one
    and not in the other yet.
    """

    def __init__(self, interface: str, rings: Sequence[FrameRing]) -> None:
        """rings: all rings the interface feeds, one per queue; its port is open. Raises
        CaptureError where this process has no packet socket at the interface."""
        self._sockets = packet_sockets(interface)
        if not self._sockets:
            raise CaptureError(errno.ENODEV, NO_PACKET_SOCKET(interface))
        commit = rings[0].capture_commit()  # a struct in another does not keep it alive
        self._frames = int(commit.counters.interface_missed_frames)

    def frames(self) -> int:
        """All so far, with those of earlier runs of this capture."""
        self._frames += sum(_dropped(descriptor) for descriptor in self._sockets)
        return self._frames


def packet_sockets(interface: str) -> list[int]:
    """Descriptors of this process's packet sockets that are bound to an interface."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith("socket:") and _is_at(int(link.name), interface):
                found.append(int(link.name))
    return sorted(found)


def _is_at(descriptor: int, interface: str) -> bool:
    with _borrowed(descriptor) as one:
        return one.family == socket.AF_PACKET and one.getsockname()[0] == interface


def _dropped(descriptor: int) -> int:
    """Frames since the call before."""
    with _borrowed(descriptor) as one:
        _, drops = TPACKET_STATS.unpack(
            one.getsockopt(SOL_PACKET, PACKET_STATISTICS, TPACKET_STATS.size)
        )
    return int(drops)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket that somebody else closes."""
    one = socket.socket(fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()
