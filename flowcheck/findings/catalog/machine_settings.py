"""bind-nic, bind-dma and `flowcheck doctor`: what failed on a machine's settings."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

COMMAND_FAILED = Entry(
    "machine.command_failed",
    "{command}: {error}",
    remedy="Correct what it says, then run the command again: what was done already is left alone.",
)
SETTING_NOT_TAKEN = Entry(
    "machine.setting_not_taken",
    "the kernel refuses {value} in {file}: {error}",
    cause="The kernel does not allow that value here.",
    remedy="Run it as root, outside of a container; `dmesg` may have the reason.",
)
NOT_A_NOTE = Entry(
    "machine.not_a_note",
    "{path} is not a file of notes by this script",
    remedy="Look at it, and remove it if it is not needed.",
)
NOT_ALL_UNDONE = Entry(
    "machine.not_all_undone",
    "not everything could be undone ({first}): {path} lists what is left",
    remedy="Correct what the sentence names first, and run `undo` again.",
)
SETTING_CHANGED = Entry(
    "machine.setting_changed",
    "{file} should be {wanted} again, but is {value}",
    cause="Another program changed the setting since.",
    remedy="See which (tuned, a boot script), and run `undo` again.",
)
QUEUE_NOT_ENABLED = Entry(
    "machine.queue_not_enabled",
    "the kernel did not enable {queue}",
    also=("device",),
    remedy="{device}/cmd_status has the reason.",
)
DRIVER_NOT_BOUND = Entry(
    "machine.driver_not_bound",
    "{driver} did not take {device}",
    remedy="`dmesg` has the kernel's reason.",
)

# Devices and queues that bind-nic and bind-dma refuse.
ENGINE_IN_USE = Entry(
    "machine.engine_in_use",
    "is in use for something else",
    remedy="`accel-config list` shows for what; take another engine, or free this one.",
)
ENGINE_FIXED = Entry(
    "machine.engine_fixed",
    "its configuration is fixed (sysfs says configurable = 0)",
    remedy="Take another engine: `show` lists them.",
)
ENGINE_QUEUES = Entry(
    "machine.engine_queues",
    "must be 1 to {most}: {engine} has {most} work queues",
    remedy="Give a number of queues in that range.",
)
NO_ENGINE = Entry(
    "machine.no_engine",
    "this machine has no such accelerator",
    remedy="`show` lists those it has.",
)
QUEUE_IN_USE = Entry(
    "machine.queue_in_use",
    "its queue {queue} is in use",
    remedy="Stop the chain that captures through it first: `flowcheck down --run DIR`.",
)
NOT_AN_ENGINE = Entry(
    "machine.not_an_engine",
    "is not a copy engine",
    remedy="`show` lists the copy engines of this machine.",
)
NO_IOMMU_GROUP = Entry(
    "machine.no_iommu_group",
    "has no IOMMU group",
    remedy="Switch the IOMMU on (`intel_iommu=on` or `amd_iommu=on` on the kernel's command "
    "line, and in the firmware), or give `--no-iommu`, which leaves its DMA unchecked.",
)
IOMMU_GROUP_SHARED = Entry(
    "machine.iommu_group_shared",
    "shares IOMMU group {group} with {member}, which {driver} drives",
    remedy="Give both if nothing needs {member}, or move one to another slot.",
)
DEVICE_IN_USE = Entry(
    "machine.device_in_use",
    "is in use by process {pid}",
    remedy="End that process first (`ps -p {pid}` says which it is).",
)
NOT_A_PCI_ADDRESS = Entry(
    "machine.not_a_pci_address",
    "must be a PCI address such as 0000:3b:00.0",
    remedy="`show` lists the devices with their addresses.",
)
NO_DEVICE = Entry(
    "machine.no_device",
    "there is no such PCI device",
    remedy="`show` lists the devices.",
)
DEVICE_NEEDED = Entry(
    "machine.device_needed",
    "this machine needs it: {reasons}",
    remedy="Take another device, or move what needs it to another one first.",
)

# What this machine uses a device for.
DEFAULT_ROUTE = Entry("machine.default_route", "{interface} holds the default route")
HAS_ADDRESS = Entry("machine.has_address", "{interface} has an address")
PORT_OF = Entry("machine.port_of", "{interface} is a port of {bridge}")
CARRIES = Entry("machine.carries", "{interface} carries {upper}")
IS_STORAGE = Entry("machine.is_storage", "it is storage")
VIRTUAL_FUNCTIONS = Entry("machine.virtual_functions", "its virtual functions are in use: {count}")
SSH_SESSION = Entry("machine.ssh_session", "your ssh session comes through {interface}")
HELD_OPEN = Entry("machine.held_open", "process {pid} has {file} open")
COPY_CHANNEL_IN_USE = Entry("machine.copy_channel_in_use", "copy channel {channel} is in use")
ENABLED_IN_IDXD = Entry(
    "machine.enabled_in_idxd", "{engine} is enabled in the kernel's idxd driver"
)
