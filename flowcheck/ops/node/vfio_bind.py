"""A PCI device given to vfio-pci, and back to the driver it had.

To uio_pci_generic where there is no IOMMU and the kernel was built without vfio's mode for that
(CONFIG_VFIO_NOIOMMU), as Debian's is.

By driver_override and drivers_probe alone (Documentation/ABI/testing/sysfs-bus-pci): new_id would
make vfio-pci take every device of that kind, and those that are plugged in later.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.machine_settings import (
    DEVICE_IN_USE,
    DRIVER_NOT_BOUND,
    IOMMU_GROUP_SHARED,
    NO_IOMMU_GROUP,
)
from flowcheck.ops.node.device_in_use import BRIDGE, PCI_DEVICES, base_class, users_of
from flowcheck.ops.node.sysfs_settings import MachineSettings, UndoLog

DRIVER, UIO = "vfio-pci", "uio_pci_generic"
DRIVERS = "sys/bus/pci/drivers"
UNSAFE = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
PROBE = "sys/bus/pci/drivers_probe"


def driver_of(sysfs: MachineSettings, address: str) -> str:
    """Empty: none."""
    return sysfs.read_value(f"{PCI_DEVICES}/{address}/driver")


def iommu_group_of(sysfs: MachineSettings, address: str) -> tuple[str, list[str]]:
    """The number of its IOMMU group and all devices in it; empty and itself without an IOMMU."""
    number = sysfs.read_value(f"{PCI_DEVICES}/{address}/iommu_group")
    members = sysfs.names(f"sys/kernel/iommu_groups/{number}/devices/*") if number else []
    return number, [member.rsplit("/", 1)[1] for member in members] or [address]


def check_group(
    sysfs: MachineSettings, address: str, given: Sequence[str], *, no_iommu: bool
) -> None:
    """Says what else the group holds. Raises ConfigError where a kernel driver works on another
    member, for vfio gives out whole groups, and where there is no IOMMU."""
    number, members = iommu_group_of(sysfs, address)
    if (
        not number
        or sysfs.read_value(f"{PCI_DEVICES}/{address}/iommu_group/name") == "vfio-noiommu"
    ):
        if not no_iommu:
            raise ConfigError("device", address, NO_IOMMU_GROUP())
        return
    told = [f"{member} ({driver_of(sysfs, member) or 'no driver'})" for member in members]
    sysfs.report(f"    IOMMU group {number}: {', '.join(told)}")
    for member in members:
        free = driver_of(sysfs, member) in ("", DRIVER) or base_class(sysfs, member) == BRIDGE
        if member not in given and not free:
            driver = driver_of(sysfs, member)
            why = IOMMU_GROUP_SHARED(group=number, member=member, driver=driver)
            raise ConfigError("device", address, why)


def bind(sysfs: MachineSettings, address: str, *, no_iommu: bool) -> None:
    """Raises StateError where the kernel refuses; all is as before then."""
    notes = UndoLog(sysfs, address)
    device, was = f"{PCI_DEVICES}/{address}", driver_of(sysfs, address)
    if was in (DRIVER, UIO):
        sysfs.report(f"    {address} is with {was} already")
        return
    try:
        driver = _ready_driver(sysfs, notes, address, no_iommu=no_iommu)
        if was:
            notes.record({"expect": [f"{device}/driver", was]})
            without = (f"{device}/driver", "")
            notes.trigger(f"{device}/driver/unbind", address, (PROBE, address), without)
        notes.set_value(f"{device}/driver_override", driver)
        undo = (f"{DRIVERS}/{driver}/unbind", address)
        notes.trigger(PROBE, address, undo, (f"{device}/driver", driver))
        if driver_of(sysfs, address) != driver:
            raise StateError(DRIVER_NOT_BOUND(driver=driver, device=address))
    except StateError:
        sysfs.report("    taking back what was done:")
        notes.undo()
        raise


def _ready_driver(sysfs: MachineSettings, notes: UndoLog, address: str, *, no_iommu: bool) -> str:
    """Loads the driver the device is for, and returns its name."""
    _load(sysfs, DRIVER)
    if not no_iommu or iommu_group_of(sysfs, address)[0]:
        return DRIVER
    sysfs.report("    WARNING: without an IOMMU the device reaches all memory")
    if sysfs.path(UNSAFE).exists():
        sysfs.report("    WARNING: the kernel says from now on that it is tainted, until a restart")
        notes.set_value(UNSAFE, "Y")
        return DRIVER
    sysfs.report(f"    this kernel's vfio works with an IOMMU alone: {UIO} takes its place")
    _load(sysfs, UIO)
    return UIO


def _load(sysfs: MachineSettings, driver: str) -> None:
    if not sysfs.path(f"{DRIVERS}/{driver}").exists():
        sysfs.run(["modprobe", driver])


def undo(sysfs: MachineSettings, address: str) -> bool:
    """Whether anything was to be undone. Raises ConfigError while a process uses the device: the
    kernel would wait for its end."""
    for file in _files_of(sysfs, address):
        users = users_of(sysfs, file)
        if users:
            raise ConfigError("device", address, DEVICE_IN_USE(users[0]))
    return UndoLog(sysfs, address).undo()


def _files_of(sysfs: MachineSettings, address: str) -> list[str]:
    """What a process that works the device itself has open."""
    if driver_of(sysfs, address) == UIO:
        return [
            f"/dev/{name.rsplit('/', 1)[1]}"
            for name in sysfs.names(f"{PCI_DEVICES}/{address}/uio/*")
        ]
    number, _ = iommu_group_of(sysfs, address)
    if not number or driver_of(sysfs, address) != DRIVER:
        return []
    prefix = (
        "noiommu-"
        if sysfs.read_value(f"{PCI_DEVICES}/{address}/iommu_group/name") == "vfio-noiommu"
        else ""
    )
    return [f"/dev/vfio/{prefix}{number}"]
