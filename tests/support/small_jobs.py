"""Jobs small enough that every subset of their ports can be tried."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from flowcheck.errors import ConfigError
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import rings_of
from flowcheck.ops.mirror_ports.cluster_layout.data_parallel_groups import groups_of
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import layout_from_toml
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import nic_cabling
from flowcheck.ops.mirror_ports.search.branch_and_bound import MOST_STEPS
from flowcheck.ops.mirror_ports.search.chunk_coverage import coverage_problem
from flowcheck.ops.mirror_ports.search.monitor_port_limits import monitors_of
from flowcheck.ops.mirror_ports.search.port_choice import PortChoice, choose_ports
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_debug_log import RingOrder


@dataclass(frozen=True)
class Small:
    """A job small enough to try everything on."""

    nodes: int
    gpus: int
    tp: int
    nics: int
    switch_of: tuple[int, ...]
    """[node]"""
    monitors: tuple[tuple[int, int, str], ...]
    """(switch, Gb/s, machine)"""
    orders: tuple[tuple[int, ...], ...]
    """[channel] nodes in ring order"""
    redundancy: int

    @property
    def per_node(self) -> int:
        """Ranks of a node in one group."""
        return self.gpus // self.tp

    def rings(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """(group, channel, ranks of the communicator in ring order, from 0 on)."""
        found = []
        for group in range(self.tp):
            for channel, nodes in enumerate(self.orders):
                each = [n * self.per_node + i for n in nodes for i in range(self.per_node)]
                at = each.index(0)
                found.append((f"tp{group}", channel, tuple(each[at:] + each[:at])))
        return found


@st.composite
def small_jobs(draw: st.DrawFn) -> Small:
    nodes = draw(st.integers(2, 4))
    gpus, tp, nics = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)]))
    if nics == 2:
        nodes = min(nodes, 3)
    channels = draw(st.integers(1, 2))
    switches = draw(st.integers(1, 2))
    spot = st.tuples(
        st.integers(0, switches - 1), st.sampled_from([50, 100, 200, 400]), st.sampled_from("ab")
    )
    return Small(
        nodes=nodes,
        gpus=gpus,
        tp=tp,
        nics=nics,
        switch_of=tuple(draw(st.integers(0, switches - 1)) for _ in range(nodes)),
        monitors=tuple(draw(st.lists(spot, min_size=1, max_size=3))),
        orders=tuple(tuple(draw(st.permutations(range(nodes)))) for _ in range(channels)),
        redundancy=draw(st.integers(1, 2)),
    )


def chosen(job: Small, most_steps: int = MOST_STEPS) -> PortChoice | None:
    """By the product; None: it says that there is none."""
    used = sorted(set(job.switch_of))
    if any(switch not in used for switch, _, _ in job.monitors):
        return None
    cables = [
        {
            "nic": nic,
            "gpus": [nic] if job.nics > 1 else list(range(job.gpus)),
            "nodes": str(node),
            "switch": f"leaf{job.switch_of[node]}",
            "ports": f"p{node}n{nic}",
            "gbps": 100,
        }
        for node in range(job.nodes)
        for nic in range(job.nics)
    ]
    monitors = [
        {"switch": f"leaf{switch}", "port": f"m{n}", "gbps": gbps, "machine": machine}
        for n, (switch, gbps, machine) in enumerate(job.monitors)
    ]
    topology = layout_from_toml(
        {"nodes": job.nodes, "gpus": job.gpus, "tp": job.tp, "cable": cables, "monitor": monitors}
    )
    plugs = nic_cabling(topology)
    own = [ranks for group, _, ranks in job.rings() if group == "tp0"]
    log = [RingOrder(ranks=job.nodes * job.per_node, channels=tuple(own))]
    rings = rings_of(groups_of(topology), plugs, channels=None, logs=[log]).rings
    try:
        return choose_ports(
            coverage_problem(rings, plugs, (Algorithm.RING,)),
            monitors_of(topology, plugs, None),
            job.redundancy,
            most_steps,
        )
    except ConfigError:
        return None
