"""Raw sockets at the ends of a lab cluster's links: what was put in and what came out, as bytes."""

from __future__ import annotations

import socket
from types import TracebackType

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from flowcheck.lab.cluster.cluster_spec import Cluster
from flowcheck.lab.cluster.network_namespaces import in_namespace

ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
ROCE_PORT = 4791
QUIET_S = 0.3
FIRST_S = 60.0
BYTES = bytes(range(256))
BTH_WRITE_ONLY = bytes.fromhex("0a40ffff00000123") + bytes(4)


class Tap:
    """Everything that arrives at eth0 of a namespace."""

    def __init__(self, namespace: str) -> None:
        # RoCE's port is taken, so that the kernel answers no frame with ICMP.
        with in_namespace(namespace):
            self._taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._taken.bind(("", ROCE_PORT))
        with in_namespace(namespace):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind(("eth0", ETH_P_ALL))

    def __enter__(self) -> Tap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, what: BaseException | None, at: TracebackType | None
    ) -> None:
        self.socket.close()
        self._taken.close()

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def received(self, at_least: int = 0) -> list[bytes]:
        """Frames until none came for QUIET_S, in order; the first `at_least` may take longer."""
        frames: list[bytes] = []
        while True:
            self.socket.settimeout(FIRST_S if len(frames) < at_least else QUIET_S)
            try:
                frame, where = self.socket.recvfrom(1 << 16)
            except TimeoutError:
                return frames
            if where[2] != socket.PACKET_OUTGOING:
                frames.append(frame)


def roce_frame(cluster: Cluster, source: int, target: int, number: int, size: int) -> bytes:
    """A RoCEv2 write of `size` payload bytes from host to host, told apart by `number`."""
    body = BTH_WRITE_ONLY[:8] + number.to_bytes(4, "big") + bytes(16)
    begin = number * 31 & 0xFF
    body += (BYTES * (size // 256 + 2))[begin : begin + size] + bytes(4)
    return bytes(
        Ether(src=cluster.mac(source), dst=cluster.mac(target))
        / IP(src=cluster.address(source), dst=cluster.address(target), flags="DF")
        / UDP(sport=49152 + number % 1000, dport=ROCE_PORT, chksum=0)
        / Raw(body)
    )
