"""The checkpoint node: the chain's own capture and parse stages on the monitor port, and what they
made of the frames, put together from their marks alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.eal import wait_until

from flowcheck._core import ffi, lib
from flowcheck.config import encode_config, job_from
from flowcheck.lab.cluster import cluster_status
from flowcheck.lab.cluster.cluster_spec import MONITOR, UPLINK, Cluster, port_name
from flowcheck.lab.cluster.linux_bridge import add_mirror_filter, remove_mirrors
from flowcheck.lab.cluster.network_namespaces import in_namespace, netlink
from flowcheck.lab.cluster.veth_links import index_of
from flowcheck.messages import Fault, Hello, Stop
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import VERDICTS, lost_frames
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.stage_process import StageProcess
from flowcheck.stages.zmq_sockets import StageSockets

SLOTS = 1 << 15
LIMIT_S = 30.0
STAGES = ("parse-0", "capture-0")


@dataclass
class Message:
    """One RDMA write off the mirror."""

    flow: int
    first_psn: int
    """Unwrapped (fc_flow.h)."""
    va: int
    rkey: int
    length: int
    immediate: int | None
    whole: bool
    """The parser saw every packet of it."""
    data: bytearray = field(repr=False, default_factory=bytearray)
    placed: int = 0
    """Distinct bytes that its marks placed."""


class Mirror:
    """Both stages as processes of their own, where the supervisor would have started them."""

    def __init__(self, cluster: Cluster, folder: Path, engines: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        source = {"interface": UPLINK, "engines": list(engines)}
        config = job_from(
            {
                "source": [source],
                "ring": {"slots": SLOTS},
                "optimizer": {"name": "sgd", "learning_rate": 0.1},
            }
        )
        self.run = RunDir.create(folder / "run", folder / "memory")
        self.run.config.write_bytes(encode_config(config))
        self.ring = FrameRing.create(self.run.ring(0), slots=SLOTS, live_source=True)
        self.table = FlowTable.create(self.run.flows(0), messages=2 * SLOTS)
        self._links = StageSockets(self.run.sockets, StageSockets.EVENTS)
        self._greeted: set[str] = set()
        self._children = [StageProcess(stage) for stage in STAGES]

    def start(self) -> None:
        """Both stages are up after this."""
        with in_namespace(self.cluster.checkpoint_namespace):
            for child in self._children:
                child.spawn(self.run)
        assert wait_until(self._all_up, LIMIT_S), f"only {self._greeted} came up"

    def _all_up(self) -> bool:
        self._listen()
        return self._greeted == set(STAGES)

    def _listen(self) -> None:
        for message in self._links.inbox.drain(limit=64, wait_ms=0):
            assert not isinstance(message, Fault), str(message.finding)
            if isinstance(message, Hello):
                self._greeted.add(message.stage)

    def caught_up(self) -> None:
        """Waits until every frame the monitor port ever delivered is parsed, or counted as lost."""

        def parsed_all() -> bool:
            self._listen()
            found = cluster_status(self.cluster.name)
            assert found is not None and found["monitor"]["dropped"] == 0, found
            return bool(self.ring.parsed + self.lost == found["monitor"]["frames"])

        assert wait_until(parsed_all, LIMIT_S), (
            self.ring.counters(),
            cluster_status(self.cluster.name),
        )

    @property
    def lost(self) -> int:
        """Frames that the monitor port delivered and no slot holds."""
        return lost_frames(self.ring.counters()["capture"])

    @contextmanager
    def off(self) -> Iterator[None]:
        """A bridge copies nothing while the block runs."""
        remove_mirrors(self.cluster)
        yield
        with netlink(self.cluster.switch_namespace) as route:
            monitor = index_of(route, MONITOR)
            for one in self.cluster.mirrors:
                add_mirror_filter(
                    route, index_of(route, port_name(one.port)), one.direction, monitor
                )

    def forget(self) -> None:
        """Frees all slots, as the extractor would."""
        self.ring.handle.reader.tail = self.ring.parsed

    def counters(self) -> dict[str, int]:
        return self.ring.counters()["parse"]

    def messages(self, after: int) -> list[Message]:
        """The writes beyond pool position `after`, from marks of the slots that are not freed."""
        found: dict[int, Message] = {}
        placed: dict[int, bytearray] = {}
        for record in self.table.messages(after + 1):
            if record.kind == lib.FC_KIND_WRITE:
                immediate = record.immediate if record.flags & lib.FC_MESSAGE_IMMEDIATE else None
                size = int(record.length_bytes)
                found[record.position] = Message(
                    int(record.flow), int(record.first_psn), int(record.va), int(record.rkey),
                    size, immediate, record.packets_seen == record.packets, bytearray(size),
                )  # fmt: skip
                placed[record.position] = bytearray(size)
        for position in range(self.ring.tail, self.ring.parsed):
            mark = lib.fc_ring_at(self.ring.handle, position).mark
            if VERDICTS[mark.verdict] != "write" or mark.message not in found:
                continue
            start, stop = mark.offset_bytes, mark.offset_bytes + mark.payload_bytes
            message = found[mark.message]
            assert stop <= message.length, "a mark beyond its message"
            frame = lib.fc_ring_frame_at(self.ring.handle, position)
            payload = ffi.buffer(frame + mark.payload_at, mark.payload_bytes)[:]
            message.data[start:stop] = payload
            placed[mark.message][start:stop] = bytes([1]) * len(payload)
        for position, message in found.items():
            message.placed = placed[position].count(1)
        return sorted(found.values(), key=lambda one: (one.flow, one.first_psn))

    def late_packets(self) -> int:
        """Packets of writes in the slots that are not freed that came first after a later one."""
        furthest: dict[int, int] = {}
        late = 0
        for position in range(self.ring.tail, self.ring.parsed):
            mark = lib.fc_ring_at(self.ring.handle, position).mark
            if VERDICTS[mark.verdict] == "write":
                late += not mark.again and mark.psn < furthest.get(mark.flow, 0)
                furthest[mark.flow] = max(mark.psn, furthest.get(mark.flow, 0))
        return late

    def stop(self) -> None:
        """Ends the stages as a supervisor does."""
        assert self._links.broadcast is not None
        self._links.broadcast.send(Stop(reason="the tests are over", drain=True))
        try:
            codes = [_code(child) for child in self._children]
            assert not any(codes), f"{STAGES} ended with {codes}"
        finally:
            self._links.close()
            self.table.close()
            self.ring.close()


def _code(child: StageProcess) -> int:
    """Its exit code; killed where it does not end."""
    if child.process is None:
        return 0
    try:
        return child.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        child.process.kill()
        return child.process.wait()
