"""Status of a cluster: its parts as the kernel reports them, and counters of the monitor port."""

from __future__ import annotations

from typing import Any

import msgspec
from pyroute2 import IPRoute

from flowcheck.findings.catalog.lab_runs import (
    CLUSTER_UNFINISHED,
    MIRROR_GONE,
    NAMESPACE_GONE,
    PORT_DOWN,
    PORT_GONE,
    PROCESS_ENDED,
)
from flowcheck.findings.finding import Finding
from flowcheck.lab.cluster import (
    cluster_state_file,
    linux_bridge,
    namespace_processes,
    network_namespaces,
)
from flowcheck.lab.cluster.cluster_spec import MONITOR, UPLINK, Cluster, port_name
from flowcheck.lab.cluster.ring_mirror_coverage import cluster_coverage
from flowcheck.lab.cluster.veth_links import index_of


def status(name: str) -> dict[str, Any] | None:
    """Status of cluster `name` for JSON; None: there is no such cluster.

    "state" is "up" or "broken"; broken parts are listed in "faults" (findings) and "missing"
    (sentences). Counters of the monitor port are frames and bytes since its creation; "dropped"
    counts those that did not reach the other end of the link. Frames that the switch drops before
    it mirrors them are not counted.
    """
    found = cluster_state_file.load(name)
    if found is None:
        return None
    cluster = found.cluster
    faults = [] if found.whole else [CLUSTER_UNFINISHED()]
    there = set(network_namespaces.existing(""))
    faults += [NAMESPACE_GONE(name) for name in cluster.namespaces if name not in there]
    faults += [
        PROCESS_ENDED(what=process.what, pid=process.pid)
        for process in found.processes
        if not namespace_processes.is_running(process)
    ]
    answer = describe(cluster)
    if cluster.switch_namespace in there and cluster.checkpoint_namespace in there:
        with network_namespaces.netlink(cluster.switch_namespace) as route:
            faults += _faults(route, cluster)
            sent = _counters(route, MONITOR)
        with network_namespaces.netlink(cluster.checkpoint_namespace) as route:
            got = _counters(route, UPLINK)
        if sent and got:
            answer["monitor"] = {
                "frames": got["rx_packets"],
                "bytes": got["rx_bytes"],
                "dropped": sent["tx_dropped"] + got["rx_dropped"],
            }
    answer["state"] = "broken" if faults else "up"
    answer["missing"] = [str(one) for one in faults]
    answer["faults"] = msgspec.to_builtins(faults)
    answer["changed"] = found.said
    return answer


def describe(cluster: Cluster) -> dict[str, Any]:
    """Parts of the cluster and coverage of its mirrors, for JSON."""
    found = cluster_coverage(cluster)
    seen = min(found, key=lambda one: (-len(one.missing), min(one.sightings), one.start))
    return {
        "name": cluster.name,
        "switch": cluster.switch,
        "switch_namespace": cluster.switch_namespace,
        "hosts": [
            {
                "namespace": cluster.host_namespace(host),
                "interface": cluster.interfaces[nic],
                "address": cluster.port_address(port),
                "mac": cluster.mac(port),
                "port": port_name(port),
            }
            | ({"management": cluster.management_address(host)} if cluster.management else {})
            for port in range(cluster.ports)
            for host, nic in [divmod(port, cluster.nics)]
        ],
        "gpus_per_host": cluster.gpus,
        "checkpoint": {"namespace": cluster.checkpoint_namespace, "interface": UPLINK},
        "mtu": cluster.mtu,
        "monitor_mtu": cluster.monitor_mtu,
        "mirrors": [str(one) for one in cluster.mirrors],
        "erspan": cluster.erspan,
        "coverage": {
            "ring": list(seen.ring),
            "missing": list(seen.missing),
            "sightings": list(seen.sightings),
            "spare": seen.spare,
            "initial_weights": seen.start,
            "text": "\n  ".join(map(str, found)),
        },
    }


def _faults(route: IPRoute, cluster: Cluster) -> list[Finding]:
    """Ports that are gone or down, and mirrors that are gone."""
    faults: list[Finding] = []
    for port in (*map(port_name, range(cluster.ports)), MONITOR):
        link = _link(route, port)
        if link is None or link.get_attr("IFLA_OPERSTATE") != "UP":
            faults.append(PORT_GONE(port) if link is None else PORT_DOWN(port))
    if cluster.switch == "bridge":
        for one in cluster.mirrors:
            name = port_name(one.port)
            if _link(route, name) is not None and not linux_bridge.has_mirror_filter(
                route, index_of(route, name), one.direction
            ):
                faults.append(MIRROR_GONE(str(one)))
    return faults


def _link(route: IPRoute, name: str) -> Any | None:
    found = route.link_lookup(ifname=name)
    return route.get_links(found[0])[0] if found else None


def _counters(route: IPRoute, name: str) -> dict[str, int] | None:
    link = _link(route, name)
    return None if link is None else link.get_attr("IFLA_STATS64")
