"""Linux system calls to drop privileges permanently: capabilities, prctl, mount namespaces.

Python and the C library have functions for few of them. Capabilities belong to a thread, so these
calls are for a process with one thread that executes a program afterwards.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog.privileges import RIGHTS_LEFT

CAP_DAC_OVERRIDE = 1
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_IPC_LOCK = 14
CAP_SYS_RAWIO = 17
CAP_SYS_ADMIN = 21
CAP_SYS_NICE = 23
CAP_BPF = 39
"""Numbers of capabilities, from linux/capability.h."""
NAMES = {
    CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE",
    CAP_NET_ADMIN: "CAP_NET_ADMIN",
    CAP_NET_RAW: "CAP_NET_RAW",
    CAP_IPC_LOCK: "CAP_IPC_LOCK",
    CAP_SYS_RAWIO: "CAP_SYS_RAWIO",
    CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
    CAP_SYS_NICE: "CAP_SYS_NICE",
    CAP_BPF: "CAP_BPF",
}
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 8, 24, 38
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
"""Options of prctl(2), from linux/prctl.h."""
CAPABILITY_VERSION_3 = 0x20080522
"""Version of capset(2)'s header with two 32-bit words for each set (linux/capability.h)."""
CLONE_NEWNS = 0x20000
"""Flag of unshare(2) and setns(2) for mount namespaces (linux/sched.h)."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
"""Flags of mount(2), from linux/mount.h."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Rights:
    """The users and capabilities of a process, from /proc/PID/status (proc(5)). Sets of
    capabilities are bit masks."""

    users: tuple[int, ...]
    """Real, effective, saved and file system user."""
    permitted: int
    effective: int
    inheritable: int
    ambient: int
    bounding: int
    no_new: bool

    @property
    def above_ordinary(self) -> bool:
        """Whether the process has more privileges than an ordinary user."""
        held = self.permitted | self.effective | self.inheritable | self.ambient
        return 0 in self.users or held != 0


def rights_of(pid: int | str = "self") -> Rights:
    """The privileges of a process. Raises OSError if the process is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return Rights(
        users=tuple(map(int, told["Uid"].split())),
        permitted=int(told["CapPrm"], 16),
        effective=int(told["CapEff"], 16),
        inheritable=int(told["CapInh"], 16),
        ambient=int(told.get("CapAmb", "0"), 16),
        bounding=int(told["CapBnd"], 16),
        no_new=told.get("NoNewPrivs", "0").strip() == "1",
    )


def capability_mask(capabilities: Iterable[int]) -> int:
    """The bit mask of a set of capabilities, as in /proc/PID/status."""
    return sum(1 << number for number in set(capabilities))


def become_user(user: int, group: int, groups: Sequence[int], keep: frozenset[int]) -> None:
    """Makes this process run as another user, permanently. It and the programs that it executes
    have at most the capabilities in `keep`. Raises OSError if the kernel refuses, StateError if the
    process has more privileges afterwards."""
    before = rights_of()
    kept = before.permitted & capability_mask(keep)
    if before.effective & capability_mask([CAP_SETPCAP]):
        for number in range(64):
            if before.bounding & ~kept & capability_mask([number]):
                _prctl(PR_CAPBSET_DROP, number)
    if set(before.users) != {user} or os.getresgid() != (group, group, group):
        _prctl(PR_SET_KEEPCAPS, 1)
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        _prctl(PR_SET_KEEPCAPS, 0)
    _set_capabilities(kept)
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(64):
        if kept & capability_mask([number]):
            _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    now = rights_of()
    sets = now.permitted | now.effective | now.inheritable | now.ambient
    if set(now.users) != {user} or sets & ~kept or not now.no_new:
        raise StateError(RIGHTS_LEFT(left=str(now), user=user))


def adopt_orphans() -> None:
    """Makes orphaned descendants of this process its children."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Makes descendants that lose their parent meanwhile children of this process. Others are left
    to whom they fall: nobody here would wait for them."""
    before = ctypes.c_int()
    _call(_libc.prctl, PR_GET_CHILD_SUBREAPER, ctypes.byref(before), *[ctypes.c_ulong()] * 3)
    adopt_orphans()
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, before.value)


def own_mounts() -> None:
    """Gives this process its own mount namespace: only it and its children see what it mounts, and
    they still see what others mount. Raises OSError if the kernel refuses."""
    _call(_libc.unshare, CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_SLAVE)


def mount(what: str, where: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2). Raises OSError."""
    told = [None if text is None else text.encode() for text in (what, where, kind)]
    _call(_libc.mount, *told, ctypes.c_ulong(flags), options.encode())


def unmount(where: str, flags: int) -> None:
    """umount2(2). Raises OSError."""
    _call(_libc.umount2, where.encode(), flags)


def enter_mounts(descriptor: int) -> None:
    """Returns to the mount namespace of `descriptor`. Raises OSError."""
    _call(_libc.setns, descriptor, CLONE_NEWNS)


def _set_capabilities(kept: int) -> None:
    """Sets the permitted, effective and inheritable capabilities to the same set (capset(2))."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    _call(_libc.capset, header, (ctypes.c_uint32 * 6)(low, low, low, high, high, high))


def _prctl(option: int, first: int, second: int = 0) -> None:
    _call(_libc.prctl, option, *(ctypes.c_ulong(n) for n in (first, second, 0, 0)))


def _call(function: object, *arguments: object) -> None:
    if function(*arguments) < 0:  # type: ignore[operator]
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
