"""Which switch port each NIC is cabled to, and which NIC each GPU uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirrored_ports import GPU_AGAINST_DUMP, GPUS_BY_NUMBER
from flowcheck.findings.catalog.refused_layouts import (
    GPU_OF_TWO_NICS,
    MONITOR_CABLED,
    NIC_WITHOUT_CABLE,
    NODE_WITHOUT_CABLE,
    PORT_TAKEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import (
    ClusterLayout,
    expand_numbers,
    expand_range,
)


class CabledPort(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A switch port and the node that is cabled to it."""

    switch: str
    port: str
    node: int
    nic: int
    gbps: float
    host: str = ""
    """Address of the node; "": not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCabling:
    """Switch ports and NICs of all nodes of a job."""

    ports: Mapping[tuple[int, int], tuple[CabledPort, ...]]
    """(node, NIC) -> its switch ports; several if the NIC has several cables, over which its
    traffic is hashed."""
    nics: Mapping[tuple[int, int], int]
    """(node, GPU) -> NIC that the GPU uses."""
    assumed: tuple[Finding, ...] = ()


def nic_cabling(topology: ClusterLayout, near: Mapping[int, int] | None = None) -> NicCabling:
    """The cabling of the layout. near: GPU -> nearest NIC, from an NCCL topology dump; None: by
    number. Raises ConfigError for contradictory cables."""
    found: dict[tuple[int, int], list[CabledPort]] = {}
    stated: dict[tuple[int, int], int] = {}
    taken: dict[tuple[str, str], str] = {}
    for number, cable in enumerate(topology.cable):
        key = f"cable[{number}]"
        nodes = expand_numbers(f"{key}.nodes", cable.nodes, topology.nodes)
        ports = expand_range(f"{key}.ports", cable.ports, topology.nodes)
        hosts = expand_range(f"{key}.hosts", cable.hosts, topology.nodes) or ("",) * len(ports)
        for node, port, host in zip(nodes, ports, hosts, strict=True):
            what = f"NIC {cable.nic} of node {node}"
            before = taken.setdefault((cable.switch, port), what)
            if before != what or any(
                p.port == port and p.switch == cable.switch
                for p in found.get((node, cable.nic), ())
            ):
                taken_by = PORT_TAKEN(switch=cable.switch, nic=before)
                raise ConfigError(f"{key}.ports", port, taken_by)
            plug = CabledPort(
                switch=cable.switch,
                port=port,
                node=node,
                nic=cable.nic,
                gbps=cable.gbps,
                host=host,
            )
            found.setdefault((node, cable.nic), []).append(plug)
            for gpu in cable.gpus or ():
                if stated.setdefault((node, gpu), cable.nic) != cable.nic:
                    why = GPU_OF_TWO_NICS(gpu=gpu, node=node, nic=stated[node, gpu])
                    raise ConfigError(f"{key}.gpus", gpu, why)
    for number, monitor in enumerate(topology.monitor):
        if there := taken.get((monitor.switch, monitor.port or "")):
            raise ConfigError(f"monitor[{number}].port", monitor.port, MONITOR_CABLED(there))
    nics, assumed = _by_gpu(topology, found, stated, near)
    return NicCabling(
        ports={at: tuple(each) for at, each in found.items()}, nics=nics, assumed=assumed
    )


def _by_gpu(
    topology: ClusterLayout,
    found: Mapping[tuple[int, int], list[CabledPort]],
    stated: Mapping[tuple[int, int], int],
    near: Mapping[int, int] | None,
) -> tuple[dict[tuple[int, int], int], tuple[Finding, ...]]:
    nics: dict[tuple[int, int], int] = {}
    assumed: dict[Finding, None] = {}
    for gpu in sorted({gpu for _, gpu in stated} if near else ()):
        other = (near or {}).get(gpu)
        told = sorted({nic for (_, own), nic in stated.items() if own == gpu} - {other})
        if told and other is not None:
            assumed[GPU_AGAINST_DUMP(gpu=gpu, stated=told[0], nearest=other)] = None
    for node in range(topology.nodes):
        own = sorted(nic for at, nic in found if at == node)
        if not own:
            raise ConfigError("cable", f"node {node}", NODE_WITHOUT_CABLE())
        for gpu in range(topology.gpus):
            nic = stated.get((node, gpu))
            if nic is None and near is not None:
                nic = near.get(gpu)
            if nic is None:
                nic = own[gpu * len(own) // topology.gpus]
                assumed |= {GPUS_BY_NUMBER(): None} if len(own) > 1 else {}
            if nic not in own:
                why = NIC_WITHOUT_CABLE(gpu=gpu, nic=nic, node=node)
                raise ConfigError("cable.nic", nic, why)
            nics[node, gpu] = nic
    return nics, tuple(assumed)
