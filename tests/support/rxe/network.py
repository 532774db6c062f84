"""A virtual machine in the place of a lab cluster's host, and frames lost on its cable.

The machine's tap and the host's cable are ports of a bridge in the host's namespace; the switch,
its mirror and the checkpoint node are those of any cluster.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from support.eal import wait_until

from flowcheck.lab.cluster import Cluster
from flowcheck.lab.cluster.cluster_spec import UPLINK
from flowcheck.lab.cluster.network_namespaces import netlink
from flowcheck.lab.cluster.veth_links import index_of

TAP = "vm0"
LIMIT_S = 20


def make_room(cluster: Cluster, host: int) -> None:
    """The host's own address and MAC make way: both are the machine's."""
    with netlink(cluster.host_namespace(host)) as route:
        uplink = index_of(route, UPLINK)
        route.flush_addr(index=uplink)
        route.link("set", index=uplink, address=f"02:77:ff:00:00:{host + 1:02x}", arp=False)
        route.link("add", ifname="br0", kind="bridge", mtu=cluster.mtu, br_mcast_snooping=0)
        bridge = index_of(route, "br0")
        route.link("set", index=uplink, master=bridge)
        route.link("set", index=bridge, state="up")


def plug_in(cluster: Cluster, host: int) -> None:
    """The tap that the machine's own process made, which takes it away by ending."""
    with netlink(cluster.host_namespace(host)) as route:
        assert wait_until(lambda: bool(route.link_lookup(ifname=TAP)), LIMIT_S), "no tap"
        tap = index_of(route, TAP)
        route.link("set", index=tap, mtu=cluster.mtu, master=index_of(route, "br0"), state="up")


@dataclass(frozen=True)
class Loss:
    """RoCE frames of one direction on one host's cable that never arrive, drawn at random: a fixed
    rhythm can hit the same packet of every retransmission."""

    host: int
    sent: Literal["by", "to"]
    """By the machine: before the switch. To it: after the switch."""
    percent: int

    def __str__(self) -> str:
        return f"{self.percent}%-{self.sent}-vm{self.host}"


@contextmanager
def losing(cluster: Cluster, loss: Loss) -> Iterator[None]:
    """While the block runs; it is an error if nothing was lost."""
    table = f"table bridge lost-{loss.sent}"
    port = TAP if loss.sent == "by" else UPLINK
    rule = f"udp dport 4791 numgen random mod 100 < {loss.percent} counter drop"
    chain = "chain passing { type filter hook forward priority 0;"
    _nft(cluster, loss.host, f'{table} {{ {chain} iifname "{port}" {rule};}}\n}}\n')
    try:
        yield
        counted = re.findall(r"packets (\d+)", _nft(cluster, loss.host, f"list {table}\n"))
        assert counted and int(counted[0]), f"nothing was lost: {loss}"
    finally:
        _nft(cluster, loss.host, f"delete {table}\n")


def _nft(cluster: Cluster, host: int, script: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", cluster.host_namespace(host), "nft", "-f", "-"],
        input=script,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
