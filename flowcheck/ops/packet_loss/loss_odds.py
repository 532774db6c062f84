"""Probability that a step loses a packet in all its copies, and in any of them. Pure.

Everything is computed as a sum of terms of one sign or as log1p and expm1, so that 1e-15 has its
digits as 1e-3 has.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.ops.packet_loss.copy_loss import LossProcess
from flowcheck.ops.packet_loss.step_packets import Coverage, StepPackets, Stream

Floats = NDArray[np.float64]


class StepOdds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one step, over all rings of the job."""

    clean: float
    """No copy of any packet that matters is lost."""
    repaired: float
    """Copies are lost, and of each packet another one is there."""
    unrepaired: float
    """Some packet is lost in all its copies."""
    lost_packets: float
    """Mean number of packets that are lost in all copies."""
    lost_copies: float
    """Mean number of copies that are lost."""


def step_odds(
    packets: StepPackets, coverage: Coverage, process: LossProcess, rings: int = 1
) -> StepOdds:
    """rings: as many rings as this one, with mirrors of their own; a step needs all of them."""
    all_there = clean = lost = copies = 0.0
    for stream, times in packets.streams(coverage).items():
        # times * rings streams of this kind, and `copies` times as many copies
        count = times * rings
        all_there += count * log_none_lost(stream, process)
        alone = Stream(1, stream.blocks)
        clean += count * stream.copies * log_none_lost(alone, process)
        lost += count * stream.packets * process.loss**stream.copies
        copies += count * stream.packets * stream.copies * process.loss
    return StepOdds(
        clean=math.exp(clean),
        # Not below: what rounding leaves where each packet has one copy, and nothing is repaired.
        repaired=max(0.0, math.exp(all_there) * -math.expm1(clean - all_there)),
        unrepaired=0.0 - math.expm1(all_there),
        lost_packets=lost,
        lost_copies=copies,
    )


def log_none_lost(stream: Stream, process: LossProcess) -> float:
    """Logarithm of the probability that each packet of the stream has a copy."""
    if not process.loss:
        return 0.0
    if process.independent:
        return stream.packets * math.log1p(-(process.loss**stream.copies))
    return math.log1p(-min(_in_bursts(stream, process), math.nextafter(1.0, 0.0)))


class _Passage(NamedTuple):
    """A part of the stream as it acts on the number of copies that are in a burst."""

    stays: Floats
    """[before, behind] probability to pass it without a packet that all copies lose."""
    lost: Floats
    """[before] probability that some packet in it is lost by all copies."""

    def then(self, other: _Passage) -> _Passage:
        return _Passage(self.stays @ other.stays, self.lost + self.stays @ other.lost)

    def times(self, count: int) -> _Passage:
        """`count` of it in a row, by squaring."""
        size = len(self.lost)
        found, square = _Passage(np.eye(size), np.zeros(size)), self
        while count:
            if count & 1:
                found = found.then(square)
            count >>= 1
            if count:
                square = square.then(square)
        return found


def _in_bursts(stream: Stream, process: LossProcess) -> float:
    """Probability that some packet is lost by all copies, each of which is a chain of two states.
    The copies together are a chain too, whose state is how many of them are in a burst."""
    moves = _moves(stream.copies, process)
    kept = moves.copy()
    kept[:, -1] = 0.0
    packet = _Passage(kept, moves[:, -1].copy())
    other = _Passage(moves, np.zeros(len(moves)))
    whole = _Passage(np.eye(len(moves)), np.zeros(len(moves)))
    for block in stream.blocks:
        once = packet.times(block.run).then(other.times(block.gap))
        whole = whole.then(once.times(block.loops))
    start = _binomial(stream.copies, process.loss)
    return float(start @ whole.lost)


def _moves(copies: int, process: LossProcess) -> Floats:
    """[copies in a burst, the same one packet later] probability."""
    stay, begin = 1 - 1 / process.burst_packets, process.burst_begins
    rows = [
        np.convolve(_binomial(bad, stay), _binomial(copies - bad, begin))
        for bad in range(copies + 1)
    ]
    return np.array(rows)


def _binomial(count: int, probability: float) -> Floats:
    """[0 .. count] probability of so many."""
    return np.array(
        [
            math.comb(count, k) * probability**k * (1 - probability) ** (count - k)
            for k in range(count + 1)
        ]
    )


def at_least_once(probability: float, times: int) -> float:
    """Probability that what happens with `probability` happens at least once in `times`."""
    if probability >= 1:
        return 1.0 if times else 0.0
    return 0.0 - math.expm1(times * math.log1p(-probability))
