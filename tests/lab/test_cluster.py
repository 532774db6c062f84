"""Real namespaces, a real switch: every frame arrives where it must, as often as it must."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap
from support.cabling import ROCE_PORT, Tap, roce_frame
from support.switches import NEEDS_OVS, ONE_OVS_AT_A_TIME, SWITCHES
from support.wireshark import tshark

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.cluster_spec import MTUS
from flowcheck.lab.cluster.network_namespaces import in_namespace

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
FRAMES = 25
"""Per pair of hosts."""


@contextmanager
def made(**words: object) -> Iterator[lab.Cluster]:
    """A cluster under a name nobody else has."""
    cluster = lab.Cluster(name=f"t{os.getpid()}", **words)  # type: ignore[arg-type]
    try:
        yield lab.up(cluster)
    finally:
        lab.down(cluster.name)


def chosen_points(words: list[str]) -> set[tuple[int, str]]:
    """{(port, direction)} of ["p0:both", ...]; not by the code under test."""
    points = set()
    for word in words:
        port, what = word[1:].split(":")
        points |= {(int(port), one) for one in (["rx", "tx"] if what == "both" else [what])}
    return points


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    ("hosts", "mtu", "words"),
    [
        (2, 4200, ["p0:both"]),
        (2, 9000, ["p1:tx"]),
        (2, 4200, ["p0:both", "p1:both"]),
        (3, 4200, ["p0:rx", "p1:rx"]),
        (4, 9000, ["p1:tx", "p3:both"]),
    ],
)
def test_copies_as_chosen(switch: str, hosts: int, mtu: int, words: list[str]) -> None:
    """At the receiver each frame once; at the monitor port as often as the points it passed."""
    points = chosen_points(words)
    size = {4200: 4096, 9000: 8192}[mtu]
    assert set(MTUS) == {4200, 9000}
    with (
        made(hosts=hosts, switch=switch, mtu=mtu, mirrors=lab.parse_mirrors(words)) as cluster,
        ExitStack() as stack,
    ):
        ends = [stack.enter_context(Tap(cluster.host_namespace(n))) for n in range(hosts)]
        monitor = stack.enter_context(Tap(cluster.checkpoint_namespace))
        at_host: list[list[bytes]] = [[] for _ in range(hosts)]
        copies: Counter[bytes] = Counter()
        pairs = [*itertools.permutations(range(hosts), 2)] * FRAMES
        for number, (source, target) in enumerate(pairs):
            # Up to the MTU to the byte: 14 + 20 + 8 + 12 + 16 + 4 around the payload.
            payload = mtu - 60 if number % 7 == 0 else size - 4 * (number % 5)
            frame = roce_frame(cluster, source, target, number, payload)
            assert len(frame) <= mtu + 14
            ends[source].send(frame)
            at_host[target].append(frame)
            passed = len({(source, "rx"), (target, "tx")} & points)
            copies[frame] = min(passed, 1) if switch == "ovs" else passed
        got = monitor.received(copies.total())
        for host in range(hosts):
            arrived = ends[host].received(len(at_host[host]))
            assert Counter(arrived) == Counter(at_host[host])
    assert Counter(got) == +copies
    assert copies.total() > 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_one_direction_keeps_order(switch: str) -> None:
    """A burst, faster than the switch is: all there, in the order it was sent."""
    with (
        made(switch=switch, mirrors=lab.parse_mirrors(["p0:rx"])) as cluster,
        Tap(cluster.host_namespace(0)) as sender,
        Tap(cluster.checkpoint_namespace) as monitor,
    ):
        frames = [roce_frame(cluster, 0, 1, n, 4096) for n in range(2000)]
        for frame in frames:
            sender.send(frame)
        assert monitor.received(len(frames)) == frames


@pytest.mark.parametrize("switch", SWITCHES)
def test_checksums_are_on_the_wire(switch: str) -> None:
    """Sockets of the kernel: no checksum or segment is left to a NIC that is not there."""
    with made(switch=switch) as cluster, Tap(cluster.checkpoint_namespace) as monitor:
        with in_namespace(cluster.host_namespace(0)):
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listener = socket.create_server((cluster.address(0), 5000))
        with in_namespace(cluster.host_namespace(1)):
            stream = socket.create_connection((cluster.address(0), 5000), timeout=60)
        with udp, listener, stream:
            udp.sendto(bytes(4100), (cluster.address(1), ROCE_PORT))
            listener.settimeout(60)
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(60)
                stream.sendall(bytes(100_000))
                left = 100_000
                while left:
                    left -= len(accepted.recv(left))
            frames = monitor.received(20)
    assert max(map(len, frames)) <= cluster.mtu + 14
    sums = 0
    for frame in frames:
        packet = Ether(frame)
        layer = packet[IP].payload
        said, layer.chksum = layer.chksum, None
        assert type(packet)(bytes(packet))[IP].payload.chksum == said
        sums += layer.haslayer(UDP) + 1
    assert sums > 20


@pytest.mark.parametrize("switch", SWITCHES)
def test_checkpoint_node_is_alone(switch: str) -> None:
    """One interface, no address, no way to a host; and the trainers' files may be hidden."""
    with made(switch=switch) as cluster, ExitStack() as stack:
        hosts = [stack.enter_context(Tap(cluster.host_namespace(n))) for n in range(2)]
        node = stack.enter_context(Tap(cluster.checkpoint_namespace))
        inside_ip = ["ip", "-n", cluster.checkpoint_namespace, "-o"]
        links = subprocess.run([*inside_ip, "link"], capture_output=True, text=True, check=True)
        assert [line.split()[1] for line in links.stdout.splitlines()] == [
            "lo:",
            "eth0@if" + (links.stdout.splitlines()[1].split("@if")[1].split()[0]),
        ]
        shown = subprocess.run(
            [*inside_ip, "addr", "show", "eth0"], capture_output=True, text=True, check=True
        )
        assert shown.stdout == ""
        for target in range(2):
            node.send(roce_frame(cluster, 1 - target, target, target, 1024))
        assert [host.received() for host in hosts] == [[], []]
        assert node.received() == []


