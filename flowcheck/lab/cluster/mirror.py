"""Mirrors of a Linux bridge: tc copies every frame at a port to the monitor port."""

from __future__ import annotations

from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink.rtnl import TC_H_CLSACT

from flowcheck.lab.cluster.links import index_of
from flowcheck.lab.cluster.namespaces import needs, netlink
from flowcheck.lab.cluster.spec import Cluster, Direction, port_name

ETH_P_ALL = 3
# linux/pkt_sched.h TC_H_MIN_INGRESS, TC_H_MIN_EGRESS; what the port sends is what leaves it.
PARENTS: dict[Direction, int] = {"rx": 0xFFFFFFF2, "tx": 0xFFFFFFF3}


def copy_to(route: IPRoute, port: int, direction: Direction, monitor: int) -> None:
    """All frames of one direction of `port` also to `monitor` (interface indices)."""
    if not any(q["handle"] == TC_H_CLSACT & 0xFFFF0000 for q in route.get_qdiscs(index=port)):
        with needs("tc's hook at a port (clsact)", "CONFIG_NET_SCH_INGRESS"):
            route.tc("add", "clsact", port)
    action = {"kind": "mirred", "direction": "egress", "action": "mirror", "ifindex": monitor}
    with needs("a mirror (u32, mirred)", "CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED"):
        route.tc(
            "add-filter",
            "u32",
            port,
            parent=PARENTS[direction],
            prio=1,
            protocol=ETH_P_ALL,
            target=0,
            keys=["0x0/0x0+0"],
            action=action,
        )


def stop_copies(cluster: Cluster) -> None:
    """Takes a bridge's mirrors off; all else of the cluster stays as it is."""
    with netlink(cluster.switch_namespace) as route:
        for port in {mirror.port for mirror in cluster.mirrors}:
            route.tc("del", "clsact", index_of(route, port_name(port)))


def present(route: IPRoute, port: int, direction: Direction) -> bool:
    """A filter is where copy_to() put one."""
    try:
        return bool(route.get_filters(index=port, parent=PARENTS[direction]))
    except NetlinkError:
        return False
