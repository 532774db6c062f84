"""veth pairs between the switch and every other node, without segmentation offloads."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from ipaddress import IPv4Interface

from pyroute2 import IPRoute

from flowcheck.lab.cluster.cluster_spec import MANAGEMENT, MONITOR, UPLINK, Cluster, port_name
from flowcheck.lab.cluster.network_namespaces import in_namespace, netlink, requires_kernel_feature

SIOCETHTOOL = 0x8946  # linux/sockios.h
# linux/ethtool.h: ETHTOOL_S{RXCSUM,TXCSUM,SG,TSO,GSO,GRO}. Off from the last to the first: a
# driver without checksums may have no scatter-gather, one without that no segmentation.
OFFLOADS = (0x2C, 0x24, 0x1F, 0x19, 0x17, 0x15)


def connect(cluster: Cluster) -> None:
    """Connects every host to its port and the checkpoint node to the monitor port, and the hosts to
    the checkpoint node where the cluster has management links; all links are up on return."""
    for port in range(cluster.ports):
        namespace = cluster.host_namespace(cluster.host_of_port(port))
        far = cluster.interfaces[port % cluster.nics]
        _cable(cluster, port_name(port), namespace, far, cluster.mac(port), cluster.mtu)
        _address(cluster, port)
    namespace, mac = cluster.checkpoint_namespace, cluster.checkpoint_mac
    _cable(cluster, MONITOR, namespace, UPLINK, mac, cluster.monitor_mtu)
    for host in range(cluster.hosts) if cluster.management else ():
        _management_link(cluster, host)


def _cable(cluster: Cluster, port: str, namespace: str, far: str, mac: str, mtu: int) -> None:
    """The far end is born in its namespace: no other ever sees it."""
    peer = {"ifname": far, "address": mac, "mtu": mtu, "net_ns_fd": namespace}
    with (
        netlink(cluster.switch_namespace) as route,
        requires_kernel_feature("a veth pair", "CONFIG_VETH"),
    ):
        route.link("add", ifname=port, kind="veth", mtu=mtu, peer=peer)
    for where, name in ((cluster.switch_namespace, port), (namespace, far)):
        with in_namespace(where):
            offloads_off(name)
        with netlink(where) as route:
            route.link("set", index=index_of(route, name), state="up")


def _management_link(cluster: Cluster, host: int) -> None:
    """From the checkpoint node to a host, and to no other: neither is a router."""
    here, there = cluster.checkpoint_namespace, cluster.host_namespace(host)
    near = f"{MANAGEMENT}{host}"
    with netlink(here) as route, requires_kernel_feature("a veth pair", "CONFIG_VETH"):
        peer = {"ifname": MANAGEMENT, "net_ns_fd": there}
        route.link("add", ifname=near, kind="veth", peer=peer)
    own, other = cluster.checkpoint_management_address, cluster.management_address(host)
    for where, name, local, far in (
        (here, near, own, other),
        (there, MANAGEMENT, other, own),
    ):
        with netlink(where) as route:
            index = index_of(route, name)
            route.addr("add", index=index, local=local, address=far, prefixlen=32)
            route.link("set", index=index, state="up")


def _address(cluster: Cluster, port: int) -> None:
    """Address, and the neighbours' as permanent entries: ARP would only be noise on the mirror. A
    host has one route to all others, by its first NIC: the others carry nothing but RoCE."""
    host, nic = divmod(port, cluster.nics)
    with netlink(cluster.host_namespace(host)) as route:
        uplink = index_of(route, cluster.interfaces[nic])
        network = IPv4Interface(f"{cluster.port_address(port)}/24")
        length = 24 if nic == 0 else 32
        route.addr("add", index=uplink, address=str(network.ip), prefixlen=length)
        for other in range(cluster.ports):
            if cluster.host_of_port(other) != host:
                route.neigh(
                    "add",
                    ifindex=uplink,
                    dst=cluster.port_address(other),
                    lladdr=cluster.mac(other),
                    state=0x80,  # NUD_PERMANENT
                )


def index_of(route: IPRoute, name: str) -> int:
    """Index of an existing interface."""
    return int(route.link_lookup(ifname=name)[0])


def offloads_off(interface: str) -> None:
    """Disables offloads of an interface in this thread's namespace, so that mirrored frames are as
    on a cable."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with requires_kernel_feature(f"{interface} without offloads", "ethtool's ioctl"):
                fcntl.ioctl(control, SIOCETHTOOL, request)
