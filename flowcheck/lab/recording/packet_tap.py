"""Captures every frame at an interface of a namespace into a pcapng file while a job runs."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import FRAMES_DROPPED
from flowcheck.lab.cluster.network_namespaces import in_namespace
from flowcheck.lab.recording.pcapng_writer import PcapngWriter

ETH_P_ALL = 3
SOL_PACKET, PACKET_STATISTICS = 263, 6  # linux/if_packet.h
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35  # asm-generic/socket.h
ROOM_BYTES = 256 << 20
"""Bytes of the socket's receive buffer, for frames that wait while the trainers use both CPU
cores. A choice: more uses kernel memory, less drops frames."""
FRAME_BYTES_MAX = 65536
"""Largest frame in bytes: an IP packet has at most 65,535, and no lab link carries frames that
long."""
LOOK_MS = 50
"""Milliseconds after which a wait for a frame checks for the end. A choice: a shorter time costs
CPU time."""
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TapCounts:
    """Number of frames and bytes that a tap wrote."""

    frames: int
    bytes: int


class PacketTap:
    """Writes every frame that arrives at an interface to a pcapng file, from creation until
    stop()."""

    def __init__(self, namespace: str, interface: str, path: Path, *, comment: str) -> None:
        """Listens when this returns. Needs root."""
        self.packet_count = TapCounts(0, 0)
        self._path, self._interface, self._comment = path, interface, comment
        self._ended = threading.Event()
        self._error: Exception | None = None
        with in_namespace(namespace):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._socket.bind((interface, ETH_P_ALL))
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._guarded, name="tap", daemon=True)
        self._thread.start()

    def __enter__(self) -> PacketTap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self._close()

    def stop(self) -> TapCounts:
        """Ends the capture when no frame is waiting. Raises FlowCheckError if a frame was dropped,
        since the file would be incomplete."""
        self._close()
        if self._error is not None:
            raise self._error
        return self.packet_count

    def _close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _guarded(self) -> None:
        try:
            self._run()
        except (OSError, FlowCheckError) as error:  # handed to the thread that stops it
            self._error = error

    def _run(self) -> None:
        comment = self._comment
        with PcapngWriter(self._path, interface=self._interface, comment=comment) as writer:
            frames = size = 0
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while True:
                last = self._ended.is_set()
                if not poll.poll(LOOK_MS):
                    if last:
                        break
                    continue
                frame, told, _, address = self._socket.recvmsg(FRAME_BYTES_MAX, 64)
                if address[2] == socket.PACKET_OUTGOING:
                    continue
                writer.packet(frame, _stamp_ns(told))
                frames, size = frames + 1, size + len(frame)
            raw = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
            _, dropped = struct.unpack("II", raw)
            writer.statistics(received=frames, dropped=dropped, at_ns=time.time_ns())
        self.packet_count = TapCounts(frames, size)
        if dropped:
            what = FRAMES_DROPPED(frames=dropped, interface=self._interface, path=self._path)
            raise FlowCheckError(what)


def _stamp_ns(told: list[tuple[int, int, bytes]]) -> int:
    """When the kernel got the frame."""
    for level, kind, value in told:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, rest = struct.unpack("qq", value[:16])
            return int(seconds) * SECOND_NS + int(rest)
    return time.time_ns()
