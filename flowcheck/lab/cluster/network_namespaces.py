"""Network namespaces: create, enter, remove, run a command inside. Nothing here forks a helper
process, so that a kill at any point leaves only what existed then. Needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError, netns

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import KERNEL_REFUSED

FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000  # linux/sched.h
OWN_NAMESPACE = "/proc/thread-self/ns/net"
# Python has os.setns and os.unshare from 3.12 on.
_libc = ctypes.CDLL(None, use_errno=True)
HIDE_FOLDERS_SCRIPT = (
    'n=$1; shift; while [ $n -gt 0 ]; do mount -t tmpfs -o ro none "$1" || exit 126; shift; '
    'n=$((n-1)); done; exec "$@"'
)
"""Shell script: mounts an empty tmpfs over the first `n` arguments, then executes the command that
follows."""


@contextmanager
def requires_kernel_feature(what: str, feature: str) -> Iterator[None]:
    """Context manager that turns the kernel's refusal of `what` into an error naming the missing
    `feature`. Raises FlowCheckError."""
    try:
        yield
    except NetlinkError as error:
        reason = os.strerror(error.code)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return
    raise FlowCheckError(KERNEL_REFUSED(what=what, error=reason, feature=feature))


@contextmanager
def in_namespace(namespace: str) -> Iterator[None]:
    """Context manager: this thread, and every process that it starts, is in `namespace`."""
    home = os.open(OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call(_libc.setns, there, CLONE_NEWNET)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _call(_libc.setns, home, CLONE_NEWNET)
    finally:
        os.close(home)


@contextmanager
def netlink(namespace: str) -> Iterator[IPRoute]:
    """Context manager with a netlink socket of `namespace`; this thread is in it as well."""
    with in_namespace(namespace), IPRoute() as route:
        yield route


def create(namespace: str) -> None:
    """Creates a namespace with lo up and IPv6 disabled, which would send its own traffic."""
    home = os.open(OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with requires_kernel_feature(
            "a network namespace", "root (CAP_SYS_ADMIN) and CONFIG_NET_NS"
        ):
            _call(_libc.unshare, CLONE_NEWNET)
            try:
                netns.attach(namespace, threading.get_native_id())
            finally:
                _call(_libc.setns, home, CLONE_NEWNET)
    finally:
        os.close(home)
    with netlink(namespace) as route:
        route.link("set", index=1, state="up")
        for which in ("all", "default"):
            switch = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
            if switch.exists():
                switch.write_text("1")


def remove(namespace: str) -> None:
    """Removes a namespace, its links first, so that they are gone on return. Also for an
    incomplete one."""
    try:
        with netlink(namespace) as route:
            for link in route.get_links():
                kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
                if kind in ("veth", "bridge"):
                    _remove_link(route, link["index"])
    except OSError:
        # A file nothing was mounted on yet is no namespace.
        pass
    netns.remove(namespace)


def existing(beginning: str) -> list[str]:
    """Namespaces whose names start with `beginning`."""
    if not FOLDER.is_dir():
        return []
    return sorted(path.name for path in FOLDER.iterdir() if path.name.startswith(beginning))


def command_prefix_in(namespace: str, hide: Sequence[Path] = ()) -> list[str]:
    """Command prefix that runs a command in `namespace`. hide: folders that are empty for the
    command, like the files of another machine."""
    prefix = ["ip", "netns", "exec", namespace]
    if hide:
        prefix += ["sh", "-c", HIDE_FOLDERS_SCRIPT, "hide", str(len(hide)), *map(str, hide)]
    return prefix


def run_in(
    namespace: str, argv: Sequence[str], *, hide: Sequence[Path] = (), **options: Any
) -> subprocess.Popen[Any]:
    """Starts a command in `namespace`. hide: as in command_prefix_in();
    options: as for subprocess.Popen."""
    return subprocess.Popen([*command_prefix_in(namespace, hide), *argv], **options)


def _remove_link(route: IPRoute, index: int) -> None:
    try:
        route.link("del", index=index)
    except NetlinkError as error:
        # ENODEV: it went with its other end.
        if error.code != 19:
            raise


def _call(function: Any, *arguments: int) -> None:
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
