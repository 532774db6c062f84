"""The capture stage on its own: real rings in a run directory, a recorder in place of sockets."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapReader, RawPcapWriter
from support.eal import REPOSITORY, wait_until, why_not
from support.refused_as import refused_as
from support.rings import counted, frames_in, release
from support.veth import veth

from flowcheck.config import JobConfig, job_from
from flowcheck.errors import CaptureError
from flowcheck.findings.catalog.capture_file_problems import IS_TORN
from flowcheck.messages import FramesReady, SourceEnded
from flowcheck.ops.node.machine_checks import check_real_time
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.packet_capture.capture_file import FileCapture
from flowcheck.stages.packet_capture.capture_stage import capture_service
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Service

SLOTS = 2048
DPDK = pytest.mark.skipif(bool(why_not()), reason=why_not() or "DPDK is there")

STAGE = """
import json, sys
from flowcheck.config import job_from
from flowcheck.errors import FlowCheckError
from flowcheck.stages.packet_capture.capture_stage import capture_service
from flowcheck.stages.run_directory.run_dir import RunDir
from pathlib import Path

class Recorder:
    def send(self, to, message): print(json.dumps([to, repr(message)]), flush=True)
    def report(self, message): self.send("events", message)

service = capture_service(RunDir(Path(sys.argv[1])), job_from(json.loads(sys.argv[2])), 0)
try:
    service.start(Recorder())
    Recorder().send("test", "started")
    drain = False
    while True:
        done = service.work()
        if drain and not done and service.drained():
            break
        if service._source.live and not drain:
            drain = sys.stdin.readline() == "drain\\n"
        else:
            drain = True
except FlowCheckError as error:
    Recorder().send("error", str(error))
finally:
    service.stop()
"""


class Recorder:
    """Links without sockets."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []

    def send(self, to: str, message: object) -> None:
        self.messages.append((to, message))

    def report(self, message: object) -> None:
        self.send("events", message)


def job(**source: object) -> JobConfig:
    return job_from(tree(**source))


def tree(**source: object) -> dict[str, Any]:
    return {"source": [source], "optimizer": {"name": "sgd", "learning_rate": 0.1}}


@pytest.fixture
def run(tmp_path: Path, shm: Path) -> RunDir:
    return RunDir.create(tmp_path / "run", shm / "memory")


def truth_of(path: Path) -> list[bytes]:
    with RawPcapReader(str(path)) as reader:
        return [frame for frame, _ in reader]


def turns(service: Service, limit: int = 10_000) -> None:
    for _ in range(limit):
        if not service.work() and service.drained():
            return
    raise AssertionError("the stage did not come to its end")


def test_a_file_is_read_without_dpdk_and_its_end_is_told_once(captures: Path, run: RunDir) -> None:
    path = captures / "iter_40000_p2p_iter10.pcapng"
    expected = truth_of(path)
    with FrameRing.create(run.ring(0), slots=SLOTS) as ring:
        links, service = Recorder(), capture_service(run, job(file=str(path)), 0)
        assert isinstance(service, FileCapture)
        service.start(links)  # type: ignore[arg-type]
        turns(service)
        service.work()
        service.stop()
        assert frames_in(ring) == expected
        assert ring.source_end == len(expected)
    ends = [message for to, message in links.messages if to == "events"]
    assert ends == [SourceEnded(ring=0, frames=len(expected))]
    assert ("parse-0", FramesReady(ring=0, head=len(expected))) in links.messages


def test_a_file_waits_for_room_and_goes_on_after_a_restart(captures: Path, run: RunDir) -> None:
    path = captures / "iter_40000_p2p_iter10.pcapng"
    expected = truth_of(path)
    arrived: list[bytes] = []
    with FrameRing.create(run.ring(0), slots=256) as ring:
        while ring.source_end is None:
            links, service = Recorder(), capture_service(run, job(file=str(path)), 0)
            service.start(links)  # type: ignore[arg-type]
            while service.work():
                pass
            assert ring.head - ring.tail <= 256
            service.stop()
            arrived += frames_in(ring)
            release(ring, ring.head)
    assert arrived == expected


