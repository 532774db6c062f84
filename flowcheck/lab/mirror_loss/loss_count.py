"""How many copies a monitor port dropped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MirrorLossCount:
    """What was dropped so far."""

    probability: float
    seed: int
    copies: int
    """Frames that came to the monitor port, dropped ones included."""
    dropped: int
    dropped_roce: int
    """Of the dropped ones: RoCE packets with payload."""
    dropped_payload_bytes: int
    """Their bytes behind all headers and before padding and ICRC."""
    not_logged: int
    """Dropped copies beyond the log's room, of which only the number is known."""

    def __str__(self) -> str:
        said = f"dropped {self.dropped:,} of {self.copies:,} copies at the monitor port"
        said += f" ({self.dropped_roce:,} with payload, {self.dropped_payload_bytes:,} bytes)"
        return said + (f", {self.not_logged:,} of them not looked at" if self.not_logged else "")
