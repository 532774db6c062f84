"""Checks of a machine: huge pages, /dev/shm, memory, CPU flags, cores, capabilities, file
systems."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from flowcheck.findings.catalog import machine_readiness as told
from flowcheck.findings.catalog.starting_a_chain import NO_PACKET_SOCKETS
from flowcheck.findings.finding import Finding, code_in_words
from flowcheck.plane.shared_memory.shared_memory_location import (
    HUGE_PAGE_BYTES,
    REMOUNT_SHM_COMMAND,
    available_bytes,
    hugetlbfs_mounts,
    shm_has_hugepages,
)

Level = Literal["ok", "warn", "fail"]
IPC_PATH_BYTES_MAX = 107
"""sun_path of a Unix socket less its terminating zero (unix(7))."""
SOCKET_NAME_BYTES = len("/sockets/parse-00")
CAP_NET_RAW, CAP_SYS_NICE = 13, 23
"""linux/capability.h"""
SLOW_FILE_SYSTEMS = ("9p", "nfs", "cifs", "fuse", "overlay")
SLOWER_WITHOUT = ("avx2", "pclmulqdq")


class CheckKind(StrEnum):
    """What one check looks at."""

    DPDK = "dpdk"
    NIC_DRIVERS = "nic_drivers"
    COPY_ENGINES = "copy_engines"
    DEVICE = "device"
    """One PCI device."""
    NICS = "nics"
    IOMMU = "iommu"
    HUGE_PAGES = "huge_pages"
    HUGETLBFS = "hugetlbfs"
    DEV_SHM = "dev_shm"
    DEV_SHM_PAGES = "dev_shm_pages"
    MEMORY = "memory"
    CPU = "cpu"
    CORES = "cores"
    PACKET_SOCKETS = "packet_sockets"
    PRIORITY = "priority"
    RUN_FOLDER = "run_folder"


_SAID_AS = {
    CheckKind.NIC_DRIVERS: "NIC drivers",
    CheckKind.COPY_ENGINES: "copy engines",
    CheckKind.NICS: "NIC",
    CheckKind.IOMMU: "IOMMU/VFIO",
    CheckKind.HUGE_PAGES: "hugepages",
    CheckKind.DEV_SHM: "/dev/shm",
    CheckKind.DEV_SHM_PAGES: "/dev/shm pages",
    CheckKind.PACKET_SOCKETS: "rights",
    CheckKind.RUN_FOLDER: "run folder",
}
"""Where the words are not the code's own."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One line of the report."""

    check: CheckKind
    level: Level
    found: Finding
    advice: Finding | None = None
    """What to do; None where nothing need be done."""
    device: str = ""
    """PCI address; empty where it is of no device."""

    @property
    def name(self) -> str:
        """What was looked at, for people."""
        return self.device or code_in_words(self.check, _SAID_AS)


