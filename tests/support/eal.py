"""One process per EAL: DPDK can be started once per process, so a test asks another one.

Run as a script it opens what a JSON object on its command line names, says "ready", captures
until the source ends or a line comes on stdin, and prints a JSON object of what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 90.0


def why_not() -> str:
    """Why captures through DPDK cannot be tried here, or an empty string."""
    if os.geteuid() != 0:
        return "captures through DPDK are tried as root"
    try:
        from flowcheck import _dpdk  # noqa: F401
    except ImportError as error:
        return f"flowcheck._dpdk is not there ({error}): install libdpdk-dev and build again"
    return ""


@dataclass
class Setup:
    """What one EAL process opens."""

    device: str
    rings: list[str]
    engines: list[str] = field(default_factory=list)
    order: str = "forward"
    by_iova: bool = False
    frames_max: int = 0
    speed: float = 0.0
    table: bool = True
    idle_us: int = 20
    idle_max_us: int = 0
    mbuf_frame_bytes: int = 4288
    extra: list[str] = field(default_factory=list)
    feed: dict[str, Any] = field(default_factory=dict)
    """For net_ring: {"library": built feed.c, "file": pcap, "limit": bytes per segment}."""


class Running:
    """A capture in a process of its own, in network namespace `namespace` if one is named."""

    def __init__(self, setup: Setup, namespace: str | None = None) -> None:
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        command = [*inside, sys.executable, __file__, json.dumps(vars(setup))]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()

    def rests(self) -> int:
        """How often its threads have gone to sleep so far."""
        told = [
            path.read_text() for path in Path(f"/proc/{self._process.pid}/task").glob("*/status")
        ]
        return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in told)

    def finish(self) -> dict[str, Any]:
        """Asks it to stop, and returns what it found; where it failed {"error", "finding"}."""
        if self.first_line != "ready":
            self._process.communicate(timeout=LIMIT_S)
            found: dict[str, Any] = json.loads(self.first_line)
            return found
        out, _ = self._process.communicate("stop\n", timeout=LIMIT_S)
        assert self._process.returncode == 0, out
        found = json.loads(out)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def capture(setup: Setup) -> dict[str, Any]:
    """Runs `setup` to the end of its source."""
    running = Running(setup)
    if running.first_line == "ready":
        running._process.wait(LIMIT_S)
        assert running._process.stdout is not None
        text = running._process.stdout.read()
        running._process.communicate()
        found: dict[str, Any] = json.loads(text)
        return found
    return running.finish()


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    """Whether `condition` became true in time; for processes and kernels, not for our own code."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _main(setup: Setup) -> None:
    import msgspec

    from flowcheck.errors import FlowCheckError
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

    before = sorted(os.sched_getaffinity(0))
    failures: list[str] = []

    def plain(error: FlowCheckError) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(error.finding)
        return told

    try:
        device = dpdk_eal.parse_device(setup.device)
        engines = [dpdk_eal.parse_device(name) for name in setup.engines]
        rings = [FrameRing.open(Path(path)) for path in setup.rings]
        tables = [CaptureTimestamps(path) for path in device.files] if setup.table else []
        mbufs = mbufs_needed(len(rings), len(engines))
        environment = dpdk_eal.eal_arguments([device, *engines], mbufs, setup.extra)
        dpdk_eal.start_eal(environment)
        port = DpdkPort(device, queues=len(rings), mbufs=mbufs, frame_bytes=setup.mbuf_frame_bytes)
        opened = [
            CopyEngine(own, ring, order=setup.order, by_iova=setup.by_iova) if own else None
            for ring, own in ((r, engines[q :: len(rings)]) for q, r in enumerate(rings))
        ]
        captures = [
            ReceiveLoop(
                port, queue, ring, idle_us=setup.idle_us, idle_max_us=setup.idle_max_us,
                speed=setup.speed, frames_max=setup.frames_max, engine=opened[queue],
                table=tables[queue] if queue < len(tables) else None,
            )
            for queue, ring in enumerate(rings)
        ]  # fmt: skip
        missed = KernelDrops(device.interface, rings) if device.interface else None
    except FlowCheckError as error:
        print(json.dumps({"error": str(error), "finding": plain(error)}), flush=True)
        return

    def receive(one: ReceiveLoop) -> None:
        try:
            one.run()
        except FlowCheckError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=receive, args=(one,)) for one in captures]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    threading.Thread(target=_stop_on_line, args=(captures,), daemon=True).start()
    if setup.feed:
        _feed(port.handle.id, setup.feed)
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.2)
        if missed is not None:  # as the stage does
            captures[0].note_missed(missed.frames())
    seconds = time.perf_counter() - began_s
    if missed is not None:
        captures[0].note_missed(missed.frames(), settle=True)
    found = {
        "driver": port.driver, "promiscuous": port.promiscuous, "failures": failures,
        "overtaken": [one.overtaken for one in opened if one], "seconds": seconds,
        "affinity_kept": before == sorted(os.sched_getaffinity(0)),
        "huge_pages": environment.huge_pages,
    }  # fmt: skip
    for part in (*captures, *(one for one in opened if one), port, *rings):
        part.close()
    print(json.dumps(found), flush=True)


def _feed(port: int, feed: dict[str, Any]) -> None:
    import ctypes

    from scapy.utils import RawPcapReader

    with RawPcapReader(feed["file"]) as reader:
        frames = [frame for frame, _ in reader]
    lengths = (ctypes.c_uint32 * len(frames))(*map(len, frames))
    call = ctypes.CDLL(feed["library"]).feed
    code = call(port, b"fc_port_0", b"".join(frames), lengths, len(frames), feed["limit"])
    assert code == 0, code


def _stop_on_line(captures: Sequence[Any]) -> None:
    if sys.stdin.readline():
        for one in captures:
            one.stop()


if __name__ == "__main__":
    _main(Setup(**json.loads(sys.argv[1])))
