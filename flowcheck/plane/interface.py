"""What a kernel interface counted, against what we captured: af_packet hides what it drops."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from flowcheck.errors import CaptureError
from flowcheck.plane.ring import Ring

SYSFS = Path("/sys/class/net")


IFF_PROMISC = 0x100
"""net/if.h"""


def is_promiscuous(interface: str, sysfs: Path = SYSFS) -> bool:
    """Whether the interface takes in every frame; False where there is no such interface."""
    try:
        return bool(int((sysfs / interface / "flags").read_text(), 16) & IFF_PROMISC)
    except OSError:
        return False


def frames_of(interface: str, sysfs: Path = SYSFS) -> int:
    """Frames `interface` received and sent: a packet socket is shown both."""
    folder = sysfs / interface / "statistics"
    try:
        return sum(int((folder / name).read_text()) for name in ("rx_packets", "tx_packets"))
    except OSError as error:
        raise CaptureError(
            error.errno or errno.ENODEV, f"interface {interface} has no counters in {folder}"
        ) from error


class Missed:
    """Frames an interface saw since this began that are in no ring's counters."""

    def __init__(self, interface: str, rings: Sequence[Ring], sysfs: Path = SYSFS) -> None:
        """rings: all rings the interface feeds, one per queue."""
        self._interface, self._rings, self._sysfs = interface, rings, sysfs
        first = rings[0].capture_commit()
        self._before = int(first.counters.interface_missed_frames)
        self._ours = self._received()
        self._start = self._last = self.sample()

    def _received(self) -> int:
        total = 0
        for ring in self._rings:
            commit = ring.capture_commit()
            total += int(commit.counters.rx_frames)
        return total

    def sample(self) -> int:
        """Frames the interface has counted so far."""
        return frames_of(self._interface, self._sysfs)

    def between(self, sample: int) -> int:
        """All frames missed up to `sample`, with those of earlier runs of this capture."""
        return self._before + max(0, sample - self._start - (self._received() - self._ours))

    def at_least(self) -> int:
        """As `between`, up to the call before: frames still under way are not missed."""
        earlier, self._last = self._last, self.sample()
        return self.between(earlier)