def kernel_file_number(path: Path) -> int:
    """An integer file of /sys or /proc; 0 where it is missing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def kernel_file_text(path: Path) -> str:
    """A file of /sys or /proc; empty where it is missing."""
    try:
        return path.read_text()
    except OSError:
        return ""


def check_hugepages(root: Path, need_bytes: int) -> MachineCheck:
    pool = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    total, free = (
        kernel_file_number(pool / "nr_hugepages"),
        kernel_file_number(pool / "free_hugepages"),
    )
    pages = -(-need_bytes // HUGE_PAGE_BYTES)
    found = told.HUGE_PAGES(pages=total, free=free, needed=pages)
    if free >= pages:
        return MachineCheck(CheckKind.HUGE_PAGES, "ok", found)
    advice = told.RESERVE_HUGE_PAGES(total + pages - free)
    return MachineCheck(CheckKind.HUGE_PAGES, "warn", found, advice)


def check_hugetlbfs_mount(root: Path) -> MachineCheck:
    mounts = hugetlbfs_mounts(root / "proc/mounts") if (root / "proc/mounts").exists() else []
    if mounts:
        return MachineCheck(CheckKind.HUGETLBFS, "ok", told.HUGETLBFS_MOUNTED(mounts))
    found = told.HUGETLBFS_NOT_MOUNTED()
    return MachineCheck(CheckKind.HUGETLBFS, "warn", found, told.MOUNT_HUGETLBFS())


def check_shm_pages(root: Path, need_bytes: int) -> MachineCheck:
    """Of what lies in /dev/shm: an optimizer step there is slower by the pages it walks."""
    mounts = root / "proc/mounts"
    if mounts.exists() and shm_has_hugepages(mounts):
        return MachineCheck(CheckKind.DEV_SHM_PAGES, "ok", told.SHM_PAGES_LARGE())
    if (
        check_hugepages(root, need_bytes).level == "ok"
        and check_hugetlbfs_mount(root).level == "ok"
    ):
        return MachineCheck(CheckKind.DEV_SHM_PAGES, "ok", told.SHM_PAGES_BESIDE_HUGETLBFS())
    advice = told.ENLARGE_SHM_PAGES(REMOUNT_SHM_COMMAND)
    return MachineCheck(CheckKind.DEV_SHM_PAGES, "warn", told.SHM_PAGES_SMALL(), advice)


def check_shm(root: Path, need_bytes: int) -> MachineCheck:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError as error:
        found = told.SHM_UNUSABLE(error.strerror)
        return MachineCheck(CheckKind.DEV_SHM, "fail", found, told.MOUNT_TMPFS())
    free = status.f_bavail * status.f_frsize
    found = told.SHM_ROOM(free_mib=free >> 20, needed_mib=need_bytes >> 20)
    if free >= need_bytes:
        return MachineCheck(CheckKind.DEV_SHM, "ok", found)
    return MachineCheck(CheckKind.DEV_SHM, "warn", found, told.ENLARGE_SHM())


def check_memory(root: Path, need_bytes: int) -> MachineCheck:
    available = available_bytes(root / "proc/meminfo")
    found = told.MEMORY_ROOM(available_mib=available >> 20, needed_mib=need_bytes >> 20)
    if available >= need_bytes:
        return MachineCheck(CheckKind.MEMORY, "ok", found)
    return MachineCheck(CheckKind.MEMORY, "fail", found, told.NEED_LESS_MEMORY())


def check_cpu_flags(root: Path) -> MachineCheck:
    matched = re.search(
        r"^flags\s*:\s*(.*)$", kernel_file_text(root / "proc/cpuinfo"), re.MULTILINE
    )
    have = set(matched[1].split()) if matched else set()
    found = told.CPU_FLAGS(
        [
            (told.CPU_HAS if flag in have else told.CPU_LACKS)(flag)
            for flag in (*SLOWER_WITHOUT, "avx512f")
        ]
    )
    if have.issuperset(SLOWER_WITHOUT):
        return MachineCheck(CheckKind.CPU, "ok", found)
    return MachineCheck(CheckKind.CPU, "warn", found, told.CPU_SLOWER())


def check_cores(root: Path) -> MachineCheck:
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
    count = len(list((root / "sys/devices/system/cpu").glob("cpu[0-9]*")))
    found = (told.CORES if nodes > 1 else told.CORES_ONE_NODE)(cores=count, nodes=nodes)
    if count >= 4:
        return MachineCheck(CheckKind.CORES, "ok", found)
    return MachineCheck(CheckKind.CORES, "warn", found, told.KEEP_IDLE())


def check_capabilities(root: Path) -> MachineCheck:
    if _may(root, CAP_NET_RAW):
        return MachineCheck(CheckKind.PACKET_SOCKETS, "ok", told.PACKET_SOCKETS())
    return MachineCheck(CheckKind.PACKET_SOCKETS, "warn", NO_PACKET_SOCKETS(), told.RUN_AS_ROOT())


def check_real_time(root: Path) -> MachineCheck:
    """Whether a capture loop can run before other work (stages/packet_capture/capture_stage.py)."""
    limits = kernel_file_text(root / "proc/self/limits")
    limit = re.search(r"^Max realtime priority\s+(\w+)", limits, re.MULTILINE)
    if _may(root, CAP_SYS_NICE) or (limit and limit[1] != "0"):
        return MachineCheck(CheckKind.PRIORITY, "ok", told.MAY_RUN_FIRST())
    return MachineCheck(
        CheckKind.PRIORITY, "warn", told.MAY_NOT_RUN_FIRST(), told.ALLOW_REAL_TIME()
    )


def _may(root: Path, capability: int) -> bool:
    """Whether this process has the capability, by its number."""
    status = kernel_file_text(root / "proc/self/status")
    matched = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return matched is not None and bool(int(matched[1], 16) >> capability & 1)


def run_folder_check(root: Path, folder: Path) -> MachineCheck:
    """root: where proc/mounts is read; folder: the run directory, there or not yet."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    kind = file_system_of(root, there)
    found = (
        told.RUN_FOLDER_ON(folder=folder, file_system=kind)
        if kind
        else told.RUN_FOLDER_ANYWHERE(folder)
    )
    if len(str(folder.absolute()).encode()) + SOCKET_NAME_BYTES > IPC_PATH_BYTES_MAX:
        advice = told.SHORTER_RUN_FOLDER(IPC_PATH_BYTES_MAX)
        return MachineCheck(CheckKind.RUN_FOLDER, "fail", found, advice)
    if not os.access(there, os.W_OK):
        found = told.RUN_FOLDER_NOT_WRITABLE(found)
        return MachineCheck(CheckKind.RUN_FOLDER, "fail", found, told.ANOTHER_RUN_FOLDER())
    if kind.startswith(SLOW_FILE_SYSTEMS):
        return MachineCheck(CheckKind.RUN_FOLDER, "warn", found, told.LOCAL_RUN_FOLDER())
    return MachineCheck(CheckKind.RUN_FOLDER, "ok", found)


def file_system_of(root: Path, path: Path) -> str:
    """The kind of file system `path` lies on, by the longest mount point above it."""
    best, kind = "", ""
    for line in kernel_file_text(root / "proc/mounts").splitlines():
        _, where, what, *_ = line.split()
        if path.resolve().is_relative_to(where) and len(where) >= len(best):
            best, kind = where, what
    return kind
