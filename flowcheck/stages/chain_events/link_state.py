"""Link state (carrier) of the network interfaces that frames are captured from.

A port that DPDK has taken from the kernel has no interface: its link state is not known here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from flowcheck.config import SourceConfig

NETWORK = Path("/sys/class/net")
_IFACE = re.compile(r"\biface=([^,]+)")


def interface_of(source: SourceConfig) -> str | None:
    """The name of a source's kernel interface; None for a source without one."""
    if source.interface is not None:
        return source.interface
    found = _IFACE.search(source.vdev or "")
    return found[1] if found else None


def has_link(interface: str) -> bool | None:
    """The interface's `carrier` (Documentation/ABI/testing/sysfs-class-net of Linux): True for 1,
    False for 0 and for an interface that is down, whose `carrier` cannot be read. None where it is
    unknown."""
    if not NETWORK.is_dir():
        return None
    try:
        return (NETWORK / interface / "carrier").read_text().strip() == "1"
    except OSError:
        return False


class LinkMonitor:
    """Link state of all sources, polled every half second or so. Times are nanoseconds of
    CLOCK_MONOTONIC."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self._interfaces = [interface_of(source) for source in sources]
        self.dark_ns = [0] * len(sources)
        """[source] since when it has no link; 0: it has, or nobody can tell."""

    def look(self, now_ns: int | None = None) -> list[tuple[int, str, float | None]]:
        """(source, its interface, how long it had no link; None: it has none from now on) for each
        link that changed since the last look."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        changed: list[tuple[int, str, float | None]] = []
        for number, interface in enumerate(self._interfaces):
            if interface is None:
                continue
            dark, since_ns = has_link(interface) is False, self.dark_ns[number]
            if dark and not since_ns:
                self.dark_ns[number] = now_ns
                changed.append((number, interface, None))
            elif since_ns and not dark:
                self.dark_ns[number] = 0
                changed.append((number, interface, (now_ns - since_ns) / 1e9))
        return changed
