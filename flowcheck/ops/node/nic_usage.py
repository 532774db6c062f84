"""What this machine uses a NIC for (routes, addresses, bridges), read from /sys and /proc.

A NIC in use is no capture port, and taking it from the kernel may cut the operator off.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowcheck.findings.catalog.machine_settings import CARRIES, DEFAULT_ROUTE, HAS_ADDRESS, PORT_OF
from flowcheck.findings.finding import Finding
from flowcheck.ops.node.machine_checks import kernel_file_text

IFF_UP = 0x1
"""net/if.h"""
LINK_LOCAL = "20"
"""Scope in /proc/net/if_inet6 of the address every interface has that is up."""
IPV6_ANY = "0" * 32


@dataclass(frozen=True, slots=True)
class NicUsage:
    """The kernel interfaces of one device."""

    up: tuple[str, ...]
    """Interfaces that are up."""
    would_lose: tuple[Finding, ...]
    """What would be lost: "eth0 holds the default route"."""


def nic_usage_of(root: Path, address: str) -> NicUsage:
    """How the device at PCI `address` is used. root: stands for the file system."""
    up, taken = list[str](), list[Finding]()
    for name in interfaces_of(root, address):
        if _flags(root, name) & IFF_UP:
            up.append(name)
        taken += _roles(root, name)
    return NicUsage(tuple(up), tuple(taken))


def interfaces_of(root: Path, address: str) -> list[str]:
    """The kernel's names of the device at PCI `address`."""
    device = root / "sys/bus/pci/devices" / address
    # virtio has its own bus between the device and the interface.
    return sorted(path.name for path in [*device.glob("net/*"), *device.glob("*/net/*")])


def _flags(root: Path, interface: str) -> int:
    try:
        return int(kernel_file_text(root / "sys/class/net" / interface / "flags"), 16)
    except ValueError:
        return 0


def _roles(root: Path, interface: str) -> list[Finding]:
    """What is built on the interface."""
    found = []
    routes = _routes(root, interface)
    if "default" in routes:
        found.append(DEFAULT_ROUTE(interface))
    elif routes or _has_ipv6_address(root, interface):
        found.append(HAS_ADDRESS(interface))
    folder = root / "sys/class/net" / interface
    if (folder / "master").exists():
        bridge = (folder / "master").resolve().name
        found.append(PORT_OF(interface=interface, bridge=bridge))
    above = [path.name.removeprefix("upper_") for path in sorted(folder.glob("upper_*"))]
    ports_of = (folder / "master").resolve().name
    found += [CARRIES(interface=interface, upper=name) for name in above if name != ports_of]
    return found


def _routes(root: Path, interface: str) -> set[str]:
    """ "default" and "other" routes of the main tables; an IPv4 address has one to its network."""
    found = set()
    for line in kernel_file_text(root / "proc/net/route").splitlines()[1:]:
        name, destination, _, _, _, _, _, mask, *_ = line.split()
        if name == interface:
            found.add("default" if int(destination, 16) == int(mask, 16) == 0 else "other")
    for line in kernel_file_text(root / "proc/net/ipv6_route").splitlines():
        destination, length, *_, name = line.split()
        if name == interface and destination == IPV6_ANY and length == "00":
            found.add("default")
    return found


def _has_ipv6_address(root: Path, interface: str) -> bool:
    lines = map(str.split, kernel_file_text(root / "proc/net/if_inet6").splitlines())
    return any(name == interface and scope != LINK_LOCAL for _, _, _, scope, _, name in lines)
