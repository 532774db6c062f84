"""Stage: brings frames from one source into its rings, through DPDK.

One process per source, since DPDK can be started once per process; one thread and one ring per
queue. A file source goes on after a restart where its ring's last commit says.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.chain_processes import NO_LINK_YET
from flowcheck.messages import FramesReady, Message, Note
from flowcheck.plane.frame_sources import dpdk_eal
from flowcheck.plane.frame_sources.dpdk_receive_loop import (
    CaptureTimestamps,
    CopyEngine,
    DpdkPort,
    ReceiveLoop,
    mbufs_needed,
)
from flowcheck.plane.frame_sources.interface_drops import KernelDrops
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.packet_capture.capture_file import (
    FileCapture,
    report_source_end,
    ring_numbers,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Service
from flowcheck.stages.zmq_sockets import StageSockets

REAL_TIME_LEAST = 1
"""sched(7): the lowest of the real-time priorities."""
QUIET_IDLE_US = 1000
"""Longest pause at a kernel interface where nothing comes. The kernel's ring has room for 16,384
frames (dpdk_eal.py, FRAMES): 5.8 ms of 25 Gb/s in frames of 1,102 bytes. A NIC's has less."""
MISSED_EVERY_S = 1.0
"""Seconds between two questions to the kernel what it dropped. A choice: shorter costs the capture
core a system call."""


def capture_service(run: RunDir, config: JobConfig, number: int) -> Service:
    """The stage for source `number` of the job: with DPDK, but for a plain file."""
    if config.source[number].file is not None:
        return FileCapture(run, config, number)
    return DpdkCapture(run, config, number)


class DpdkCapture:
    """Receives through DPDK; the loops run in C on threads of their own."""

    def __init__(self, run: RunDir, config: JobConfig, number: int) -> None:
        self.name = f"capture-{number}"
        self._run, self._config, self._source = run, config, config.source[number]
        self._numbers = ring_numbers(config, number)
        self._rings: list[FrameRing] = []
        self._engines: list[CopyEngine] = []
        self._captures: list[ReceiveLoop] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[FlowCheckError] = []
        self._ended: set[int] = set()
        self._port: DpdkPort | None = None
        self._missed: KernelDrops | None = None

    def start(self, links: StageSockets) -> None:
        self._links = links
        self._rings = [FrameRing.open(self._run.ring(number)) for number in self._numbers]
        for ring in self._rings:
            ring.map_pages()
        self._heads = [ring.head for ring in self._rings]
        if all(ring.source_end is not None for ring in self._rings):
            return  # restarted after its end: `work` says so once more
        device = device_of(self._source)
        tables = [
            CaptureTimestamps(path) for path in device.files
        ]  # first: a torn file costs no start
        engines = [dpdk_eal.parse_device(name) for name in self._source.engines]
        mbufs = mbufs_needed(self._source.queues, len(engines))
        environment = dpdk_eal.eal_arguments([device, *engines], mbufs)
        dpdk_eal.start_eal(environment)
        if environment.why is not None:
            links.report(Note(stage=self.name, finding=environment.why))
        room = int(self._rings[0].handle.frame_room)
        self._port = DpdkPort(device, queues=self._source.queues, mbufs=mbufs, frame_bytes=room)
        if not self._port.link_up:
            links.report(Note(stage=self.name, finding=NO_LINK_YET(device.name)))
        for queue, ring in enumerate(self._rings):
            own = engines[queue :: self._source.queues]
            engine = CopyEngine(own, ring) if own else None
            self._engines += [engine] if engine else []
            self._captures.append(
                ReceiveLoop(
                    self._port,
                    queue,
                    ring,
                    idle_us=self._source.idle_us,
                    idle_max_us=QUIET_IDLE_US if self._source.interface is not None else 0,
                    table=tables[queue] if queue < len(tables) else None,
                    speed=self._source.speed or 0.0,
                    frames_max=self._source.frames or 0,
                    engine=engine,
                )
            )
        if device.interface is not None:
            self._missed = KernelDrops(device.interface, self._rings)
        self._ask_at_s = time.monotonic() + MISSED_EVERY_S
        for capture in self._captures:
            thread = threading.Thread(target=self._receive, args=(capture,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _receive(self, capture: ReceiveLoop) -> None:
        try:
            if self._source.live and self._source.idle_us:
                raise_thread_priority()
            capture.run()
        except FlowCheckError as error:
            self._failures.append(error)

    def work(self) -> int:
        done = 0
        for index, (number, ring) in enumerate(zip(self._numbers, self._rings, strict=True)):
            head = ring.head
            if head != self._heads[index]:
                done += head - self._heads[index]
                self._heads[index] = head
                self._links.send(f"parse-{number}", FramesReady(ring=number, head=head))
        if self._missed is not None and time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + MISSED_EVERY_S
            self._captures[0].note_missed(self._missed.frames())
        self._look_for_end()
        return done

    def _look_for_end(self) -> None:
        if self._failures:
            raise self._failures[0]
        for index, (number, ring) in enumerate(zip(self._numbers, self._rings, strict=True)):
            running = index < len(self._threads) and self._threads[index].is_alive()
            if not running and not self._failures and number not in self._ended:
                self._ended.add(number)
                report_source_end(ring, number, self._links)

    def on_message(self, message: Message) -> None:
        """Only Stop is sent to a source of frames, and the loop handles it."""

    def drained(self) -> bool:
        """A live source never ends by itself: the loops are asked to finish."""
        if self._source.live:
            self._halt()
        return len(self._ended) == len(self._numbers)

    def _halt(self) -> None:
        """Ends the loops, with nothing under way, and settles what the kernel dropped."""
        dropped = self._missed.frames() if self._missed is not None else 0
        for capture in self._captures:
            capture.stop()
        for thread in self._threads:
            thread.join()
        if self._missed is not None and self._captures:
            self._captures[0].note_missed(dropped, settle=True)
            self._missed = None

    def stop(self) -> None:
        self._halt()
        for capture in self._captures:
            capture.close()
        for engine in self._engines:
            engine.close()
        if self._port is not None:
            self._port.close()
        for ring in self._rings:
            ring.close()


def raise_thread_priority() -> None:
    """The calling thread runs before all ordinary ones, where the system allows it: the kernel's
    ring holds milliseconds, and a machine that does other work may take longer to come back."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REAL_TIME_LEAST))


def device_of(source: SourceConfig) -> dpdk_eal.Device:
    """The port a source names, as DPDK takes it."""
    if source.interface is not None:
        text = f"net_af_packet0,iface={source.interface}"
        return dpdk_eal.parse_device(
            f"{text},qpairs={source.queues}" if source.queues > 1 else text
        )
    return dpdk_eal.parse_device(source.pci or source.vdev or "")
