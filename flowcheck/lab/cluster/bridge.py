"""The switch as a Linux bridge that only forwards what it was told: no learning, no protocols."""

from __future__ import annotations

from pyroute2 import IPRoute

from flowcheck.lab.cluster.links import index_of
from flowcheck.lab.cluster.mirror import copy_to
from flowcheck.lab.cluster.namespaces import needs, netlink
from flowcheck.lab.cluster.spec import BRIDGE, MONITOR, Cluster, port_name

NTF_MASTER = 0x04  # linux/neighbour.h: the entry is the bridge's, not the port's own
NUD_NOARP = 0x40  # a bridge calls an entry with it static: forwarded to, never aged


def build(cluster: Cluster) -> None:
    """Bridge, ports, one static address per port, mirrors. The links exist already."""
    with netlink(cluster.switch_namespace) as route:
        with needs("a Linux bridge", "CONFIG_BRIDGE"):
            route.link(
                "add",
                ifname=BRIDGE,
                kind="bridge",
                mtu=cluster.mtu,
                br_stp_state=0,
                br_mcast_snooping=0,
            )
        bridge = index_of(route, BRIDGE)
        for host in range(cluster.hosts):
            _port(route, bridge, index_of(route, port_name(host)), cluster.mac(host))
        route.link("set", index=bridge, state="up")
        monitor = index_of(route, MONITOR)
        for mirror in cluster.mirrors:
            copy_to(route, index_of(route, port_name(mirror.port)), mirror.direction, monitor)


def _port(route: IPRoute, bridge: int, port: int, mac: str) -> None:
    """A frame to an unknown address goes nowhere: flooded, it would be mirrored as traffic."""
    route.link("set", index=port, master=bridge)
    route.brport("set", index=port, learning=0, unicast_flood=0, mcast_flood=0)
    route.fdb("add", ifindex=port, lladdr=mac, flags=NTF_MASTER, state=NUD_NOARP)
