"""Ports opened through DPDK for a watch, in this process, with nothing that outlives it."""

from __future__ import annotations

import errno
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flowcheck.closing_context import Closeable
from flowcheck.errors import CaptureError, FlowCheckError
from flowcheck.findings.catalog.mirror_port import (
    LOOP_DID_NOT_END,
    NO_RIGHTS_FOR_PORT,
    PORT_CANNOT_BE_OPENED,
)
from flowcheck.findings.finding import plain_error_text
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind
from flowcheck.plane.frame_sources import dpdk_eal
from flowcheck.plane.frame_sources.dpdk_receive_loop import DpdkPort, ReceiveLoop, mbufs_needed
from flowcheck.plane.frame_sources.interface_drops import KernelDrops, PromiscuousSocket
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.shared_memory_location import SHM

RING_SLOTS = 16_384
"""Slots of a watched port's ring, 71 MB: 15 ms of 100 Gb/s in frames of 4,190 bytes wait there. A
choice that bounds memory."""
DRAIN_SLOTS = 64
"""Slots of a ring whose frames are forgotten, as are those that find it full."""
STOP_LIMIT_S = 10.0
"""Seconds in which a receive loop must end. It needs milliseconds; copy engines are given 5 s
(fc_capture.c)."""


@contextmanager
def unnamed_ring(slots: int, *, live_source: bool) -> Iterator[tuple[FrameRing, FlowTable]]:
    """A ring and a flow table whose files have no name any more: whatever ends this process, the
    kernel takes the memory back. Raises RingError where memory is short."""
    with ExitStack() as opened:
        with tempfile.TemporaryDirectory(
            prefix="flowcheck-doctor-", dir=SHM if SHM.is_dir() else None
        ) as folder:
            ring = FrameRing.create(Path(folder) / "ring", slots=slots, live_source=live_source)
            opened.enter_context(ring)
            flows = FlowTable.create(Path(folder) / "flows", messages=2 * slots)
            opened.enter_context(flows)
        yield ring, flows


class LivePort(Closeable):
    """A port that receives into a ring, on a thread of its own."""

    def __init__(self, named: NamedPort, number: int, ring: FrameRing, mbufs: int) -> None:
        """number: among the ports of this process. DPDK is started, and a kernel interface is
        promiscuous by a socket of the caller's. Raises CaptureError."""
        self._opened = ExitStack()
        self._failures: list[FlowCheckError] = []
        self._drops: KernelDrops | None = None
        self._dropped = 0
        by_socket = named.kind is PortKind.INTERFACE
        try:
            room = int(ring.handle.frame_room)
            self.port = DpdkPort(
                named.device(number),
                mbufs=mbufs,
                frame_bytes=room,
                promiscuous_by_socket=by_socket,
            )
            self._opened.callback(self.port.close)
            drain(self.port)
            self._loop = ReceiveLoop(self.port, 0, ring)
            self._opened.callback(self._loop.close)
            if by_socket:
                self._drops = KernelDrops(named.name, [ring])
        except BaseException:
            self._opened.close()
            raise
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._running = False

    def start(self) -> None:
        """Frames come from now on."""
        if self._drops is not None:
            self._dropped = self._drops.frames()  # before the first one was taken
        self._running = True
        self._thread.start()

    def _receive(self) -> None:
        try:
            self._loop.run()
        except FlowCheckError as error:
            self._failures.append(error)

    @property
    def hangs(self) -> bool:
        """The loop was told to end, did not, and may still write to the ring."""
        return not self._running and self._thread.is_alive()

    def check(self) -> None:
        """Raises what ended the loop, if anything did."""
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """Ends the loop; what waited for it is in the ring, and all that was dropped is counted.
        Raises CaptureError if it does not end in STOP_LIMIT_S."""
        if not self._running:
            return
        self._running = False
        dropped = self._drops.frames() - self._dropped if self._drops is not None else 0
        self._loop.stop()
        self._thread.join(STOP_LIMIT_S)
        if self._thread.is_alive():
            raise CaptureError(0, LOOP_DID_NOT_END(STOP_LIMIT_S))
        self._loop.note_missed(max(0, dropped), settle=True)
        self.check()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            if not self.hangs:
                self._opened.close()


def drain(port: DpdkPort) -> None:
    """Takes and forgets what waits at a port. From when it is made until it is bound to one, a
    packet socket gets the frames of all interfaces (packet(7)), and they would count as this
    port's."""
    with unnamed_ring(DRAIN_SLOTS, live_source=True) as (ring, _):
        loop = ReceiveLoop(port, 0, ring)
        loop.stop()  # it takes what is there and ends
        try:
            loop.run()
        finally:
            loop.close()


def promiscuous_socket(interface: str) -> PromiscuousSocket:
    """Makes an interface promiscuous while it is open. Raises CaptureError where this process may
    not, or the interface is gone."""
    try:
        return PromiscuousSocket(interface)
    except PermissionError as error:
        raise CaptureError(errno.EPERM, NO_RIGHTS_FOR_PORT(interface)) from error
    except OSError as error:
        why = PORT_CANNOT_BE_OPENED(port=interface, error=plain_error_text(error))
        raise CaptureError(error.errno or 0, why) from error


def start_dpdk(ports: Sequence[NamedPort]) -> int:
    """Starts DPDK for these ports, once in a process; the packet buffers that each of them gets.
    Raises CaptureError."""
    mbufs = mbufs_needed(queues=1, engines=0)
    devices = [port.device(number) for number, port in enumerate(ports)]
    dpdk_eal.start_eal(dpdk_eal.eal_arguments(devices, mbufs * len(devices)))
    return mbufs
