"""The lab's switch as a Linux bridge with tc mirrors to the monitor port."""

from __future__ import annotations

from socket import htons

from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_NEWTFILTER, TC_H_CLSACT
from pyroute2.netlink.rtnl.tcmsg import cls_u32, tcmsg
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from flowcheck.lab.cluster.cluster_spec import BRIDGE, MONITOR, Cluster, Direction, port_name
from flowcheck.lab.cluster.network_namespaces import netlink, requires_kernel_feature
from flowcheck.lab.cluster.veth_links import index_of

ETH_P_ALL = 3
PREF = 1
# linux/pkt_sched.h TC_H_MIN_INGRESS, TC_H_MIN_EGRESS; what the port sends is what leaves it.
PARENTS: dict[Direction, int] = {"rx": 0xFFFFFFF2, "tx": 0xFFFFFFF3}


def add_mirror_filter(route: IPRoute, port: int, direction: Direction, monitor: int) -> None:
    """Adds a tc filter that copies all frames of one direction of `port` to `monitor` (interface
    indices)."""
    if not any(q["handle"] == TC_H_CLSACT & 0xFFFF0000 for q in route.get_qdiscs(index=port)):
        with requires_kernel_feature("tc's hook at a port (clsact)", "CONFIG_NET_SCH_INGRESS"):
            route.tc("add", "clsact", port)
    with requires_kernel_feature(
        "a mirror (u32, mirred)", "CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED"
    ):
        route.nlm_request_batch([_filter(port, direction, monitor)])


def _filter(port: int, direction: Direction, monitor: int) -> tcmsg:
    """Every frame of one direction of a port to the monitor, and on to the filters behind.

    By hand, because pyroute2's own mirror ends the frame's classification: the filters behind it
    would see none (its act_mirred.get_parameters: `pipe`).
    """
    action = {"kind": "mirred", "direction": "egress", "action": "mirror", "ifindex": monitor}
    words = {"target": 0, "keys": ["0x0/0x0+0"], "action": action}
    options = cls_u32.get_parameters(words)
    (_, actions), *_ = options["attrs"]
    (_, first), *_ = actions["attrs"]
    (_, mirred) = first["attrs"][1]
    mirred["attrs"][0][1]["action"] = tc_actions["unspec"]
    message = tcmsg()
    message["header"]["type"] = RTM_NEWTFILTER
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    message["index"], message["parent"] = port, PARENTS[direction]
    message["info"] = htons(ETH_P_ALL) | PREF << 16
    message["attrs"] = [("TCA_KIND", "u32"), ("TCA_OPTIONS", options)]
    return message


def remove_mirrors(cluster: Cluster) -> None:
    """Removes the mirrors of a bridge cluster; everything else stays."""
    with netlink(cluster.switch_namespace) as route:
        for port in {mirror.port for mirror in cluster.mirrors}:
            route.tc("del", "clsact", index_of(route, port_name(port)))


def has_mirror_filter(route: IPRoute, port: int, direction: Direction) -> bool:
    """Whether the filter of add_mirror_filter() exists."""
    try:
        return bool(route.get_filters(index=port, parent=PARENTS[direction]))
    except NetlinkError:
        return False


NTF_MASTER = 0x04  # linux/neighbour.h: the entry is the bridge's, not the port's own
NUD_NOARP = 0x40  # a bridge calls an entry with it static: forwarded to, never aged


def build(cluster: Cluster) -> None:
    """Builds the bridge: ports, one static address per port, mirrors. The links must exist."""
    with netlink(cluster.switch_namespace) as route:
        with requires_kernel_feature("a Linux bridge", "CONFIG_BRIDGE"):
            route.link(
                "add",
                ifname=BRIDGE,
                kind="bridge",
                mtu=cluster.mtu,
                br_stp_state=0,
                br_mcast_snooping=0,
            )
        bridge = index_of(route, BRIDGE)
        for port in range(cluster.ports):
            _port(route, bridge, index_of(route, port_name(port)), cluster.mac(port))
        route.link("set", index=bridge, state="up")
        monitor = index_of(route, MONITOR)
        for mirror in cluster.mirrors:
            add_mirror_filter(
                route, index_of(route, port_name(mirror.port)), mirror.direction, monitor
            )


def _port(route: IPRoute, bridge: int, port: int, mac: str) -> None:
    """A frame to an unknown address goes nowhere: flooded, it would be mirrored as traffic."""
    route.link("set", index=port, master=bridge)
    route.brport("set", index=port, learning=0, unicast_flood=0, mcast_flood=0)
    route.fdb("add", ifindex=port, lladdr=mac, flags=NTF_MASTER, state=NUD_NOARP)
