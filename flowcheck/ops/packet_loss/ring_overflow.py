"""Whether a burst of frames fits a ring: exact arithmetic, not a probability. Pure."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.packet_loss.copy_loss import FCS_BYTES
from flowcheck.ops.planning.wire_traffic import FRAME_BYTES

GAP_BYTES = 8 + 12
"""Preamble with its delimiter and the least gap between two frames (IEEE 802.3, 3.2.1, 4.4.2)."""
MOST_GBPS = 1e6
MOST_BURST_BYTES = 1e13
MOST_SLOTS = 1 << 26
"""Gb/s, bytes, slots (as of a job file). Choices that stop slips of the pen."""


class RingBurst(msgspec.Struct, frozen=True, kw_only=True):
    """Equal frames that arrive back to back at line rate in a ring that is drained meanwhile.

    Frame i (from 1) arrives i spacings after the burst's start; the first one begins to be drained
    when it arrives, and each takes the same time. A frame that finds all slots taken is lost.
    Construction raises ConfigError that names the option of an invalid value."""

    slots: int
    line_gbps: float
    drain_gbps: float
    """Payload and headers that the stage behind the ring takes out of it, frames' bytes alone."""
    burst_bytes: float
    """Payload bytes."""
    pmtu_bytes: int

    def __post_init__(self) -> None:
        if not 2 <= self.slots <= MOST_SLOTS:
            raise ConfigError("--ring-slots", self.slots, FROM_TO(least=2, most=MOST_SLOTS))
        for option, value in (("--line-gbps", self.line_gbps), ("--drain-gbps", self.drain_gbps)):
            if not 0 < value <= MOST_GBPS:
                raise ConfigError(option, value, FROM_TO(least="above 0", most=f"{MOST_GBPS:g}"))
        if not 1 <= self.burst_bytes <= MOST_BURST_BYTES:
            right = FROM_TO(least=1, most=f"{MOST_BURST_BYTES:g}")
            raise ConfigError("--burst-bytes", self.burst_bytes, right)

    @property
    def frames(self) -> int:
        return -(-int(self.burst_bytes) // self.pmtu_bytes)

    @property
    def drained_per_arrival(self) -> Fraction:
        """Frames that leave the ring while one arrives."""
        frame = self.pmtu_bytes + FRAME_BYTES
        spacing = Fraction(frame + FCS_BYTES + GAP_BYTES) / Fraction(self.line_gbps)
        return spacing * Fraction(self.drain_gbps) / frame

    def slots_for(self, frames: int) -> int:
        """Slots that hold a burst of so many frames: when the last one arrives,
        floor((frames - 1) x drained_per_arrival) of those before it are out, and no more than all
        of them."""
        if frames < 1:
            return 0
        return max(1, frames - int((frames - 1) * self.drained_per_arrival))

    @property
    def lost_frames(self) -> int:
        """Frames of the burst that find no slot. While the ring is full, one gets in whenever one
        is out, so what is over at the end is what was lost."""
        return max(0, self.slots_for(self.frames) - self.slots)

    @property
    def most_burst_bytes(self) -> int | None:
        """Payload of the longest burst that fits; None: any burst does, the ring is drained as
        fast as frames arrive."""
        rate = self.drained_per_arrival
        if rate >= 1:
            return None
        # n - floor((n - 1) r) <= slots: true up to some n, as the left side never falls.
        low, high = self.slots, int(Fraction(self.slots + 2) / (1 - rate)) + 2
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.slots_for(middle) <= self.slots else (low, middle - 1)
            )
        return low * self.pmtu_bytes
