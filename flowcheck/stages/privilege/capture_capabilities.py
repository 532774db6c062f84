"""The capabilities that a capture needs, by the kind of its source."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.config import SourceConfig
from flowcheck.plane.frame_sources.dpdk_eal import parse_device
from flowcheck.stages.privilege import privilege_syscalls

FILE_DRIVERS = ("net_pcap", "net_null", "net_ring")
"""DPDK drivers of devices that are not a port of this machine."""
INTERFACE_CAPABILITIES = frozenset(
    {
        privilege_syscalls.CAP_NET_RAW,
        privilege_syscalls.CAP_NET_ADMIN,
        privilege_syscalls.CAP_SYS_NICE,
        privilege_syscalls.CAP_IPC_LOCK,
    }
)
"""Capabilities for kernel interfaces, in this order: packet sockets; the promiscuous flag; priority
over ordinary threads; pinned memory."""
NIC_CAPABILITIES = INTERFACE_CAPABILITIES | {
    privilege_syscalls.CAP_DAC_OVERRIDE,
    privilege_syscalls.CAP_SYS_RAWIO,
    privilege_syscalls.CAP_SYS_ADMIN,
}
"""Capabilities for NICs under DPDK. The additional ones are for the device's files below /dev and
/sys, which belong to root; I/O ports; physical addresses."""
XDP_CAPABILITIES = INTERFACE_CAPABILITIES | {
    privilege_syscalls.CAP_BPF,
    privilege_syscalls.CAP_SYS_ADMIN,
}
"""Capabilities for AF_XDP, which loads a program into the kernel. Kernels before 5.8 have no
CAP_BPF and require CAP_SYS_ADMIN."""
SKELETON = "dma_skeleton"


def capture_capabilities_of(sources: Sequence[SourceConfig]) -> frozenset[int]:
    """The capabilities that captures of all these sources need; empty for files."""
    rights: frozenset[int] = frozenset()
    for source in sources:
        rights |= _of_source(source)
        if any(not engine.startswith(SKELETON) for engine in source.engines):
            rights |= NIC_CAPABILITIES
    return rights


def _of_source(source: SourceConfig) -> frozenset[int]:
    if source.file is not None:
        return frozenset()
    if source.pci is not None:
        return NIC_CAPABILITIES
    device = parse_device(source.vdev) if source.vdev is not None else None
    if device is None:
        return INTERFACE_CAPABILITIES
    if device.driver == "net_af_xdp":
        return XDP_CAPABILITIES
    named = any(device.values(key) for key in ("iface", "rx_iface", "tx_iface", "rx_iface_in"))
    return frozenset() if device.driver in FILE_DRIVERS and not named else INTERFACE_CAPABILITIES