def test_hidden_files(tmp_path: Path) -> None:
    with made() as cluster:
        (tmp_path / "secret").write_text("weights")
        for hide, seen in (((), "secret\n"), ((tmp_path,), "")):
            process = lab.run_in(
                cluster.checkpoint_namespace,
                ["ls", str(tmp_path)],
                hide=hide,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.communicate(timeout=60)[0] == seen
        assert (tmp_path / "secret").exists()


@NEEDS_OVS
@ONE_OVS_AT_A_TIME
@pytest.mark.parametrize("mtu", MTUS)
def test_erspan(mtu: int, tmp_path: Path) -> None:
    """Open vSwitch's own tunnel, decoded by tshark; the frames inside are the frames sent."""
    with (
        made(switch="ovs", erspan=True, mtu=mtu) as cluster,
        Tap(cluster.host_namespace(0)) as first,
        Tap(cluster.host_namespace(1)) as second,
        Tap(cluster.checkpoint_namespace) as monitor,
    ):
        frames = [roce_frame(cluster, n % 2, 1 - n % 2, n, mtu - 60) for n in range(40)]
        for number, frame in enumerate(frames):
            (first, second)[number % 2].send(frame)
        got = monitor.received(len(frames))
        assert lab.down(cluster.name)
    path = tmp_path / "erspan.pcap"
    wrpcap(str(path), [Ether(frame) for frame in got])
    rows = tshark(path, "erspan.version", "erspan.spanid", "ip.src", "frame.protocols")
    assert len(rows) == len(frames)
    for version, session, sources, protocols in rows:
        assert (version, session) == ("1", "1")
        assert sources.split(",")[1] in (cluster.address(0), cluster.address(1))
        assert "gre:erspan:eth" in protocols and "infiniband" in protocols
    assert tshark(path, "frame.number", keep="_ws.malformed") == []
    assert Counter(frame[14 + 20 + 8 + 8 :] for frame in got) == Counter(frames)
