"""Start of a small chain: `flowcheck up` until every stage is ready, as a service manager hears it,
beside what loading torch alone takes in one process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure import Figure, Scale, memory, wall_seconds
from flowcheck.lab.synthetic_traffic import synthetic_job

JOB = """
run = "{0}/run"
[[source]]
file = "{0}/job.pcap"
[ring]
slots = 64
[staging]
size_bytes = 4_194_304
[optimizer]
name = "sgd"
learning_rate = 0.01
"""
READY_LIMIT_S = 120.0


def figures(scale: Scale, before: Sequence[Figure]) -> Iterator[Figure]:
    stage = "start"
    load = [sys.executable, "-c", "import torch"]
    alone_s = wall_seconds(lambda: subprocess.run(load, check=True), scale.repeats)
    with memory(0) as folder:
        folder.chmod(0o755)  # the chain may run as another user
        traffic = synthetic_job.make_traffic(synthetic_job.SyntheticJob(steps=2))
        synthetic_job.write_pcap(folder / "job.pcap", traffic.frames)
        (folder / "job.toml").write_text(JOB.format(folder))
        taken = sorted(_once(folder) for _ in range(scale.repeats + 1))
    yield Figure(stage, "loading torch, one process", alone_s, "s")
    yield Figure(
        stage,
        "small chain until every stage is ready",
        taken[len(taken) // 2],
        "s",
        alone_s / taken[len(taken) // 2],
        "loading torch",
        note=f"from {taken[0]:.2f} to {taken[-1]:.2f} s; 2 s are the aim",
    )


def _once(folder: Path) -> float:
    """Seconds until the chain says READY=1 (sd_notify(3))."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "notify").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        (folder / "notify").chmod(0o777)
        manager.settimeout(READY_LIMIT_S)
        began_s = time.perf_counter()
        chain = subprocess.Popen(
            [sys.executable, "-m", "flowcheck", "up", str(folder / "job.toml")],
            env=os.environ | {"NOTIFY_SOCKET": str(folder / "notify")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while b"READY=1" not in manager.recv(4096):
                pass
            return time.perf_counter() - began_s
        except TimeoutError as error:
            raise AttributeError("the chain did not come up") from error
        finally:
            chain.send_signal(signal.SIGTERM)
            chain.wait(READY_LIMIT_S)
