"""Probability that one mirrored copy of a packet is lost on its way into the ring. Pure."""

from __future__ import annotations

import math

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import PROBABILITY
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.planning.wire_traffic import FRAME_BYTES

FCS_BYTES = 4
"""Ethernet's checksum: a wrong bit in it loses the frame too (IEEE 802.3, 3.2.9)."""
MOST_LOSS = 0.5
"""Largest probability that is planned with: beyond it nothing is a plan any more. A choice."""
MOST_BURST_PACKETS = 1_000_000
"""Packets lost in a row. A choice: longer is no packet loss, but a port that is down."""


class HopLosses(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy crosses after the switch port that is mirrored, each with its probability of
    losing a frame. Construction raises ConfigError that names the option of an invalid value."""

    switch: float = 0.0
    """Mirror queue of the switch."""
    bit_error_rate: float = 0.0
    """Probability that one bit is wrong on the link to the monitor port, after its error
    correction; bits are taken as independent."""
    nic: float = 0.0
    """NIC of the machine with FlowCheck."""
    ring: float = 0.0
    """Ring between capture and parser, beside what bursts overflow (ring_overflow.py)."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--switch-loss", self.switch),
            ("--bit-error-rate", self.bit_error_rate),
            ("--nic-loss", self.nic),
            ("--ring-loss", self.ring),
        ):
            if not 0 <= value <= MOST_LOSS:
                raise ConfigError(option, value, PROBABILITY(MOST_LOSS))

    def of_link(self, pmtu_bytes: int) -> float:
        """Of a full frame of the path MTU on the link: 1 - (1 - b)^bits. Shorter frames are lost
        more rarely."""
        bits = 8 * (pmtu_bytes + FRAME_BYTES + FCS_BYTES)
        return 0.0 - math.expm1(bits * math.log1p(-self.bit_error_rate))

    def of_copy(self, pmtu_bytes: int) -> float:
        """1 - (1 - switch)(1 - link)(1 - nic)(1 - ring), without cancellation."""
        hops = (self.switch, self.of_link(pmtu_bytes), self.nic, self.ring)
        # 0.0 gives a zero without a sign where nothing is lost
        return 0.0 - math.expm1(math.fsum(map(math.log1p, (-hop for hop in hops))))


class LossProcess(msgspec.Struct, frozen=True, kw_only=True):
    """How copies of one stream of packets are lost."""

    loss: float
    """Share of the copies that are lost in the long run, 0 to MOST_LOSS."""
    burst_packets: float = 1.0
    """Mean number of packets that are lost in a row. 1: each loss is independent of the others.
    More: a chain of two states, in one of which each packet is lost (Gilbert 1960, with h = 0)."""

    def __post_init__(self) -> None:
        if not 1 <= self.burst_packets <= MOST_BURST_PACKETS:
            right = FROM_TO(least=1, most=MOST_BURST_PACKETS)
            raise ConfigError("--burst-packets", self.burst_packets, right)

    @property
    def independent(self) -> bool:
        return self.burst_packets == 1

    @property
    def burst_begins(self) -> float:
        """Probability that a packet is lost behind one that was not: in balance, as many bursts
        begin as end. At most 1, as loss is at most one half and a burst one packet or more."""
        return self.loss / (1 - self.loss) / self.burst_packets
