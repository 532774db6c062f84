"""Work queues of Intel's data streaming accelerator (idxd) as DPDK's dma_idxd takes them: of type
user, dedicated, with a name that begins with dpdk_.

Files and what each wants of the device's state: the kernel's Documentation/ABI/stable/
sysfs-driver-dma-idxd and drivers/dma/idxd/sysfs.c; the name: DPDK's guides, dmadevs/idxd.
"""

from __future__ import annotations

import re

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.machine_settings import (
    ENGINE_FIXED,
    ENGINE_IN_USE,
    ENGINE_QUEUES,
    NO_ENGINE,
    QUEUE_IN_USE,
    QUEUE_NOT_ENABLED,
)
from flowcheck.ops.node.sysfs_settings import MachineSettings, UndoLog

DEVICES = "sys/bus/dsa/devices"
DRIVERS = "sys/bus/dsa/drivers"
NAME = re.compile(r"dsa(\d+)")
QUEUE_NAME_PREFIX = "dpdk_"
MAX_BATCH_SIZE = "1024"


def dsa_devices(sysfs: MachineSettings) -> list[str]:
    names = [path.rsplit("/", 1)[1] for path in sysfs.names(f"{DEVICES}/dsa*")]
    return [name for name in names if NAME.fullmatch(name)]


def dsa_lines(sysfs: MachineSettings, name: str) -> list[str]:
    """One line for the device and one for each queue that is of any type."""
    device = f"{DEVICES}/{name}"
    lines = [f"{name}: {sysfs.read_value(f'{device}/state')}"]
    for path in sysfs.names(f"{device}/wq*"):
        values = [
            sysfs.read_value(f"{path}/{what}") for what in ("state", "type", "mode", "name", "size")
        ]
        if values[1] not in ("", "none"):
            lines.append(
                f"  {path.rsplit('/', 1)[1]}: {' '.join(value or '-' for value in values)}"
            )
    return lines


def reserve_queues(sysfs: MachineSettings, name: str, queues: int) -> None:
    """Raises ConfigError where the device is in use, StateError where the kernel refuses; what was
    changed is then undone."""
    device, number = f"{DEVICES}/{name}", _number(sysfs, name)
    if sysfs.read_value(f"{device}/state") == "enabled":
        if _ours(sysfs, device):
            sysfs.report(f"    {name} is ready for DPDK already")
            return
        raise ConfigError("device", name, ENGINE_IN_USE())
    if sysfs.read_value(f"{device}/configurable") == "0":
        raise ConfigError("device", name, ENGINE_FIXED())
    most = int(sysfs.read_value(f"{device}/max_work_queues") or "0")
    if not 1 <= queues <= most:
        raise ConfigError("queues", queues, ENGINE_QUEUES(most=most, engine=name))
    notes = UndoLog(sysfs, name)
    try:
        _configure(sysfs, notes, device, number, queues)
        _enable(sysfs, notes, device, number, queues)
    except StateError:
        sysfs.report("    taking back what was done:")
        notes.undo()
        raise


def _number(sysfs: MachineSettings, name: str) -> str:
    matched = NAME.fullmatch(name)
    if matched is None or not sysfs.path(f"{DEVICES}/{name}").exists():
        raise ConfigError("device", name, NO_ENGINE())
    return matched[1]


def _ours(sysfs: MachineSettings, device: str) -> bool:
    """Whether queues of DPDK's are all that is enabled."""
    enabled = [
        w for w in sysfs.names(f"{device}/wq*") if sysfs.read_value(f"{w}/state") == "enabled"
    ]
    return bool(enabled) and all(
        sysfs.read_value(f"{w}/name").startswith(QUEUE_NAME_PREFIX) for w in enabled
    )


def _configure(
    sysfs: MachineSettings, notes: UndoLog, device: str, number: str, queues: int
) -> None:
    """While the device is disabled: it takes none of these later."""
    limits = [
        int(sysfs.read_value(f"{device}/{of}") or "1") for of in ("max_groups", "max_engines")
    ]
    groups = min(*limits, queues)
    size = int(sysfs.read_value(f"{device}/max_work_queues_size") or "0") // queues
    for group in range(groups):
        notes.set_value(f"{device}/engine{number}.{group}/group_id", str(group))
    for queue in range(queues):
        path = f"{device}/wq{number}.{queue}"
        notes.set_value(f"{path}/group_id", str(queue % groups))
        notes.set_value(f"{path}/mode", "dedicated")
        # A new type clears the name, also when it is undone: the name's note comes first.
        if sysfs.read_value(f"{path}/name"):
            notes.record_value(f"{path}/name")
        notes.set_value(f"{path}/type", "user")
        if not sysfs.read_value(f"{path}/name").startswith(QUEUE_NAME_PREFIX):
            sysfs.write(f"{path}/name", f"{QUEUE_NAME_PREFIX}wq{number}.{queue}")
        if sysfs.path(f"{path}/driver_name").exists():
            notes.set_value(f"{path}/driver_name", "user")
        notes.set_value(f"{path}/priority", "1")
        if sysfs.path(f"{path}/max_batch_size").exists():
            limit = sysfs.read_value(f"{device}/max_batch_size")
            notes.set_value(
                f"{path}/max_batch_size",
                str(min(int(MAX_BATCH_SIZE), int(limit or MAX_BATCH_SIZE))),
            )
        notes.set_value(f"{path}/size", str(size))


def _enable(sysfs: MachineSettings, notes: UndoLog, device: str, number: str, queues: int) -> None:
    """First the device, then its queues; before Linux 5.15 one driver, dsa, took both."""
    split = sysfs.path(f"{DRIVERS}/idxd").exists()
    whole, single = (f"{DRIVERS}/{n}" for n in (("idxd", "user") if split else ("dsa", "dsa")))
    name = f"dsa{number}"
    state = (f"{device}/state", "enabled")
    notes.trigger(f"{whole}/bind", name, (f"{whole}/unbind", name), state)
    for queue in range(queues):
        own = f"wq{number}.{queue}"
        state = (f"{device}/{own}/state", "enabled")
        notes.trigger(f"{single}/bind", own, (f"{single}/unbind", own), state)
        if sysfs.read_value(state[0]) != "enabled":
            raise StateError(QUEUE_NOT_ENABLED(queue=own, device=device))


def undo(sysfs: MachineSettings, name: str) -> bool:
    """Whether anything was to be undone. Raises ConfigError while a queue is in use."""
    _number(sysfs, name)
    for path in sysfs.names(f"{DEVICES}/{name}/wq*/clients"):
        if sysfs.read_value(path) not in ("", "0"):
            queue = path.split("/")[-2]
            raise ConfigError("device", name, QUEUE_IN_USE(queue))
    return UndoLog(sysfs, name).undo()
