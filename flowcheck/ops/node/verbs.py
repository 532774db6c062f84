"""scripts/bind-nic and scripts/bind-dma: what is typed, and in which order what is done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.ops.node import nic, pmd, port, queues, vfio
from flowcheck.ops.node.refusal import checked_address, needed_for, refuse_needed
from flowcheck.ops.node.sysfs import Sysfs, sysfs_of_environment

OPERATOR_ERROR = 2
IOAT, IDXD = "ioatdma", "idxd"
"""Kernel drivers of copy engines that a DPDK driver exists for."""


def show_nics(sysfs: Sysfs) -> None:
    for device in pmd.pci_devices(sysfs.path("sys")):
        if not device.is_network:
            continue
        names = ", ".join(nic.interfaces_of(sysfs.root, device.address)) or "no interface"
        group, members = vfio.group_of(sysfs, device.address)
        among = f"IOMMU group {group} of {len(members)}" if group else "no IOMMU group"
        bound = device.bound_to or "no driver"
        sysfs.say(f"    {device.address}  {bound}, {names}, {among}")
        for why in needed_for(sysfs, device.address):
            sysfs.say(f"        needed here: {why}")


def bind_nics(sysfs: Sysfs, addresses: Sequence[str], *, no_iommu: bool) -> None:
    """All are looked at before the first is touched."""
    vfio_to_be = []
    for address in addresses:
        refuse_needed(sysfs, checked_address(sysfs, address))
        if vfio.driver_of(sysfs, address) not in port.BIFURCATED:
            vfio.check_group(sysfs, address, addresses, no_iommu=no_iommu)
            vfio_to_be.append(address)
    for address in addresses:
        if address in vfio_to_be:
            port.quieten(sysfs, address)
            vfio.bind(sysfs, address, no_iommu=no_iommu)
        else:
            sysfs.say(f"    {address} stays with the kernel: DPDK works beside its driver")
            port.prepare(sysfs, address)


def show_engines(sysfs: Sysfs) -> None:
    for name in queues.instances(sysfs):
        for line in queues.told(sysfs, name):
            sysfs.say(f"    {line}")
    for device in pmd.pci_devices(sysfs.path("sys")):
        if device.bound_to in (IOAT, IDXD) or device.class_code >> 8 == 0x0880:
            sysfs.say(f"    {device.address}  {device.bound_to or 'no driver'}")


def reserve_engine(sysfs: Sysfs, device: str, count: int, *, no_iommu: bool) -> None:
    """device: dsa0, or the PCI address of an ioat channel or a whole accelerator."""
    if queues.NAME.fullmatch(device):
        queues.reserve(sysfs, device, count)
        return
    refuse_needed(sysfs, checked_address(sysfs, device))
    if vfio.driver_of(sysfs, device) not in (IOAT, IDXD, vfio.DRIVER, ""):
        raise ConfigError("device", device, "is no copy engine: `show` lists them")
    vfio.check_group(sysfs, device, [device], no_iommu=no_iommu)
    vfio.bind(sysfs, device, no_iommu=no_iommu)


def undo(sysfs: Sysfs, devices: Sequence[str]) -> None:
    for device in devices:
        if queues.NAME.fullmatch(device):
            done = queues.undo(sysfs, device)
        else:
            done = vfio.undo(sysfs, checked_address(sysfs, device))
        if not done:
            sysfs.say(f"    {device}: nothing was changed by this script since the last restart")


def main(words: Sequence[str] | None = None, sysfs: Sysfs | None = None) -> int:
    parser = argparse.ArgumentParser(prog="node", description=__doc__)
    parser.add_argument("what", choices=("nic", "dma"))
    parser.add_argument("verb", choices=("show", "bind", "reserve", "undo"), nargs="?")
    parser.add_argument("devices", nargs="*", help="0000:3b:00.0, or dsa0")
    parser.add_argument("--queues", type=int, default=1, help="work queues of a dsa")
    parser.add_argument("--no-iommu", action="store_true", help="DMA goes unchecked")
    asked = parser.parse_args(words)
    takes = "bind" if asked.what == "nic" else "reserve"
    if asked.verb not in (None, "show", "undo", takes):
        parser.error(f"{asked.what} has show, {takes} and undo")
    if bool(asked.devices) == (asked.verb in (None, "show")):
        parser.error("state devices to bind, reserve or undo; show takes none")
    try:
        _act(asked, sysfs or sysfs_of_environment())
    except FlowCheckError as error:
        print(f"{asked.what}: {error}", file=sys.stderr)
        return OPERATOR_ERROR
    return 0


def _act(asked: argparse.Namespace, sysfs: Sysfs) -> None:
    show: Callable[[Sysfs], None] = show_nics if asked.what == "nic" else show_engines
    if asked.verb == "undo":
        undo(sysfs, asked.devices)
    elif asked.verb == "bind":
        bind_nics(sysfs, asked.devices, no_iommu=asked.no_iommu)
    elif asked.verb == "reserve":
        for device in asked.devices:
            reserve_engine(sysfs, device, asked.queues, no_iommu=asked.no_iommu)
    show(sysfs)


if __name__ == "__main__":
    sys.exit(main())
