"""The same questions answered by drawing packets, bursts and steps, for `--simulate`. Pure.

Nothing here uses a closed form of the plan: packets are drawn one by one (by the gaps between
losses), copies are compared packet by packet, and healing is played loss by loss. Only the second
part takes the planned probability of a lost step as given, as the first part has tested it.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import TOO_MUCH_TO_SIMULATE
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.packet_loss.copy_loss import LossProcess
from flowcheck.ops.packet_loss.replica_odds import Healing
from flowcheck.ops.packet_loss.step_packets import Coverage, StepPackets, Stream

Integers = NDArray[np.int64]

CONFIDENCE = 0.9999
"""Of each interval. A choice: one run in a thousand or so has a figure outside by chance."""
MOST_SAMPLES = 10_000_000
MOST_DRAWN = 50_000_000
"""Losses drawn in one simulation. A choice: some GiB of memory."""
APART = 50
"""Mean bursts between two steps: their states then have nothing to do with each other (e^-50)."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A planned probability and how often the same happened in a simulation."""

    what: str
    planned: float
    seen: int
    samples: int
    low: float
    high: float
    """Interval of Clopper and Pearson (1934) for the simulated probability."""

    @property
    def agrees(self) -> bool:
        return self.low <= self.planned <= self.high


def compared(what: str, planned: float, seen: int, samples: int) -> Compared:
    low, high = clopper_pearson(seen, samples, 1 - CONFIDENCE)
    return Compared(what=what, planned=planned, seen=seen, samples=samples, low=low, high=high)


def clopper_pearson(seen: int, samples: int, alpha: float) -> tuple[float, float]:
    """Interval that has the true probability with 1 - alpha at least: the ends are where so few,
    or so many, are seen with probability alpha / 2."""
    half = alpha / 2
    high = 1.0 if seen == samples else _where_rare(seen, samples, half)
    low = 0.0 if seen == 0 else 1 - _where_rare(samples - seen, samples, half)
    return low, high


def _where_rare(seen: int, samples: int, half: float) -> float:
    """Probability of an event at which `seen` of it or fewer have the probability `half`."""
    counts = np.arange(1, seen + 1, dtype=np.float64)
    ways = np.concatenate([[0.0], np.cumsum(np.log((samples - counts + 1) / counts))])
    powers = np.arange(seen + 1, dtype=np.float64)
    low, high = seen / samples, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if middle >= 1 or middle == low:
            break
        terms = ways + powers * math.log(middle) + (samples - powers) * math.log1p(-middle)
        top = float(terms.max())
        few = top + math.log(float(np.exp(terms - top).sum()))
        low, high = (middle, high) if few > math.log(half) else (low, middle)
    return high


def check_samples(option: str, samples: int) -> None:
    """Raises ConfigError where that is no number of samples."""
    if not 1 <= samples <= MOST_SAMPLES:
        raise ConfigError(option, samples, FROM_TO(least=1, most=MOST_SAMPLES))


