"""A DPDK port, its DMA copy engines and the receive loop into a ring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowcheck.errors import CaptureError, refusal_of
from flowcheck.plane.frame_sources.capture_file_refusal import capture_refusal
from flowcheck.plane.frame_sources.dpdk_eal import (
    MBUF_ROOM_BYTES,
    Device,
    check_dpdk,
    dpdk,
    pointer,
)
from flowcheck.plane.frame_sources.interface_drops import is_promiscuous
from flowcheck.plane.shared_memory.frame_ring import FrameRing

WITHOUT_PROMISCUOUS = ("net_pcap", "net_null", "net_ring")
"""Files and test devices have no such mode; everything else is a mirror port and needs it."""

RX_DESCRIPTORS = 1024
"""Descriptors of a receive queue, a power of two. A choice: more bridges longer pauses of the loop,
and takes packet buffers and cache."""
ENGINE_DESCRIPTORS = 1024
"""Descriptors of a copy engine, a power of two: copies it may have under way. A choice: more takes
packet buffers."""


class DpdkPort:
    """An Ethernet port, started, promiscuous where there is such a mode. Raises CaptureError."""

    def __init__(
        self,
        device: Device,
        *,
        queues: int = 1,
        mbufs: int,
        frame_bytes: int,
        promiscuous_by_socket: bool = False,
    ) -> None:
        """frame_bytes: the longest frame wanted, without FCS (a slot's room).
        promiscuous_by_socket: a PromiscuousSocket of the caller's holds the mode."""
        ffi, lib = dpdk()
        name = ffi.new("char[]", device.name.encode())
        mode = lib.FC_PROMISCUOUS_REQUIRED
        if device.driver in WITHOUT_PROMISCUOUS:
            mode = lib.FC_PROMISCUOUS_IF_POSSIBLE
        elif promiscuous_by_socket:
            mode = lib.FC_PROMISCUOUS_BY_SOCKET
        request = ffi.new(
            "struct fc_port_request *",
            {
                "name": name,
                "queues": queues,
                "rx_descriptors": RX_DESCRIPTORS,
                "mbufs": mbufs,
                "mbuf_room_bytes": MBUF_ROOM_BYTES,
                "frame_bytes_max": frame_bytes,
                "promiscuous": mode,
            },
        )
        self.device = device
        self.queues = queues
        self._leave_promiscuous = promiscuous_by_socket or (
            bool(device.interface) and is_promiscuous(device.interface or "")
        )
        self.handle: Any = ffi.new("struct fc_port *")
        check_dpdk(lib.fc_port_open(request, self.handle), device.argument)
        self.driver = ffi.string(self.handle.driver).decode()
        self.promiscuous = bool(self.handle.promiscuous)
        self.link_up = bool(self.handle.link_up)
        self.link_mbps = int(self.handle.link_mbps)

    def close(self) -> None:
        """The kernel's promiscuous flag is left as it was found."""
        dpdk()[1].fc_port_close(self.handle, self._leave_promiscuous)


def mbufs_needed(queues: int, engines: int) -> int:
    """Packet buffers: descriptors, bursts, per-thread caches, and what engines hold."""
    return queues * (RX_DESCRIPTORS + 2 * 512 + 64) + engines * ENGINE_DESCRIPTORS + 512


class CopyEngine:
    """Copy engines that write into one ring. Raises CaptureError."""

    def __init__(
        self,
        devices: Sequence[Device],
        ring: FrameRing,
        *,
        order: str = "forward",
        by_iova: bool = False,
    ) -> None:
        """order ("forward", "reversed", "shuffled") and by_iova are for tests: see fc_dma.h."""
        ffi, lib = dpdk()
        # cffi keeps nothing alive that only a C struct points to
        names = [ffi.new("char[]", device.name.encode()) for device in devices]
        array = ffi.new("const char *[]", names)
        request = ffi.new(
            "struct fc_dma_request *",
            {
                "names": array,
                "devices": len(names),
                "descriptors": ENGINE_DESCRIPTORS,
                "order": getattr(lib, f"FC_DMA_{order.upper()}"),
                "by_iova": by_iova,
            },
        )
        slot = ffi.new("struct fc_dma **")
        told = ", ".join(device.name for device in devices)
        check_dpdk(lib.fc_dma_open(request, pointer(ring.handle), slot), told)
        self.handle: Any = slot[0]

    @property
    def overtaken(self) -> int:
        """Copies that had ended while an older one had not."""
        return int(dpdk()[1].fc_dma_overtaken(self.handle))

    def close(self) -> None:
        dpdk()[1].fc_dma_close(self.handle)
        self.handle = None


class CaptureTimestamps:
    """When each frame of a capture file was captured. Raises CaptureError where it is torn."""

    def __init__(self, path: Path) -> None:
        ffi, lib = dpdk()
        self.handle: Any = ffi.new("struct fc_timestamps *")
        code = int(lib.fc_timestamps_read(os.fsencode(path), self.handle))
        if code < 0:
            told = refusal_of(ffi, lib, -code, path)
            raise CaptureError(-code, capture_refusal(path, told))

    @property
    def frames(self) -> int:
        return int(self.handle.frames)

    def close(self) -> None:
        dpdk()[1].fc_timestamps_free(self.handle)


class ReceiveLoop:
    """The receive loop of one queue into one ring."""

    def __init__(
        self,
        port: DpdkPort,
        queue: int,
        ring: FrameRing,
        *,
        idle_us: int = 50,
        idle_max_us: int = 0,
        table: CaptureTimestamps | None = None,
        speed: float = 0.0,
        frames_max: int = 0,
        engine: CopyEngine | None = None,
    ) -> None:
        ffi, lib = dpdk()
        self.ring, self.table, self.engine = ring, table, engine  # C keeps pointers to all three
        request = ffi.new(
            "struct fc_capture_request *",
            {
                "port": port.handle.id,
                "queue": queue,
                "idle_us": idle_us,
                "idle_max_us": idle_max_us,
                "table": table.handle if table else ffi.NULL,
                "speed": speed,
                "frames_max": frames_max,
                "engine": engine.handle if engine else ffi.NULL,
            },
        )
        slot = ffi.new("struct fc_capture **")
        self._device = port.device.argument
        check_dpdk(lib.fc_capture_create(request, pointer(ring.handle), slot), self._device)
        self.handle: Any = slot[0]

    def run(self) -> None:
        """Receives on the calling thread, without the GIL, until stopped or at the end."""
        check_dpdk(dpdk()[1].fc_capture_run(self.handle), self._device)

    def stop(self) -> None:
        """From any thread: `run` returns with nothing under way."""
        dpdk()[1].fc_capture_stop(self.handle)

    def note_missed(self, frames: int, *, settle: bool = False) -> None:
        """Frames the kernel had no room for; settle: commit now, the loop has ended."""
        _, lib = dpdk()
        lib.fc_capture_note_missed(self.handle, frames)
        if settle:
            lib.fc_capture_settle(self.handle)

    def close(self) -> None:
        dpdk()[1].fc_capture_destroy(self.handle)
        self.handle = None
