"""scripts/bind-nic and scripts/bind-dma: show, bind, reserve and undo of NICs and DMA engines
for DPDK."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.machine_settings import NOT_AN_ENGINE
from flowcheck.ops.node import (
    dsa_queues,
    installed_dpdk_drivers,
    nic_usage,
    receive_only_port_setup,
    vfio_bind,
)
from flowcheck.ops.node.device_in_use import checked_address, refuse_device_in_use, uses_of_device
from flowcheck.ops.node.sysfs_settings import MachineSettings, sysfs_of_environment

OPERATOR_ERROR = 2
IOAT, IDXD = "ioatdma", "idxd"
"""Kernel drivers of copy engines that a DPDK driver exists for."""


def show_nics(sysfs: MachineSettings) -> None:
    devices = installed_dpdk_drivers.pci_devices(sysfs.path("sys"))
    if not any(device.is_network for device in devices):
        sysfs.report(
            f"    no network device among {len(devices)} PCI devices (/sys/bus/pci/devices): "
            "interface = ... in the job file captures from the kernel's own"
        )
    for device in devices:
        if not device.is_network:
            continue
        names = ", ".join(nic_usage.interfaces_of(sysfs.root, device.address)) or "no interface"
        group, members = vfio_bind.iommu_group_of(sysfs, device.address)
        among = f"IOMMU group {group} of {len(members)}" if group else "no IOMMU group"
        bound = device.bound_to or "no driver"
        sysfs.report(f"    {device.address}  {bound}, {names}, {among}")
        for why in uses_of_device(sysfs, device.address):
            sysfs.report(f"        needed here: {why}")


def bind_nics(sysfs: MachineSettings, addresses: Sequence[str], *, no_iommu: bool) -> None:
    """All are looked at before the first is touched."""
    vfio_to_be = []
    for address in addresses:
        refuse_device_in_use(sysfs, checked_address(sysfs, address))
        if vfio_bind.driver_of(sysfs, address) not in receive_only_port_setup.BIFURCATED:
            vfio_bind.check_group(sysfs, address, addresses, no_iommu=no_iommu)
            vfio_to_be.append(address)
    for address in addresses:
        if address in vfio_to_be:
            receive_only_port_setup.disable_firmware_lldp(sysfs, address)
            vfio_bind.bind(sysfs, address, no_iommu=no_iommu)
        else:
            sysfs.report(f"    {address} stays with the kernel: DPDK works beside its driver")
            receive_only_port_setup.make_receive_only(sysfs, address)


def show_engines(sysfs: MachineSettings) -> None:
    instances = dsa_queues.dsa_devices(sysfs)
    for name in instances:
        for line in dsa_queues.dsa_lines(sysfs, name):
            sysfs.report(f"    {line}")
    devices = installed_dpdk_drivers.pci_devices(sysfs.path("sys"))
    engines = [d for d in devices if d.bound_to in (IOAT, IDXD) or d.class_code >> 8 == 0x0880]
    for device in engines:
        sysfs.report(f"    {device.address}  {device.bound_to or 'no driver'}")
    if not instances and not engines:
        sysfs.report(
            f"    no copy engine: no accelerator in /{dsa_queues.DEVICES}, "
            f"none among {len(devices)} "
            "PCI devices; leave `engines` out of the job file, the processor copies then"
        )


def reserve_engine(sysfs: MachineSettings, device: str, count: int, *, no_iommu: bool) -> None:
    """device: dsa0, or the PCI address of an ioat channel or a whole accelerator."""
    if dsa_queues.NAME.fullmatch(device):
        dsa_queues.reserve_queues(sysfs, device, count)
        return
    refuse_device_in_use(sysfs, checked_address(sysfs, device))
    if vfio_bind.driver_of(sysfs, device) not in (IOAT, IDXD, vfio_bind.DRIVER, ""):
        raise ConfigError("device", device, NOT_AN_ENGINE())
    vfio_bind.check_group(sysfs, device, [device], no_iommu=no_iommu)
    vfio_bind.bind(sysfs, device, no_iommu=no_iommu)


def undo(sysfs: MachineSettings, devices: Sequence[str]) -> None:
    for device in devices:
        if dsa_queues.NAME.fullmatch(device):
            done = dsa_queues.undo(sysfs, device)
        else:
            done = vfio_bind.undo(sysfs, checked_address(sysfs, device))
        if not done:
            sysfs.report(f"    {device}: nothing was changed by this script since the last restart")


COMMAND_HELP = {
    "nic": (
        "bind",
        "Gives a network device to DPDK: binds it to vfio-pci, or prepares it under the kernel's "
        "driver if DPDK works beside that (Mellanox). Each write to sysfs is printed first. A port "
        "that this machine uses is refused. Without a verb it lists the network devices. Read on: "
        "scripts/node/README.md",
        "bind-nic show; bind-nic bind 0000:3b:00.0; bind-nic undo 0000:3b:00.0",
    ),
    "dma": (
        "reserve",
        "Gives a copy engine (Intel DSA, I/OAT) to DPDK; then name it in `engines` of a [[source]] "
        "in the job file. Each write to sysfs is printed first. Without a verb it lists the copy "
        "engines. Read on: scripts/node/README.md",
        "bind-dma show; bind-dma reserve dsa0 --queues 2; bind-dma undo dsa0",
    ),
}
"""{what: its verb, what it is for, examples}"""


def _parser(what: str) -> argparse.ArgumentParser:
    takes, text, examples = COMMAND_HELP[what]
    parser = argparse.ArgumentParser(
        prog=f"scripts/bind-{what}", description=text, epilog=f"examples: {examples}"
    )
    parser.add_argument("verb", choices=("show", takes, "undo"), nargs="?", default="show")
    parser.add_argument(
        "devices", nargs="*", help="PCI addresses (0000:3b:00.0), or DSA engines (dsa0)"
    )
    parser.add_argument(
        "--no-iommu",
        action="store_true",
        help="allow a device without an IOMMU: its DMA can then reach all memory",
    )
    if what == "dma":
        parser.add_argument(
            "--queues",
            type=int,
            default=1,
            help="work queues to reserve, of a DSA engine",
        )
    return parser


def main(words: Sequence[str] | None = None, sysfs: MachineSettings | None = None) -> int:
    """words: `nic` or `dma`, then what the operator typed."""
    what, *rest = sys.argv[1:] if words is None else words
    parser = _parser(what)
    asked = parser.parse_args(rest)
    if asked.verb == "show" and asked.devices:
        parser.error("show takes no devices")
    if asked.verb != "show" and not asked.devices:
        parser.error(f"{asked.verb} takes devices: `show` lists what there is")
    try:
        _act(what, asked, sysfs or sysfs_of_environment())
    except FlowCheckError as error:
        print(f"scripts/bind-{what}: {error}", file=sys.stderr)
        if error.finding.remedy:
            print(f"  {error.finding.remedy}", file=sys.stderr)
        return OPERATOR_ERROR
    return 0


def _act(what: str, asked: argparse.Namespace, sysfs: MachineSettings) -> None:
    show: Callable[[MachineSettings], None] = show_nics if what == "nic" else show_engines
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
