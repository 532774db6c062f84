"""Checks of a machine: huge pages, /dev/shm, memory, CPU flags, cores, capabilities, file
systems."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowcheck.findings.catalog.starting_a_chain import NO_PACKET_SOCKETS
from flowcheck.plane.shared_memory.hugepage_memory import (
    HUGE_PAGE_BYTES,
    SHM_HUGE,
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


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One line of the report."""

    name: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty where nothing need be done."""


def number(path: Path) -> int:
    """An integer file of /sys or /proc; 0 where it is missing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def text_of(path: Path) -> str:
    """A file of /sys or /proc; empty where it is missing."""
    try:
        return path.read_text()
    except OSError:
        return ""


def hugepages(root: Path, need_bytes: int) -> MachineCheck:
    pool = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    total, free = number(pool / "nr_hugepages"), number(pool / "free_hugepages")
    pages = -(-need_bytes // HUGE_PAGE_BYTES)
    text = f"{total} pages of 2 MiB, {free} free, {pages} needed"
    if free >= pages:
        return MachineCheck("hugepages", "ok", text)
    advice = f"correct but slower without: scripts/hugepages reserve {total + pages - free}"
    return MachineCheck("hugepages", "warn", text, advice)


def mount(root: Path) -> MachineCheck:
    mounts = hugetlbfs_mounts(root / "proc/mounts") if (root / "proc/mounts").exists() else []
    if mounts:
        return MachineCheck("hugetlbfs", "ok", f"mounted at {', '.join(map(str, mounts))}")
    advice = "scripts/hugepages reserve N mounts it"
    return MachineCheck("hugetlbfs", "warn", "not mounted: rings go to /dev/shm", advice)


def shm_pages(root: Path, need_bytes: int) -> MachineCheck:
    """Of what lies in /dev/shm: an optimizer step there is slower by the pages it walks."""
    mounts = root / "proc/mounts"
    if mounts.exists() and shm_has_hugepages(mounts):
        return MachineCheck("/dev/shm pages", "ok", "2 MiB as the kernel finds them")
    if hugepages(root, need_bytes).level == "ok" and mount(root).level == "ok":
        return MachineCheck("/dev/shm pages", "ok", "4 KiB; hugetlbfs has room")
    advice = f"replica, gradients and rings are slower with them: {SHM_HUGE}"
    return MachineCheck("/dev/shm pages", "warn", "4 KiB", advice)


def shm(root: Path, need_bytes: int) -> MachineCheck:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError as error:
        return MachineCheck(
            "/dev/shm", "fail", f"not usable: {error.strerror}", "mount a tmpfs there"
        )
    free = status.f_bavail * status.f_frsize
    text = f"{free >> 20} MiB free, {need_bytes >> 20} MiB needed where huge pages are missing"
    if free >= need_bytes:
        return MachineCheck("/dev/shm", "ok", text)
    return MachineCheck("/dev/shm", "warn", text, "mount -o remount,size=N /dev/shm, or huge pages")


def memory(root: Path, need_bytes: int) -> MachineCheck:
    available = available_bytes(root / "proc/meminfo")
    found = f"{available >> 20} MiB available, {need_bytes >> 20} MiB needed"
    if available >= need_bytes:
        return MachineCheck("memory", "ok", found)
    return MachineCheck(
        "memory", "fail", found, "a smaller ring or staging, or a machine with more"
    )


def cpu(root: Path) -> MachineCheck:
    matched = re.search(r"^flags\s*:\s*(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    have = set(matched[1].split()) if matched else set()
    words = [f"{flag} {'yes' if flag in have else 'no'}" for flag in (*SLOWER_WITHOUT, "avx512f")]
    if have.issuperset(SLOWER_WITHOUT):
        return MachineCheck("cpu", "ok", ", ".join(words))
    advice = "correct but slower: copies and CRCs take their plain twins"
    return MachineCheck("cpu", "warn", ", ".join(words), advice)


def cores(root: Path) -> MachineCheck:
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
    count = len(list((root / "sys/devices/system/cpu").glob("cpu[0-9]*")))
    text = f"{count} cores, {nodes} NUMA node{'s' if nodes > 1 else ''}"
    if count >= 4:
        return MachineCheck("cores", "ok", text)
    return MachineCheck(
        "cores", "warn", text, "four stages share them: keep source.idle_us above 0"
    )


def rights(root: Path) -> MachineCheck:
    if _may(root, CAP_NET_RAW):
        return MachineCheck("rights", "ok", "may open packet sockets")
    found = str(NO_PACKET_SOCKETS())
    advice = "run as root to capture; capture files need no rights"
    return MachineCheck("rights", "warn", found, advice)


def real_time(root: Path) -> MachineCheck:
    """Whether a capture loop can run before other work (stages/packet_capture/capture_stage.py)."""
    told = text_of(root / "proc/self/limits")
    limit = re.search(r"^Max realtime priority\s+(\w+)", told, re.MULTILINE)
    if _may(root, CAP_SYS_NICE) or (limit and limit[1] != "0"):
        return MachineCheck("priority", "ok", "capture may run before other work (SCHED_RR)")
    return MachineCheck(
        "priority",
        "warn",
        "capture may not take real-time priority: frames are lost while other work runs",
        "run as root, with CAP_SYS_NICE or with LimitRTPRIO=1 (ulimit -r 1); or give it a core of "
        "its own and source.idle_us = 0",
    )


def _may(root: Path, capability: int) -> bool:
    """Whether this process has the capability, by its number."""
    status = text_of(root / "proc/self/status")
    matched = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return matched is not None and bool(int(matched[1], 16) >> capability & 1)


def run_folder(root: Path, folder: Path) -> MachineCheck:
    """root: where proc/mounts is read; folder: the run directory, there or not yet."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    kind = file_system(root, there)
    text = f"{folder} on {kind or 'an unknown file system'}"
    if len(str(folder.absolute()).encode()) + SOCKET_NAME_BYTES > IPC_PATH_BYTES_MAX:
        advice = f"socket paths may have {IPC_PATH_BYTES_MAX} bytes: choose a shorter folder"
        return MachineCheck("run folder", "fail", text, advice)
    if not os.access(there, os.W_OK):
        return MachineCheck(
            "run folder", "fail", f"{text}, not writable", "choose another, or be root"
        )
    if kind.startswith(SLOW_FILE_SYSTEMS):
        return MachineCheck("run folder", "warn", text, "sockets and logs want a local file system")
    return MachineCheck("run folder", "ok", text)


def file_system(root: Path, path: Path) -> str:
    """The kind of file system `path` lies on, by the longest mount point above it."""
    best, kind = "", ""
    for line in text_of(root / "proc/mounts").splitlines():
        _, where, what, *_ = line.split()
        if path.resolve().is_relative_to(where) and len(where) >= len(best):
            best, kind = where, what
    return kind
