"""The links from a cluster's checkpoint node to its hosts past the switch: each host is reached, by
TCP of the kernel, and nothing of it comes to the monitor port."""

from __future__ import annotations

import os
import secrets
import socket

import pytest
from support.cabling import Tap, roce_frame
from support.switches import SWITCHES

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.network_namespaces import existing, in_namespace

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
PORT = 9470


@pytest.mark.parametrize("switch", SWITCHES)
def test_hosts_are_reached_past_the_switch(switch: str) -> None:
    mirrors = lab.parse_mirrors(["p0:both", "p1:both"])
    cluster = lab.Cluster(
        name=f"m{os.getpid()}",
        switch=switch,  # type: ignore[arg-type]
        mirrors=mirrors,
        management=True,
    )
    try:
        lab.up(cluster)
        with Tap(cluster.checkpoint_namespace) as monitor, Tap(cluster.host_namespace(0)) as sender:
            for host in range(cluster.hosts):
                said = secrets.token_bytes(1 << 16)
                with in_namespace(cluster.host_namespace(host)):
                    server = socket.create_server((cluster.management_address(host), PORT))
                with in_namespace(cluster.checkpoint_namespace):
                    client = socket.create_connection(server.getsockname(), timeout=60)
                with server, client:
                    peer, (address, _) = server.accept()
                    with peer:
                        assert address == cluster.checkpoint_management_address
                        peer.sendall(said)
                        assert client.recv(len(said), socket.MSG_WAITALL) == said
            last = roce_frame(cluster, 0, 1, 1, 64)
            sender.send(last)
            copies = cluster.copies(0, 1)
            seen = monitor.received(copies)
            assert seen.count(last) == copies
            # The receiver's kernel may refuse the frame: that is mirrored too.
            own = socket.inet_aton(cluster.checkpoint_management_address)
            assert not any(own in frame for frame in seen)
    finally:
        lab.down(cluster.name)
    assert not existing(f"fcl-{cluster.name}-")


def test_a_cluster_has_none_unless_asked() -> None:
    cluster = lab.Cluster(name=f"m{os.getpid()}")
    try:
        lab.up(cluster)
        with in_namespace(cluster.checkpoint_namespace):
            assert {name for _, name in socket.if_nameindex()} == {"lo", "eth0"}
    finally:
        lab.down(cluster.name)
