"""A network namespace with one pair of interfaces, always removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.stale import sweep

SEND = Path(__file__).with_name("send.py")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Veth:
    """Frames sent into `out` come out of `tap`, both in `namespace`, MTU 9000, quiet."""

    out, tap = "out0", "tap0"

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def run(self, *command: str) -> str:
        """Standard output of `command` in the namespace."""
        inside = ["ip", "netns", "exec", self.namespace, *command]
        done = subprocess.run(inside, check=True, capture_output=True, text=True, timeout=40)
        return done.stdout

    def send(self, path: Path, pause_every: int = 16) -> None:
        self.run(sys.executable, str(SEND), self.out, str(path), str(pause_every))

    def flags(self) -> int:
        """Interface flags of `tap` as the kernel has them (net/if.h; IFF_PROMISC 0x100)."""
        return int(self.run("cat", f"/sys/class/net/{self.tap}/flags"), 16)


@contextmanager
def veth() -> Iterator[Veth]:
    """Needs root."""
    sweep()
    made = Veth(f"fctest{os.getpid()}")
    _ip("netns", "add", made.namespace)
    try:
        inside = ("-n", made.namespace, "link")
        _ip(*inside, "add", made.out, "type", "veth", "peer", "name", made.tap)
        for name in (made.out, made.tap):
            made.run("sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
            _ip(*inside, "set", name, "mtu", "9000", "arp", "off", "up")
        yield made
    finally:
        _ip("netns", "del", made.namespace)
