"""The complete result of `flowcheck ports`: rings, chosen ports, load, commands and
assumptions."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError, LearnError
from flowcheck.findings.catalog.mirrored_ports import (
    ANY_ORDER,
    ORDER_INDIFFERENT,
    OTHER_TRAFFIC,
    SEVERAL_CABLES,
    SHARDED_TRAINING,
)
from flowcheck.findings.catalog.refused_layouts import LOG_TOO_LARGE, UNREADABLE
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import (
    ORDER_ASSUMPTIONS,
    ChannelRing,
    rings_of,
)
from flowcheck.ops.mirror_ports.cluster_layout.data_parallel_groups import groups_of
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import (
    ClusterLayout,
    Sharding,
    load_layout,
)
from flowcheck.ops.mirror_ports.cluster_layout.nccl_xml_dumps import NcclDump, read_dump
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import nic_cabling
from flowcheck.ops.mirror_ports.search.chunk_coverage import (
    CoverageProblem,
    MirroredDirection,
    coverage_problem,
    goal_name,
)
from flowcheck.ops.mirror_ports.search.monitor_port_limits import MonitorPorts, monitors_of
from flowcheck.ops.mirror_ports.search.port_choice import PortChoice, choose_ports
from flowcheck.ops.mirror_ports.switch_command_lines import SwitchCommandLine, command_lines
from flowcheck.ops.mirror_ports.traffic_and_memory_estimate import LoadEstimate, estimate_load
from flowcheck.untrusted_text import decode_text
from flowcheck.wire.algorithms.algorithm_registry import spec_of
from flowcheck.wire.collectives.nccl_debug_log import RingOrder, parse_nccl_log

MOST_LOG_BYTES = 64 << 20
"""Largest NCCL log, bytes. A choice: NCCL logs its rings at the start; a longer log costs memory
and time."""


class PortsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `flowcheck ports`."""

    file: Path
    redundancy: int = 1
    logs: tuple[Path, ...] = ()
    graphs: tuple[Path, ...] = ()
    os: str | None = None


class MirrorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `flowcheck ports`: rings, chosen ports, load, commands, assumptions."""

    topology: ClusterLayout
    rings: tuple[ChannelRing, ...]
    coverage_problem: CoverageProblem
    monitors: MonitorPorts
    choice: PortChoice
    need: LoadEstimate
    commands: tuple[SwitchCommandLine, ...]
    redundancy: int
    notes: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    order_assumed: bool

    def rings_on(self, pair: MirroredDirection) -> list[str]:
        """Names of the rings whose traffic a mirrored port direction carries."""
        own = [tap for tap in self.coverage_problem.taps if pair in tap.pairs]
        return list(dict.fromkeys(name for tap in own for name in tap.shows))

    def pairs_of(self, name: str) -> list[MirroredDirection]:
        """Mirrored port directions that carry traffic of the coverage goal `name`."""
        return [pair for pair, _ in self.choice.placed if name in self.rings_on(pair)]

    def pairs_on(self, ring: ChannelRing) -> list[MirroredDirection]:
        """Mirrored port directions that carry traffic of a ring's channel, by any algorithm of the
        job."""
        names = (goal_name(ring, algorithm) for algorithm in self.topology.algorithms)
        return list(dict.fromkeys(pair for name in names for pair in self.pairs_of(name)))


def make_mirror_plan(asked: PortsRequest) -> MirrorPlan:
    """Reads the layout and chooses the ports. Raises ConfigError where the layout is invalid or
    contradictory, or where no choice of ports shows every ring."""
    topology = load_layout(asked.file)
    dumps = [read_dump(path) for path in asked.graphs]
    plugs = nic_cabling(topology, _near(dumps))
    found = rings_of(
        groups_of(topology),
        plugs,
        channels=topology.channels,
        logs=[_orders(path) for path in asked.logs],
        ways=[dump.ways for dump in dumps if dump.ways is not None],
    )
    sought = coverage_problem(found.rings, plugs, topology.algorithms)
    monitors = monitors_of(topology, plugs, asked.os)
    choice = choose_ports(sought, monitors, asked.redundancy)
    notes: list[Finding] = []
    if topology.sharding is not Sharding.NONE:
        notes.append(SHARDED_TRAINING(topology.sharding))
    notes += [note for name in topology.algorithms if (note := spec_of(name).mirror_note)]
    if topology.traffic is not None:
        notes.append(OTHER_TRAFFIC(topology.traffic.other_gbps))
    if any(len(each) > 1 for each in plugs.ports.values()):
        notes.append(SEVERAL_CABLES())
    chosen = MirrorPlan(
        topology=topology,
        rings=found.rings,
        coverage_problem=sought,
        monitors=monitors,
        choice=choice,
        need=estimate_load(topology, found.rings, plugs, monitors, choice),
        commands=command_lines(choice, monitors),
        redundancy=asked.redundancy,
        notes=tuple(notes),
        assumed=found.assumed,
        order_assumed=any(told.is_any_of(*ORDER_ASSUMPTIONS) for told in found.assumed),
    )
    if covers_any_node_order(chosen):
        assumed = tuple(
            ORDER_INDIFFERENT(one) if one.is_any_of(*ORDER_ASSUMPTIONS) else one
            for one in chosen.assumed
        )
        notes = [*chosen.notes, ANY_ORDER()]
        return msgspec.structs.replace(chosen, notes=tuple(notes), assumed=assumed)
    return chosen


def covers_any_node_order(chosen: MirrorPlan) -> bool:
    """Whether the chosen ports show every chunk for any order of the nodes in the rings. They do
    if all of them mirror one direction, or belong to one NIC of one node without redundancy."""
    for ring in chosen.rings:
        pairs = chosen.pairs_on(ring)
        nodes = {(pair.node, pair.nic) for pair in pairs}
        ways = {pair.direction for pair in pairs}
        if len(ways) > 1 and (len(nodes) > 1 or chosen.redundancy > 1):
            return False
    return True


def _near(dumps: list[NcclDump]) -> dict[int, int] | None:
    return next((dump.near for dump in dumps if dump.near is not None), None)


def _orders(path: Path) -> tuple[RingOrder, ...]:
    try:
        if path.stat().st_size > MOST_LOG_BYTES:
            raise ConfigError("--nccl-log", str(path), LOG_TOO_LARGE(MOST_LOG_BYTES))
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError("--nccl-log", str(path), UNREADABLE(error.strerror)) from error
    try:
        text = decode_text("--nccl-log", path, content, ending=".log", lenient=True)
        return parse_nccl_log(text).orders
    except LearnError as error:
        raise ConfigError("--nccl-log", str(path), error.finding) from error