def test_a_file_keeps_the_pace_it_was_recorded_at(tmp_path: Path, run: RunDir) -> None:
    path = tmp_path / "x.pcap"
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for index in range(100):
            writer.write_packet(bytes(60), sec=50, usec=index * 4000)
    with FrameRing.create(run.ring(0), slots=SLOTS) as ring:
        service = capture_service(run, job(file=str(path), speed=2.0), 0)
        service.start(Recorder())  # type: ignore[arg-type]
        began_s = time.perf_counter()
        while not service.drained():
            service.work()
            time.sleep(0.001)
        assert ring.head == 100
        assert time.perf_counter() - began_s >= 99 * 0.002
        service.stop()


def test_a_torn_file_ends_in_a_sentence_and_leaves_nothing_open(
    captures: Path, tmp_path: Path, run: RunDir
) -> None:
    torn = tmp_path / "torn.pcapng"
    torn.write_bytes((captures / "allreduce_addstep.pcapng").read_bytes()[:100_001])
    with FrameRing.create(run.ring(0), slots=SLOTS):
        service = capture_service(run, job(file=str(torn)), 0)
        service.start(Recorder())  # type: ignore[arg-type]
        with refused_as(IS_TORN, kind=CaptureError):
            while True:
                service.work()
        service.stop()


def stage(run: RunDir, source: dict[str, Any], namespace: str = "") -> subprocess.Popen[str]:
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    command = [*inside, sys.executable, "-c", STAGE, str(run.root), json.dumps(tree(**source))]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def policies(pid: int) -> list[int]:
    """How each thread of a process is scheduled."""
    tasks = [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    return [os.sched_getscheduler(task) for task in tasks]


def heard(text: str) -> list[tuple[str, str]]:
    return [(to, message) for to, message in map(json.loads, text.splitlines())]


@pytest.mark.lab
@DPDK
def test_a_file_through_dpdk_fills_the_ring_and_tells_its_end(captures: Path, run: RunDir) -> None:
    path = captures / "iter_40000_p2p_iter10.pcapng"
    expected = truth_of(path)
    source = {"vdev": f"net_pcap0,rx_pcap={path}", "engines": ["dma_skeleton0"]}
    with FrameRing.create(run.ring(0), slots=SLOTS) as ring:
        out, _ = stage(run, source).communicate(timeout=90)
        assert frames_in(ring) == expected
        assert ring.source_end == len(expected)
        again, _ = stage(run, source).communicate(timeout=90)
        assert ring.head == len(expected), "a restart after the end captured again"
    told = repr(SourceEnded(ring=0, frames=len(expected)))
    for text in (out, again):
        assert [message for to, message in heard(text) if "SourceEnded" in message] == [told]


@pytest.mark.lab
@DPDK
def test_a_missing_port_is_a_sentence(run: RunDir) -> None:
    with FrameRing.create(run.ring(0), slots=SLOTS, live_source=True):
        out, _ = stage(run, {"interface": "nosuch0"}).communicate(timeout=90)
    errors = [message for to, message in heard(out) if to == "error"]
    assert len(errors) == 1 and "nosuch0" in errors[0]


@pytest.mark.lab
@DPDK
def test_a_live_interface_is_drained_when_asked_and_what_it_missed_is_counted(
    tmp_path: Path, run: RunDir
) -> None:
    draw = random.Random(5)
    frames = [bytes(12) + b"\x88\xb5" + draw.randbytes(1088) for _ in range(500)]
    path = tmp_path / "x.pcap"
    with RawPcapWriter(str(path), linktype=1, sync=True) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame)
    with FrameRing.create(run.ring(0), slots=SLOTS, live_source=True) as ring, veth() as cable:
        process = stage(run, {"interface": cable.tap}, cable.namespace)
        assert process.stdout is not None
        while "started" not in (line := process.stdout.readline()):
            assert line, "the stage ended before it started"
        cable.send(path)
        assert wait_until(lambda: ring.head == len(frames))
        first = policies(process.pid).count(os.SCHED_RR)
        assert first == (check_real_time(Path("/")).level == "ok"), (
            "of the receiving thread, and no other"
        )
        out, _ = process.communicate("drain\n", timeout=90)
        assert frames_in(ring) == frames
        assert ring.source_end == len(frames)
        assert counted(ring) == {
            "rx_frames": 500, "rx_bytes": sum(map(len, frames)), "pushed_frames": 500,
        }  # fmt: skip
    assert repr(SourceEnded(ring=0, frames=500)) in [message for _, message in heard(out)]
