"""A Linux bridge whose mirrors and filters are what a test makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.mirrored import Switch

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.linux_bridge import remove_mirrors

ASKED = ("--source", "p0:both", "--source", "p1", "--monitor", "mon0")


@contextmanager
def bridged(folder: Path) -> Iterator[Switch]:
    """Ports p0 and p1 and no mirror; another device `other`."""
    cluster = lab.Cluster(name=f"s{os.getpid()}", mirrors=lab.parse_mirrors(["p0:rx"]))
    try:
        lab.up(cluster)
        remove_mirrors(cluster)
        made = Switch(cluster, folder / "journal", ["--os", "tc"])
        made.says("ip link add other mtu 9000 type veth peer name beyond mtu 9000")
        for device in ("other", "beyond"):
            made.run("ip", "link", "set", device, "up")
        yield made
    finally:
        lab.down(cluster.name)


def held(switch: Switch) -> str:
    """Every qdisc, chain and filter, as tc's own JSON."""
    shown = [switch.run("tc", "-j", "qdisc", "show")]
    hooked = {one["dev"] for one in json.loads(shown[0]) if one["kind"] in ("clsact", "ingress")}
    for device in sorted(hooked):
        for what in ("chain", "filter"):
            for way in ("ingress", "egress"):
                shown.append(switch.run("tc", "-j", what, "show", "dev", device, way))
    return "\n".join(shown)


def somebodys(switch: Switch, pref: int, control: str, way: str = "ingress") -> None:
    """A filter that is not ours, with a copy to somebody's own device."""
    switch.run(
        *f"tc filter add dev p0 {way} protocol all pref {pref} u32 match u32 0 0".split(),
        *f"action mirred egress mirror dev other {control} cookie aa".split(),
    )
