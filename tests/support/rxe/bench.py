"""Two virtual machines with the kernel's RoCE behind a lab cluster's switch, and the chain's first
two stages at its mirror; nothing of it outlives whoever made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.rxe.guest import Machine
from support.rxe.image import build, kernel
from support.rxe.keeper import kept
from support.rxe.mirror import Mirror

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.cluster_spec import SwitchKind

FOLDERS = "flowcheck-rxe-"
NETWORK = 203
ENGINES: dict[SwitchKind, tuple[str, ...]] = {"bridge": (), "ovs": ("dma_skeleton0",)}
"""What copies frames into the ring: the processor, or an engine of DPDK's."""


@dataclass(frozen=True)
class Bench:
    """Machine 0 is the one whose port is mirrored, both ways."""

    machines: list[Machine]
    mirror: Mirror


@contextmanager
def bench(name: str, switch: SwitchKind) -> Iterator[Bench]:
    """All of it, up; `name` is the cluster's. Needs root and what image.missing() names."""
    found = kernel()
    assert found is not None
    folder = Path("/dev/shm") / f"{FOLDERS}{name}"
    cluster = lab.Cluster(name=name, network=NETWORK, switch=switch)
    with ExitStack() as stack:
        stack.enter_context(kept(name, folder))
        folder.mkdir(mode=0o700)
        initramfs = build(found, folder)
        lab.up(cluster)
        # Before the machines: every frame they ever send is captured, or it is missing.
        mirror = Mirror(cluster, folder, ENGINES[switch])
        stack.callback(mirror.stop)
        mirror.start()
        machines = [Machine(cluster, host) for host in range(cluster.hosts)]
        for machine in machines:
            stack.callback(machine.stop)
            machine.start(found, initramfs)
        for machine in machines:
            machine.set_up()
        yield Bench(machines, mirror)
