"""A PCI device given to vfio-pci, and back to the driver it had.

By driver_override and drivers_probe alone (Documentation/ABI/testing/sysfs-bus-pci): new_id would
make vfio-pci take every device of that kind, and those that are plugged in later.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.node.refusal import BRIDGE, PCI, base_class, users_of
from flowcheck.ops.node.sysfs import Notes, Sysfs

DRIVER = "vfio-pci"
DRIVERS = "sys/bus/pci/drivers"
UNSAFE = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
PROBE = "sys/bus/pci/drivers_probe"


def driver_of(sysfs: Sysfs, address: str) -> str:
    """Empty: none."""
    return sysfs.look(f"{PCI}/{address}/driver")


def group_of(sysfs: Sysfs, address: str) -> tuple[str, list[str]]:
    """The number of its IOMMU group and all devices in it; empty and itself without an IOMMU."""
    number = sysfs.look(f"{PCI}/{address}/iommu_group")
    members = sysfs.names(f"sys/kernel/iommu_groups/{number}/devices/*") if number else []
    return number, [member.rsplit("/", 1)[1] for member in members] or [address]


def check_group(sysfs: Sysfs, address: str, given: Sequence[str], *, no_iommu: bool) -> None:
    """Says what else the group holds. Raises ConfigError where a kernel driver works on another
    member, for vfio gives out whole groups, and where there is no IOMMU."""
    number, members = group_of(sysfs, address)
    if not number or sysfs.look(f"{PCI}/{address}/iommu_group/name") == "vfio-noiommu":
        if not no_iommu:
            raise ConfigError(
                "device",
                address,
                "has no IOMMU group: switch the IOMMU on (intel_iommu=on or amd_iommu=on, and in "
                "the firmware), or ask for --no-iommu, where its DMA goes unchecked",
            )
        return
    told = [f"{member} ({driver_of(sysfs, member) or 'no driver'})" for member in members]
    sysfs.say(f"    IOMMU group {number}: {', '.join(told)}")
    for member in members:
        free = driver_of(sysfs, member) in ("", DRIVER) or base_class(sysfs, member) == BRIDGE
        if member not in given and not free:
            raise ConfigError(
                "device",
                address,
                f"shares IOMMU group {number} with {member}, which {driver_of(sysfs, member)} "
                "drives: state both if neither is needed, or move one to another slot",
            )


def bind(sysfs: Sysfs, address: str, *, no_iommu: bool) -> None:
    """Raises StateError where the kernel refuses; all is as before then."""
    notes = Notes(sysfs, address)
    device, was = f"{PCI}/{address}", driver_of(sysfs, address)
    if was == DRIVER:
        sysfs.say(f"    {address} is with {DRIVER} already")
        return
    try:
        if not sysfs.path(f"{DRIVERS}/{DRIVER}").exists():
            sysfs.run(["modprobe", DRIVER])
        if no_iommu and not group_of(sysfs, address)[0]:
            sysfs.say("    WARNING: without an IOMMU the device reaches all memory, and the")
            sysfs.say("    kernel says from now on that it is tainted, until the next restart")
            notes.put(UNSAFE, "Y")
        if was:
            notes.note({"expect": [f"{device}/driver", was]})
            without = (f"{device}/driver", "")
            notes.tell(f"{device}/driver/unbind", address, (PROBE, address), without)
        notes.put(f"{device}/driver_override", DRIVER)
        undo = (f"{DRIVERS}/{DRIVER}/unbind", address)
        notes.tell(PROBE, address, undo, (f"{device}/driver", DRIVER))
        if driver_of(sysfs, address) != DRIVER:
            raise StateError(f"{address} was not taken by {DRIVER}: dmesg has the reason")
    except StateError:
        sysfs.say("    taking back what was done:")
        notes.undo()
        raise


def undo(sysfs: Sysfs, address: str) -> bool:
    """Whether anything was to be undone. Raises ConfigError while a process uses the device: the
    kernel would wait for its end."""
    number, _ = group_of(sysfs, address)
    prefix = "noiommu-" if sysfs.look(f"{PCI}/{address}/iommu_group/name") == "vfio-noiommu" else ""
    users = users_of(sysfs, f"/dev/vfio/{prefix}{number}") if number else []
    if users and driver_of(sysfs, address) == DRIVER:
        raise ConfigError("device", address, f"is in use by process {users[0]}: end it first")
    return Notes(sysfs, address).undo()
