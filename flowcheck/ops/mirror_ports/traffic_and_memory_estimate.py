"""Gb/s, frames per second and memory that the chosen ports cause, by NCCL's schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.plan_figures import OF_GROUPS
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import ChannelRing, RingLink
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import (
    ClusterLayout,
    ReplicaFigures,
    TrafficFigures,
)
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import NicCabling
from flowcheck.ops.mirror_ports.search.branch_and_bound import load_by_monitor
from flowcheck.ops.mirror_ports.search.chunk_coverage import MirroredDirection
from flowcheck.ops.mirror_ports.search.monitor_port_limits import MonitorPorts
from flowcheck.ops.mirror_ports.search.port_choice import PortChoice
from flowcheck.ops.planning.ddp_collectives import (
    DdpOptions,
    PlannedCollective,
    ddp_traffic,
)
from flowcheck.ops.planning.memory_estimate import MemoryItem, MemoryPart, estimate_memory
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.ops.planning.wire_traffic import MirroredPort, traffic_of_collective
from flowcheck.ops.planning.wire_traffic import PortTraffic as Carried
from flowcheck.ops.switch.mirror_session import MirrorDirection
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import connection_sends, spec_of
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.collectives.nvls_shape import NvlsShape
from flowcheck.wire.collectives.send_table import Schedule
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import StatedTensor

ANSWER_BYTES = 138 + 62
"""Bytes of the two frames that answer a message in the other direction, over IPv4: a clear-to-send
write of 64 bytes and an acknowledgement (IB specification vol. 1, chapter 9; NCCL
src/transport/net_ib.cc)."""
ANSWER_FRAMES = 2
"""Number of these frames."""
CHANNELS_PER_FOUND = 2
"""Channels per channel that NCCL's search finds: each is used twice (src/graph/connect.cc,
ncclTopoPreset)."""
PART_ELEMENTS, MOST_PARTS = 1 << 22, 1000
"""Elements per tensor, and most tensors, that a model of known size but unknown shapes counts as
for its start-up traffic. A choice: other sizes change only the header bytes of that traffic."""
PIECE_BYTES = 1 << 30
"""Bytes. A larger bucket is computed in pieces of this size, because the length of its schedule
grows with it. A choice: smaller pieces round more."""


class MirrorLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a port direction, a monitor or a machine; means are over a step."""

    line_gbps: float
    """Sum of the line rates of all mirrored port directions, Gb/s."""
    mean_gbps: float | None = None
    """Mean rate in Gb/s; None: the layout has no [traffic]."""
    frames_per_s: float | None = None

    def __add__(self, other: MirrorLoad) -> MirrorLoad:
        def both(a: float | None, b: float | None) -> float | None:
            return None if a is None or b is None else a + b

        return MirrorLoad(
            line_gbps=self.line_gbps + other.line_gbps,
            mean_gbps=both(self.mean_gbps, other.mean_gbps),
            frames_per_s=both(self.frames_per_s, other.frames_per_s),
        )


class LoadEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Load of all chosen ports."""

    pairs: dict[MirroredDirection, MirrorLoad]
    monitors: dict[int, MirrorLoad]
    machines: dict[str, MirrorLoad]
    memory: dict[str, tuple[MemoryItem, ...]]
    """Machine -> lines of its memory estimate; empty: the layout has no [replica]."""


def estimate_load(
    topology: ClusterLayout,
    rings: Sequence[ChannelRing],
    plugs: NicCabling,
    monitors: MonitorPorts,
    choice: PortChoice,
) -> LoadEstimate:
    """Rates at each port direction, monitor and machine, and the memory of each machine, for the
    chosen ports. Raises ConfigError where a job file in [replica] is invalid."""
    pairs = {pair: _flow(topology, rings, plugs, pair) for pair, _ in choice.placed}
    load = load_by_monitor(choice.placed)
    spots: dict[int, MirrorLoad] = {}
    machines: dict[str, MirrorLoad] = {}
    for number, own in sorted(load.items()):
        growth = monitors.monitor_ports[number].growth
        flows = [_grown(pairs[pair], growth) for pair in own]
        spots[number] = sum(flows[1:], flows[0])
        machine = monitors.monitor_ports[number].monitor.machine
        before = machines.get(machine)
        machines[machine] = spots[number] if before is None else before + spots[number]
    memory: dict[str, tuple[MemoryItem, ...]] = {}
    for machine in machines:
        groups = [name for name, home in choice.machine_of_group.items() if home == machine]
        ports = sum(monitors.monitor_ports[number].monitor.machine == machine for number in load)
        if topology.replica is not None and groups:
            memory[machine] = _memory(topology, topology.replica, rings, groups, ports)
    return LoadEstimate(pairs=pairs, monitors=spots, machines=machines, memory=memory)


def _grown(flow: MirrorLoad, growth: float) -> MirrorLoad:
    mean = None if flow.mean_gbps is None else flow.mean_gbps * growth
    return msgspec.structs.replace(flow, line_gbps=flow.line_gbps * growth, mean_gbps=mean)


def _flow(
    topology: ClusterLayout,
    rings: Sequence[ChannelRing],
    plugs: NicCabling,
    pair: MirroredDirection,
) -> MirrorLoad:
    traffic = topology.traffic
    if traffic is None:
        return MirrorLoad(line_gbps=pair.gbps)
    share = len(plugs.ports[pair.node, pair.nic])
    each = [
        _by_heads(topology, traffic, rings, plugs, pair, algorithm)
        if spec_of(algorithm).all_ports_of_a_node
        else _bytes_and_frames(topology, traffic, rings, pair, algorithm)
        for algorithm in topology.algorithms
    ]
    bytes_, frames = max(each)  # of several that take turns: by the one that sends most
    return MirrorLoad(
        line_gbps=pair.gbps,
        mean_gbps=bytes_ / share * 8 / traffic.step_s / 1e9 + traffic.other_gbps,
        frames_per_s=frames / share / traffic.step_s,
    )


def _bytes_and_frames(
    topology: ClusterLayout,
    traffic: TrafficFigures,
    rings: Sequence[ChannelRing],
    pair: MirroredDirection,
    algorithm: Algorithm,
) -> tuple[int, int]:
    """What the cables of a NIC carry in one direction in a step."""
    carried, answered = Carried(), 0
    for ring in rings:
        for link, receiver in _links(ring, algorithm):
            out = (link.out_of, link.nic_out) == (pair.node, pair.nic)
            into = (link.into, link.nic_in) == (pair.node, pair.nic)
            if not out and not into:
                continue
            own = _in_step(topology, traffic, ring, link.sender, receiver, algorithm)
            if out is (pair.direction is MirrorDirection.RX):
                carried = carried + own
            else:
                answered += own.messages
    return (
        carried.frame_bytes + ANSWER_BYTES * answered,
        carried.frames + ANSWER_FRAMES * answered,
    )


def _by_heads(
    topology: ClusterLayout,
    traffic: TrafficFigures,
    rings: Sequence[ChannelRing],
    plugs: NicCabling,
    pair: MirroredDirection,
    algorithm: Algorithm,
) -> tuple[int, int]:
    """The same where each NIC of a node carries a share of its own, to and from all other nodes."""
    carried, answered = Carried(), 0
    for ring in (ring for ring in rings if not ring.channel):
        nodes = [ring.group.node(rank) for rank in range(0, ring.ranks, ring.group.gpus)]
        nics = sorted({plugs.nics[pair.node, gpu] for gpu in ring.group.local(pair.node)})
        if pair.node not in nodes or pair.nic not in nics:
            continue
        shape = NvlsShape(heads=len(nics), channels=ring.channels, nodes=len(nodes))
        head, own = nics.index(pair.nic), nodes.index(pair.node)
        for other in (node for node in range(len(nodes)) if node != own):
            for ends in ((own, other), (other, own)):
                sent = _of_head(topology, traffic, ring, ends, head, shape, algorithm)
                if (ends[0] == own) is (pair.direction is MirrorDirection.RX):
                    carried = carried + sent
                else:
                    answered += sent.messages
    return (
        carried.frame_bytes + ANSWER_BYTES * answered,
        carried.frames + ANSWER_FRAMES * answered,
    )


def _of_head(
    topology: ClusterLayout,
    traffic: TrafficFigures,
    ring: ChannelRing,
    ends: tuple[int, int],
    head: int,
    shape: NvlsShape,
    algorithm: Algorithm,
) -> Carried:
    """What one head sends the same of another node of all buckets of a step, on all channels.
    ends: nodes."""
    wire, total = _wire(topology, ring), Carried()
    for size, count in _pieces_of_step(traffic):
        sent = connection_sends(
            CollectiveKind.ALL_REDUCE,
            size,
            sender=ends[0] * wire.gpus,
            receiver=ends[1] * wire.gpus,
            heads=(head,) * shape.channels,
            nvls=shape,
            algorithm=algorithm,
            element_bytes=traffic.element_bytes,
            ranks=wire.ranks,
            channels=wire.channels,
            protocol=Protocol.SIMPLE,
            era=wire.era,
            gpus=wire.gpus,
        )
        for one in _carried(sent, wire):
            total = total + one.times(count)
    return total


def _pieces_of_step(traffic: TrafficFigures) -> Iterator[tuple[int, int]]:
    """(bytes, how many) of the all-reduces of a step."""
    element = traffic.element_bytes
    whole = -(-traffic.gradient_bytes // element) * element
    bucket = min(traffic.bucket_bytes, PIECE_BYTES) // element * element
    full, rest = divmod(whole, bucket)
    yield from ((size, count) for size, count in ((bucket, full), (rest, 1)) if size and count)


def _links(ring: ChannelRing, algorithm: Algorithm) -> Iterator[tuple[RingLink, int | None]]:
    """Every link of a channel that may carry something, and who reads there (ConnectionEnds): those
    of the ring; where the algorithm has others, those between all nodes."""
    yield from ((link, None) for link in ring.links)
    if not spec_of(algorithm).beside_ring:
        return
    into = {link.into: link.nic_in for link in ring.links}
    for one in ring.links:
        for other in ring.links:
            if other.out_of in (one.out_of, one.into):
                continue
            ends = {"into": other.out_of, "nic_in": into[other.out_of]}
            yield msgspec.structs.replace(one, **ends), other.sender


def _in_step(
    topology: ClusterLayout,
    traffic: TrafficFigures,
    ring: ChannelRing,
    sender: int,
    receiver: int | None,
    algorithm: Algorithm,
) -> Carried:
    """What one link of a channel carries of all buckets of a step."""
    wire = _wire(topology, ring)
    total = Carried()
    for size, count in _pieces_of_step(traffic):
        planned = PlannedCollective(
            kind=CollectiveKind.ALL_REDUCE, work_bytes=size, role=CollectiveRole.BUCKET
        )
        protocol = wire.protocol_of(planned)
        sent = _by_channel(size, traffic.element_bytes, sender, receiver, protocol, wire, algorithm)
        total = total + sent[ring.channel].times(count)
    return total


def _wire(topology: ClusterLayout, ring: ChannelRing) -> MirroredPort:
    return MirroredPort(
        ranks=ring.ranks,
        channels=ring.channels,
        protocol=topology.protocol,
        era=topology.era,
        gpus=ring.group.gpus,
        pmtu_bytes=topology.pmtu,
    )


@lru_cache(maxsize=4096)
def _by_channel(
    size: int,
    element: int,
    sender: int,
    receiver: int | None,
    protocol: Protocol,
    wire: MirroredPort,
    algorithm: Algorithm,
) -> tuple[Carried, ...]:
    """[channel] of one all-reduce."""
    schedule = connection_sends(
        CollectiveKind.ALL_REDUCE,
        size,
        sender=sender,
        receiver=receiver,
        algorithm=algorithm,
        found=max(1, wire.channels // CHANNELS_PER_FOUND),
        element_bytes=element,
        ranks=wire.ranks,
        channels=wire.channels,
        protocol=protocol,
        era=wire.era,
        gpus=wire.gpus,
    )
    return _carried(schedule, wire)


def _carried(schedule: Schedule, wire: MirroredPort) -> tuple[Carried, ...]:
    """[channel] of a schedule."""
    return tuple(
        Carried(
            messages=len(sends),
            bytes=sum(send.wire_bytes for send in sends),
            frames=sum(max(1, -(-send.wire_bytes // wire.pmtu_bytes)) for send in sends),
        )
        for sends in schedule
    )


def _memory(
    topology: ClusterLayout,
    replica: ReplicaFigures,
    rings: Sequence[ChannelRing],
    groups: Sequence[str],
    ports: int,
) -> tuple[MemoryItem, ...]:
    """Of replicas of the groups that end at a machine, and of rings and staging of its ports."""
    if replica.parameters is None:
        from flowcheck.ops.job_setup.checked_job_file import load_checked_job
        from flowcheck.ops.lifecycle.job_file_memory import memory_of_job

        return memory_of_job(load_checked_job(Path(replica.job or ""))).parts
    each = max(PART_ELEMENTS, replica.parameters // MOST_PARTS)
    counts = [each] * (replica.parameters // each) + [replica.parameters % each]
    tensors = tuple(
        StatedTensor(
            name=f"part {number}",
            wire=Parameter(sizes=(count,), strides=(1,), element_bytes=replica.element_bytes),
        )
        for number, count in enumerate(counts)
        if count
    )
    model = MetaModel(name="stated", tensors=tensors, buffers=())
    optimizer = OptimizerConfig(name=replica.optimizer, learning_rate=0.0)
    own = next(ring for ring in rings if ring.group.name in groups)
    around = _wire(topology, own)
    traffic = ddp_traffic(model, DdpOptions())
    before = [*traffic.start_up, *(one for part in traffic.first for one in part), *traffic.each]
    found = estimate_memory(
        model, optimizer, [traffic_of_collective(one, around) for one in before], ports
    )
    shared = (MemoryPart.STAGING, MemoryPart.RINGS)
    return tuple(part if part.part in shared else _times(part, len(groups)) for part in found.parts)


def _times(part: MemoryItem, groups: int) -> MemoryItem:
    if groups < 2:
        return part
    why = OF_GROUPS(why=part.why, groups=groups)
    return msgspec.structs.replace(part, bytes=part.bytes * groups, why=why)
