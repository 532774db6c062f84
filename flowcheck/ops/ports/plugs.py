"""Where each NIC is plugged in, and which NIC each GPU's traffic goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.ports.ranges import expanded, numbered
from flowcheck.ops.ports.topology import Topology

BY_NUMBER = (
    "GPUs and NICs belong together by their numbers: state gpus of each [[cable]], or give --graph "
    "with NCCL's topology dump"
)

AGAINST = (
    "gpus: GPU {} goes by NIC {}, as the file states, though in NCCL's topology dump NIC {} is "
    "the nearest: see that the file is right, or leave its gpus out"
)


class Plug(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A port of a switch, and the node behind it."""

    switch: str
    port: str
    node: int
    nic: int
    gbps: float
    host: str = ""
    """Address of the node there; empty where none is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugs:
    """All of a job's."""

    of: Mapping[tuple[int, int], tuple[Plug, ...]]
    """[node, NIC] several where it has several cables, which share its traffic by a hash."""
    nics: Mapping[tuple[int, int], int]
    """[node, GPU]"""
    assumed: tuple[str, ...] = ()


def plugs_of(topology: Topology, near: Mapping[int, int] | None = None) -> Plugs:
    """near: NIC of each GPU by NCCL's topology dump, where there is one. Raises ConfigError."""
    found: dict[tuple[int, int], list[Plug]] = {}
    stated: dict[tuple[int, int], int] = {}
    taken: dict[tuple[str, str], str] = {}
    for number, cable in enumerate(topology.cable):
        key = f"cable[{number}]"
        nodes = numbered(f"{key}.nodes", cable.nodes, topology.nodes)
        ports = expanded(f"{key}.ports", cable.ports, topology.nodes)
        hosts = expanded(f"{key}.hosts", cable.hosts, topology.nodes) or ("",) * len(ports)
        for node, port, host in zip(nodes, ports, hosts, strict=True):
            what = f"NIC {cable.nic} of node {node}"
            before = taken.setdefault((cable.switch, port), what)
            if before != what or any(
                p.port == port and p.switch == cable.switch
                for p in found.get((node, cable.nic), ())
            ):
                why = f"on {cable.switch} it is that of {before} already"
                raise ConfigError(f"{key}.ports", port, why)
            plug = Plug(
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
                    why = f"GPU {gpu} of node {node} is that of NIC {stated[node, gpu]} already"
                    raise ConfigError(f"{key}.gpus", gpu, why)
    for number, monitor in enumerate(topology.monitor):
        if there := taken.get((monitor.switch, monitor.port or "")):
            raise ConfigError(f"monitor[{number}].port", monitor.port, f"is plugged into {there}")
    nics, assumed = _by_gpu(topology, found, stated, near)
    return Plugs(of={at: tuple(each) for at, each in found.items()}, nics=nics, assumed=assumed)


def _by_gpu(
    topology: Topology,
    found: Mapping[tuple[int, int], list[Plug]],
    stated: Mapping[tuple[int, int], int],
    near: Mapping[int, int] | None,
) -> tuple[dict[tuple[int, int], int], tuple[str, ...]]:
    nics: dict[tuple[int, int], int] = {}
    assumed: dict[str, None] = {}
    for gpu in sorted({gpu for _, gpu in stated} if near else ()):
        other = (near or {}).get(gpu)
        told = sorted({nic for (_, own), nic in stated.items() if own == gpu} - {other})
        if told and other is not None:
            assumed[AGAINST.format(gpu, told[0], other)] = None
    for node in range(topology.nodes):
        own = sorted(nic for at, nic in found if at == node)
        if not own:
            why = f"node {node} has none: its rings could not leave it"
            raise ConfigError("cable", f"node {node}", why)
        for gpu in range(topology.gpus):
            nic = stated.get((node, gpu))
            if nic is None and near is not None:
                nic = near.get(gpu)
            if nic is None:
                nic = own[gpu * len(own) // topology.gpus]
                assumed |= {BY_NUMBER: None} if len(own) > 1 else {}
            if nic not in own:
                why = f"GPU {gpu} uses NIC {nic}, which has no cable on node {node}"
                raise ConfigError("cable.nic", nic, why)
            nics[node, gpu] = nic
    return nics, tuple(assumed)
