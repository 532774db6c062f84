"""A kernel interface as the kernel and its driver count it: link, speed, frames the NIC lost."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.plane.frame_sources.interface_drops import SYSFS

IFF_UP = 0x1
"""net/if.h"""
SYSFS_COUNTERS = (
    *("rx_packets", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors"),
    *("rx_crc_errors", "rx_frame_errors", "rx_length_errors"),
)
"""Of Documentation/ABI/testing/sysfs-class-net-statistics of Linux. `rx_dropped` is not among them:
it also counts what no protocol of the host wanted, which a mirror port brings by design."""
ARRIVED = ("rx_packets",)
LOST = re.compile(
    r"rx_?\w*(missed|discard|no_?buf|out_of_buffer|fifo_err|over_err|no_dma|alloc_fail)\w*"
    r"|\w*(out_of_buffer|rx_missed)\w*"
)
"""Names of counters of frames that arrived and were lost in the NIC, as sysfs and drivers (mlx5,
ice, ixgbe, i40e, bnxt; `ethtool -S`) have them."""
DAMAGED = re.compile(r"rx_?\w*(crc|frame_err|symbol|jabber|undersize|fcs|corrupt|length_err)\w*")
"""Likewise of frames that the cable damaged."""
DRIVER_COUNTERS_MOST = 8192
"""Counters of a driver that are read. A choice that bounds memory: a port of 64 queues has some
thousand."""


class InterfaceState(msgspec.Struct, frozen=True, kw_only=True):
    """One look at an interface; None where nothing tells."""

    admin_up: bool | None
    link_up: bool | None
    speed_mbps: int | None
    counters: dict[str, int]


NOTHING_KNOWN = InterfaceState(admin_up=None, link_up=None, speed_mbps=None, counters={})


def interface_state(interface: str | None, sysfs: Path = SYSFS) -> InterfaceState:
    """The interface now; None: of a port that has no interface."""
    if interface is None or not (sysfs / interface).is_dir():
        return NOTHING_KNOWN
    flags, carrier = _number(sysfs / interface / "flags"), _number(sysfs / interface / "carrier")
    admin_up = None if flags is None else bool(flags & IFF_UP)
    speed = _number(sysfs / interface / "speed")
    counters = {
        name: value
        for name in SYSFS_COUNTERS
        if (value := _number(sysfs / interface / "statistics" / name)) is not None
    }
    return InterfaceState(
        admin_up=admin_up,
        # `carrier` of an interface that is down cannot be read.
        link_up=False if admin_up is False else None if carrier is None else bool(carrier),
        speed_mbps=speed if speed is not None and speed > 0 else None,
        counters=counters | _driver_counters(interface),
    )


def grown(before: InterfaceState, after: InterfaceState) -> dict[str, int]:
    """{counter: by how much it grew}, of those that did and that say what became of frames."""
    return {
        name: value - before.counters.get(name, 0)
        for name, value in after.counters.items()
        if value > before.counters.get(name, 0)
    }


def lost_counters(counters: dict[str, int]) -> dict[str, int]:
    """Those of frames that the NIC lost."""
    return {name: value for name, value in counters.items() if LOST.fullmatch(name)}


def damaged_counters(counters: dict[str, int]) -> dict[str, int]:
    """Those of frames that arrived damaged."""
    return {name: value for name, value in counters.items() if DAMAGED.fullmatch(name)}


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(), 0)
    return None


def _driver_counters(interface: str) -> dict[str, int]:
    """Those of `ethtool -S` that say what became of frames; empty where the driver has none."""
    from pyroute2.ethtool.ioctl import EthtoolError, IoctlEthtool

    found: dict[str, int] = {}
    asked = IoctlEthtool()
    try:
        asked.change_ifname(interface)
        counters = asked.get_statistics()
    except EthtoolError:  # the driver has none, or the interface went away
        return found
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EOPNOTSUPP, errno.EPERM):
            return found
        raise
    finally:
        asked.sock.close()
    for name, value in list(dict(counters).items())[:DRIVER_COUNTERS_MOST]:
        if LOST.fullmatch(str(name)) or DAMAGED.fullmatch(str(name)):
            found[str(name)] = int(value)
    return found
