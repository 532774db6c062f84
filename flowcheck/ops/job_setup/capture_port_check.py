"""Checks that the NICs and interfaces that a job file names exist, before memory is allocated
and DPDK starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from flowcheck.config import SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.starting_a_chain import BAD_PCI_ADDRESS, NO_DEVICE, NO_INTERFACE
from flowcheck.ops.node import installed_dpdk_drivers
from flowcheck.ops.node.nic_usage import interfaces_of
from flowcheck.plane.frame_sources.dpdk_eal import PCI, parse_device


def interfaces() -> list[str]:
    """Of the network namespace this process is in, as if_nameindex(3) tells them."""
    return [name for _, name in socket.if_nameindex()]


def check_capture_ports(
    sources: Sequence[SourceConfig],
    job: Path = Path("JOB.toml"),
    *,
    root: Path = Path("/"),
    names: Callable[[], Sequence[str]] = interfaces,
) -> None:
    """Raises ConfigError for a port that is not there. job: the job file, for the command that a
    remedy names; root: stands for the file system; names: interfaces that are there."""
    for source in sources:
        key, name = "source.interface", source.interface
        if source.vdev is not None:
            key, name = "source.vdev", parse_device(source.vdev).interface
        if name is not None and name not in (there := names()):
            raise ConfigError(key, name, NO_INTERFACE(there=there or ["none"], job=job))
        if source.pci is not None:
            _check_device(source.pci, root)


def _check_device(told: str, root: Path) -> None:
    address = parse_device(told).name
    if PCI.fullmatch(address) is None:
        raise ConfigError("source.pci", told, BAD_PCI_ADDRESS())
    devices = installed_dpdk_drivers.pci_devices(root / "sys")
    if address in (device.address for device in devices):
        return
    ports = [_words(device, root) for device in devices if device.is_network]
    raise ConfigError("source.pci", told, NO_DEVICE(ports or ["none"]))


def _words(device: installed_dpdk_drivers.PciDevice, root: Path) -> str:
    """`0000:3b:00.0 (eth0, bound to mlx5_core)`."""
    bound = f"bound to {device.bound_to or 'nothing'}"
    return f"{device.address} ({', '.join([*interfaces_of(root, device.address), bound])})"
