"""Why a PCI device must not be taken from the kernel: routes, ssh session, storage, open files,
virtual functions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.machine_settings import (
    COPY_CHANNEL_IN_USE,
    DEVICE_NEEDED,
    ENABLED_IN_IDXD,
    HELD_OPEN,
    IS_STORAGE,
    NO_DEVICE,
    NOT_A_PCI_ADDRESS,
    SSH_SESSION,
    VIRTUAL_FUNCTIONS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.node import nic_usage
from flowcheck.ops.node.sysfs_settings import MachineSettings

PCI_DEVICES = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
STORAGE, BRIDGE = 0x01, 0x06
"""Base classes of PCI (pci.ids)."""


def checked_address(sysfs: MachineSettings, address: str) -> str:
    """Raises ConfigError for what is no PCI device here."""
    if not ADDRESS.fullmatch(address):
        raise ConfigError("device", address, NOT_A_PCI_ADDRESS())
    if not sysfs.path(f"{PCI_DEVICES}/{address}").exists():
        raise ConfigError("device", address, NO_DEVICE())
    return address


def base_class(sysfs: MachineSettings, address: str) -> int:
    told = sysfs.read_value(f"{PCI_DEVICES}/{address}/class")
    return int(told, 16) >> 16 if told else -1


def uses_of_device(
    sysfs: MachineSettings, address: str, environment: Mapping[str, str] = os.environ
) -> list[Finding]:
    """What this machine uses the device for; empty where nothing needs it."""
    found = list(nic_usage.nic_usage_of(sysfs.root, address).would_lose)
    if base_class(sysfs, address) == STORAGE:
        found.append(IS_STORAGE())
    live = sysfs.read_value(f"{PCI_DEVICES}/{address}/sriov_numvfs")
    if live not in ("", "0"):
        found.append(VIRTUAL_FUNCTIONS(live))
    for name in nic_usage.interfaces_of(sysfs.root, address):
        if _ssh_through(sysfs, name, environment):
            found.append(SSH_SESSION(name))
    for verbs in sysfs.names(f"{PCI_DEVICES}/{address}/infiniband_verbs/*"):
        device = "/dev/infiniband/" + verbs.rsplit("/", 1)[1]
        found += [HELD_OPEN(pid=pid, file=device) for pid in users_of(sysfs, device)]
    for told in sysfs.names(f"{PCI_DEVICES}/{address}/dma/*/in_use"):
        if sysfs.read_value(told) not in ("", "0"):
            found.append(COPY_CHANNEL_IN_USE(told.split("/")[-2]))
    for told in sysfs.names(f"{PCI_DEVICES}/{address}/dsa*/state"):
        if sysfs.read_value(told) == "enabled":
            found.append(ENABLED_IN_IDXD(told.split("/")[-2]))
    return found


def refuse_device_in_use(sysfs: MachineSettings, address: str) -> None:
    """Raises ConfigError that says what is lost otherwise."""
    why = uses_of_device(sysfs, address)
    if why:
        raise ConfigError("device", address, DEVICE_NEEDED(why))


def users_of(sysfs: MachineSettings, device: str) -> list[int]:
    """Processes that hold a device file open."""
    found = set()
    for link in sysfs.root.glob("proc/[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == device:
                found.add(int(link.parts[-3]))
        except (OSError, ValueError):
            continue
    return sorted(found)


def _ssh_through(sysfs: MachineSettings, interface: str, environment: Mapping[str, str]) -> bool:
    """Whether the route to the other end of this session leaves through the interface. Through a
    VLAN or a bridge on top of it is told by those."""
    client = environment.get("SSH_CONNECTION", environment.get("SSH_CLIENT", "")).split()
    if not client:
        return False
    told = sysfs.query(["ip", "-o", "route", "get", client[0].partition("%")[0]])
    return re.search(rf"\bdev {re.escape(interface)}\b", told) is not None
