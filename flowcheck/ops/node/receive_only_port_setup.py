"""A capture port that stays with the kernel, as mlx5 does (bifurcated), or whose mirror is taken by
interface name: it listens to all, and never sends a frame back to the switch of its own accord.

A port that answers a full buffer with pause frames makes the switch hold copies back, in buffer it
shares with the job's own traffic.
"""

from __future__ import annotations

import re

from flowcheck.ops.node import nic_usage
from flowcheck.ops.node.device_in_use import PCI_DEVICES
from flowcheck.ops.node.sysfs_settings import MachineSettings, UndoLog

BIFURCATED = ("mlx5_core", "mlx4_core")
"""DPDK works beside these drivers, not in place of them (DPDK guides, nics/mlx5)."""
IFF_PROMISC = 0x100
"""net/if.h"""
LLDP_OFF = {"disable-fw-lldp": "on", "fw-lldp-agent": "off"}
"""Private flags of i40e and ice: the NIC's own agent, which takes PFC settings from the switch."""


def make_receive_only(sysfs: MachineSettings, address: str) -> None:
    """Every interface of the device. Raises StateError where one does not take it."""
    notes = UndoLog(sysfs, address)
    for name in nic_usage.interfaces_of(sysfs.root, address):
        _listen_to_all(sysfs, notes, name)
        _quieten(sysfs, notes, name)
    for line in manual_steps(sysfs, address):
        sysfs.report(f"    # {line}" if line else "")


def disable_firmware_lldp(sysfs: MachineSettings, address: str) -> None:
    """Of a device about to leave the kernel: its firmware keeps on what the driver does not."""
    notes = UndoLog(sysfs, address)
    for name in nic_usage.interfaces_of(sysfs.root, address):
        _lldp(sysfs, notes, name)


def _listen_to_all(sysfs: MachineSettings, notes: UndoLog, name: str) -> None:
    flags = int(sysfs.read_value(f"sys/class/net/{name}/flags") or "0", 16)
    if not flags & IFF_PROMISC:
        undo = ["ip", "link", "set", name, "promisc", "off"]
        notes.command(["ip", "link", "set", name, "promisc", "on"], undo)
    if not flags & nic_usage.IFF_UP:
        notes.command(["ip", "link", "set", name, "up"], ["ip", "link", "set", name, "down"])


def _quieten(sysfs: MachineSettings, notes: UndoLog, name: str) -> None:
    """802.3x pause off both ways, as `ethtool -a` tells it."""
    told = sysfs.query(["ethtool", "-a", name])
    found = dict(re.findall(r"^(Autonegotiate|RX|TX):\s+(on|off)", told, re.MULTILINE))
    if {"RX", "TX"} <= found.keys() and "on" in (found["RX"], found["TX"]):
        auto = ["autoneg", "off"] if found.get("Autonegotiate") == "on" else []
        back = ["autoneg", "on"] if auto else []
        undo = ["ethtool", "-A", name, *back, "rx", found["RX"], "tx", found["TX"]]
        notes.command(["ethtool", "-A", name, *auto, "rx", "off", "tx", "off"], undo)
    elif not found:
        sysfs.report(f"    {name} does not tell its flow control (ethtool -a): see that it is off")
    _lldp(sysfs, notes, name)


def _lldp(sysfs: MachineSettings, notes: UndoLog, name: str) -> None:
    told = sysfs.query(["ethtool", "--show-priv-flags", name])
    for flag, value in re.findall(r"^([\w-]+)\s*:\s*(on|off)", told, re.MULTILINE):
        if LLDP_OFF.get(flag, value) != value:
            set_flag = ["ethtool", "--set-priv-flags", name, flag]
            notes.command([*set_flag, LLDP_OFF[flag]], [*set_flag, value])


def manual_steps(sysfs: MachineSettings, address: str) -> list[str]:
    """What is only printed: firmware settings, and those another tool owns."""
    lines = []
    for name in nic_usage.interfaces_of(sysfs.root, address):
        lines += [
            f"priority flow control, where `dcb pfc show dev {name}` says on:",
            f"  dcb pfc set dev {name} prio-pfc all:off",
        ]
    if sysfs.read_value(f"{PCI_DEVICES}/{address}/driver") != "mlx5_core":
        return lines
    return [
        *lines,
        "RoCE frames reach DPDK only where the NIC itself does not take them. Either, until the",
        "next restart; the interface and RDMA of this port go and come again at the second line:",
        f"  devlink dev param set pci/{address} name enable_roce value false cmode driverinit",
        f"  devlink dev reload pci/{address}",
        "or for good, in the firmware of this function, from the next restart of the machine on",
        "(mlxfwreset would take both ports of the card down at once):",
        f"  mlxconfig -d {address} set ROCE_CONTROL=1",
        f"back: value true, or mlxconfig -d {address} set ROCE_CONTROL=2; look first with",
        f"  devlink dev param show pci/{address} name enable_roce; mlxconfig -d {address} query",
    ]
