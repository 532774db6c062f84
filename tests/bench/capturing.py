"""Capture copy: frames out of buffers into slots, by the CPU and by copy engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.measure import (
    FRAME_BYTES,
    Copies,
    Figure,
    Scale,
    Work,
    address,
    frames_of,
    memory,
    rewind,
    together,
)
from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.frame_ring import FrameRing

DPDK_SLOTS = 1 << 15
TARGET_CPU, TARGET_ENGINE = 0.85, 3.0


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    copies = Copies()
    for pmtu_bytes in FRAME_BYTES:
        yield from _cpu(scale, copies, pmtu_bytes)
    for frame_bytes in FRAME_BYTES.values():
        yield from _dpdk(scale, frame_bytes)


def _cpu(scale: Scale, copies: Copies, pmtu_bytes: int) -> Iterator[Figure]:
    size, items = FRAME_BYTES[pmtu_bytes], scale.frames(pmtu_bytes)
    stride = (size + 127) // 128 * 128
    source = np.ones(items * stride, np.uint8)
    with memory(items * 4352) as folder, FrameRing.create(folder / "ring", slots=items) as ring:
        to, come_from = frames_of(ring), (address(source), stride, 0)
        total = size * items / 1e9
        commit = ring.capture_commit()
        functions = [address(ffi.addressof(lib, f"fc_ring_{n}")) for n in ("put", "publish")]
        arguments = [*functions, address(ring.handle), address(commit), address(source)]
        sizes = np.full(items, size, np.uint32)

        def put() -> None:
            *pointers, at = [copies.pointer(a) for a in (*arguments, address(sizes))]
            assert copies.library.bench_put(*pointers, stride, at, items) == items

        works = {
            name: Work(lambda n=name: copies.copy(n, to, come_from, size, items))
            for name in ("memcpy", "stream")
        }
        works["put"] = Work(put, lambda: rewind(ring, "head"))
        spent = together(scale.repeats, works)
    rate = {name: total / value for name, value in spent.items()}
    stage = f"capture copy, {size} B"
    yield Figure(stage, "memcpy per frame", rate["memcpy"], "GB/s")
    yield Figure(
        stage,
        f"non-temporal per frame ({ffi.string(lib.fc_copy_name()).decode()})",
        rate["stream"],
        "GB/s",
        rate["stream"] / rate["memcpy"],
        "memcpy",
    )
    yield Figure(
        stage,
        "CPU, slots filled and published",
        rate["put"],
        "GB/s",
        rate["put"] / rate["stream"],
        "non-temporal",
        TARGET_CPU,
        f"{items / spent['put'] / 1e6:.2f} M frames/s",
        spent["put"] / items * 1e9,
    )


def _dpdk(scale: Scale, frame_bytes: int) -> Iterator[Figure]:
    """The receive loop over net_null: in a process of its own, since the EAL starts once."""
    results = {}
    for engines in (0, 1):
        command = [sys.executable, "-m", "bench.capturing", str(frame_bytes), str(engines)]
        done = subprocess.run(
            [*command, str(scale.repeats)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            check=False,
        )
        if done.returncode != 0:
            yield Figure(
                f"receive loop, {frame_bytes} B",
                "net_null",
                0,
                "absent",
                note=(done.stderr.strip().splitlines() or ["?"])[-1][:100],
            )
            return
        results[engines] = json.loads(done.stdout.splitlines()[-1])
    cpu, engine = (results[n]["cpu_ns_per_frame"] for n in (0, 1))
    stage = f"receive loop, {frame_bytes} B"
    yield Figure(
        stage,
        "net_null, CPU copy",
        1e3 / cpu,
        "M frames/s",
        note=f"{frame_bytes / cpu:.1f} GB/s",
    )
    yield Figure(
        stage,
        "net_null, dma_skeleton",
        1e3 / results[1]["ns_per_frame"],
        "M frames/s",
        cpu / engine,
        "CPU copy, capture core's time",
        TARGET_ENGINE,
        "shows the path: the skeleton copies on a CPU",
    )


def receive(frame_bytes: int, engines: int, repeats: int) -> dict[str, float]:
    """Fills a ring `repeats` times from net_null. ns per frame: wall, and of this thread."""
    from flowcheck.plane.frame_sources.dpdk_eal import eal_arguments, parse_device, start_eal
    from flowcheck.plane.frame_sources.dpdk_receive_loop import (
        CopyEngine,
        DpdkPort,
        ReceiveLoop,
        mbufs_needed,
    )

    null = parse_device(f"net_null0,size={frame_bytes},copy=1")
    engine_device = parse_device("dma_skeleton0")
    mbufs = mbufs_needed(1, engines)
    start_eal(eal_arguments([null, *[engine_device] * engines], mbufs))
    port = DpdkPort(null, mbufs=mbufs, frame_bytes=4288)
    wall, cpu = [], []
    with (
        memory(DPDK_SLOTS * 4352) as folder,
        FrameRing.create(folder / "ring", slots=DPDK_SLOTS, live_source=True) as ring,
    ):
        engine = CopyEngine([engine_device], ring) if engines else None
        for _ in range(4 * repeats):
            rewind(ring, "head", "tail")
            capture = ReceiveLoop(port, 0, ring, idle_us=0, frames_max=DPDK_SLOTS, engine=engine)
            before = time.perf_counter_ns(), time.thread_time_ns()
            capture.run()
            wall.append(time.perf_counter_ns() - before[0])
            cpu.append(time.thread_time_ns() - before[1])
            assert ring.head == DPDK_SLOTS, ring.counters()["capture"]
            capture.close()
        if engine:
            engine.close()
    port.close()
    middle = len(wall) // 2
    return {
        "ns_per_frame": sorted(wall)[middle] / DPDK_SLOTS,
        "cpu_ns_per_frame": sorted(cpu)[middle] / DPDK_SLOTS,
    }


if __name__ == "__main__":
    print(json.dumps(receive(*map(int, sys.argv[1:4]))))
