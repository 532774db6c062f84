"""bind-nic, bind-dma and `flowcheck doctor`: what failed on a machine's settings."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

COMMAND_FAILED = Entry("machine.command_failed", "{command}: {error}")
SETTING_NOT_TAKEN = Entry(
    "machine.setting_not_taken", "the kernel refuses {value} in {file}: {error}"
)
NOT_A_NOTE = Entry(
    "machine.not_a_note",
    "{path} is not a file of notes by this script: look at it, and remove it if it is not needed",
)
NOT_ALL_UNDONE = Entry(
    "machine.not_all_undone", "not everything could be undone ({first}): {path} lists what is left"
)
SETTING_CHANGED = Entry(
    "machine.setting_changed", "{file} should be {wanted} again, but is {value}"
)
QUEUE_NOT_ENABLED = Entry(
    "machine.queue_not_enabled",
    "the kernel did not enable {queue}: {device}/cmd_status has the reason",
)
DRIVER_NOT_BOUND = Entry(
    "machine.driver_not_bound", "{driver} did not take {device}: dmesg has the reason"
)