def simulate_steps(
    packets: StepPackets,
    coverage: Coverage,
    process: LossProcess,
    *,
    rings: int,
    steps: int,
    seed: int,
) -> tuple[int, int]:
    """(steps with any copy lost, steps with a packet lost in all its copies) of so many.

    Raises ConfigError where more losses would be drawn than MOST_DRAWN."""
    check_samples("--simulate", steps)
    streams = packets.streams(coverage)
    drawn = sum(times * stream.copies * _span(stream, process) for stream, times in streams.items())
    expected = drawn * process.loss * rings * steps
    if expected > MOST_DRAWN:
        most = max(1, int(steps * MOST_DRAWN / expected))
        raise ConfigError("--simulate", steps, TOO_MUCH_TO_SIMULATE(most=most))
    random = np.random.default_rng(seed)
    touched, stopped = np.zeros(steps, bool), np.zeros(steps, bool)
    for stream, times in streams.items():
        for _ in range(times):
            copies = [
                _lost_copies(stream, process, rings * steps, random) for _ in range(stream.copies)
            ]
            in_all = copies[0]
            for keys in copies[1:]:
                in_all = np.intersect1d(in_all, keys, assume_unique=True)
            span = _span(stream, process)
            for keys in copies:
                touched[keys // span // rings] = True
            stopped[in_all // span // rings] = True
    return int(np.count_nonzero(touched)), int(np.count_nonzero(stopped))


def _span(stream: Stream, process: LossProcess) -> int:
    """Packets from the begin of the stream in one step to that in the next."""
    if process.independent:
        return stream.packets
    own = sum((block.run + block.gap) * block.loops for block in stream.blocks)
    return own + math.ceil(APART * process.burst_packets)


def _lost_copies(
    stream: Stream, process: LossProcess, steps: int, random: np.random.Generator
) -> Integers:
    """Places of lost packets that matter: step x span + place in the step."""
    span = _span(stream, process)
    if process.independent:
        return _places(process.loss, steps * span, random)
    places = _bursts(process, steps * span, random)
    at, begin = places % span, 0
    wanted = np.zeros(len(places), bool)
    for block in stream.blocks:
        length = block.run + block.gap
        inside = (at >= begin) & (at < begin + length * block.loops)
        wanted |= inside & ((at - begin) % length < block.run)
        begin += length * block.loops
    return places[wanted]


def _places(loss: float, count: int, random: np.random.Generator) -> Integers:
    """Which of `count` packets are lost, each with probability `loss`: by the gaps between them."""
    found: list[Integers] = []
    last = -1
    while loss and last < count:
        gaps = random.geometric(loss, _enough(loss * (count - last)))
        places = last + np.cumsum(np.minimum(gaps, count + 1))
        found.append(places[places < count])
        last = int(places[-1])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _bursts(process: LossProcess, count: int, random: np.random.Generator) -> Integers:
    """Likewise of a chain of two states in balance: stays outside bursts and in them take turns."""
    found: list[Integers] = []
    ends, begin = 1 / process.burst_packets, process.burst_begins
    bad, at = bool(random.random() < process.loss), 0
    while process.loss and at < count:
        turns = _enough((count - at) * process.loss * ends)
        good = np.minimum(random.geometric(begin, turns), count + 1)
        lost = np.minimum(random.geometric(ends, turns), count + 1)
        if bad:
            good[0] = 0  # a burst goes on where the stream begins; its rest is as long as a whole
        stops = at + np.cumsum(good + lost)
        starts = stops - lost
        kept = starts < count
        starts, lost = starts[kept], np.minimum(lost[kept], count - starts[kept])
        before = np.cumsum(lost) - lost
        inside = np.arange(int(lost.sum()), dtype=np.int64) - np.repeat(before, lost)
        found.append(np.repeat(starts, lost) + inside)
        at, bad = int(stops[-1]), False
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _enough(expected: float) -> int:
    """Draws at a time: somewhat more than are expected to be needed."""
    return int(expected + 10 * math.sqrt(expected)) + 16


def simulate_stops(lost: float, steps: int, samples: int, seed: int) -> tuple[int, int]:
    """Days of a replica that stays before the first lost step: (days that have one, days in which
    a step picked at random is there)."""
    random = np.random.default_rng(seed)
    first = random.geometric(lost, samples) if lost else np.full(samples, steps + 1)
    picked = random.integers(1, steps + 1, samples)
    return int(np.count_nonzero(first <= steps)), int(np.count_nonzero(picked < first))


def simulate_taint(lost: float, healing: Healing, samples: int, seed: int) -> int:
    """How many of `samples` steps, each of a run of its own, have a state that is not exact. From
    the step back to the last file that was taken, losses are drawn and healed one by one."""
    random = np.random.default_rng(seed)
    if not lost:
        return 0
    if healing.checkpoint_every is None:
        age = np.full(samples, healing.hook_delay)  # what lies behind it was answered
    else:
        age = random.integers(0, healing.checkpoint_every, samples) + healing.heal_delay
    tainted = np.zeros(samples, bool)
    behind = random.geometric(lost, samples) - 1
    open_ = np.flatnonzero(behind < age)
    while len(open_):
        answered = np.zeros(len(open_), bool)
        if healing.hook_delay is not None:
            old = behind[open_] >= healing.hook_delay
            answered = old & (random.random(len(open_)) < healing.hook_success)
        tainted[open_[~answered]] = True
        open_ = open_[answered]
        behind[open_] += random.geometric(lost, len(open_))
        open_ = open_[behind[open_] < age[open_]]
    return int(np.count_nonzero(tainted))


def simulate_hooked(lost: float, healing: Healing, samples: int, seed: int) -> int:
    """How many of `samples` steps, each at a place of its own between two files, are lost and
    healed by a hook whose answer comes no later than the next file."""
    if healing.hook_delay is None or not lost:
        return 0
    random = np.random.default_rng(seed)
    healed = (random.random(samples) < lost) & (random.random(samples) < healing.hook_success)
    if healing.checkpoint_every is not None:
        step = random.integers(1, healing.checkpoint_every + 1, samples)
        taken = healing.checkpoint_every + healing.heal_delay
        healed &= step + healing.hook_delay <= taken
    return int(np.count_nonzero(healed))
