"""Learning a job too large for a capture: its messages without what they carry, at three sizes, and
what one core learns at the rates of mirror ports, from the time that a message takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from support.large_jobs import GPT, LargeJob, large_job
from support.netib.partition import Shape, plan

from bench.measure import Figure, Scale
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import LearnedJob

RANKS, CHANNELS = 16, 8
LEARNED_S = 1.0
"""To learn the largest job, start-up and two iterations."""
LINEAR = 0.8
"""Messages per second of a larger job against those of the smallest: 1, but for noise."""
PLANNED_S = 0.05
QUICK = (0.15,)
RATES_GBPS = (100, 200, 400)
PARAMETERS = (1, 7, 13, 70)
"""Billions, of gradients of 4 bytes in buckets of 25 MiB."""
PAPER_RANKS, PAPER_CHANNELS = (8, 64, 1024), (8, 32)
FLOAT_BYTES, BUCKET_BYTES, BROADCAST_BYTES = 4, 25 << 20, 250 << 20
VERSION = (2, 27)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job took, in seconds of processor time."""

    job: LargeJob
    read_s: float
    plan_s: float

    @property
    def message_s(self) -> float:
        return self.read_s / len(self.job.messages)


def figures(scale: Scale) -> Iterator[Figure]:
    """Of each size; then on paper."""
    measured = [_measured(size, scale.repeats) for size in (QUICK if scale.quick else GPT)]
    first, last = measured[0], measured[-1]
    for one in measured:
        stage = f"learning, {one.job.parameters / 1e9:.2f} billion parameters"
        note = f"{len(one.job.messages)} messages, {one.job.collectives} collectives, {RANKS} ranks"
        target = LEARNED_S if one is last and not scale.quick else None
        yield _within(stage, "job from messages alone", one.read_s, target, note)
        yield _within(stage, "plan of the next iteration", one.plan_s, PLANNED_S, "")
        rate = 1e-6 / one.message_s
        yield Figure(
            stage,
            "messages read",
            rate,
            "M/s",
            first.message_s / one.message_s,
            "those of the smallest",
            LINEAR,
            f"{one.message_s * 1e6:.1f} us a message",
        )
    yield from on_paper(_costs(last, _measured(max(GPT), 1, ranks=2, channels=1)))


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a reading, in seconds of processor time."""

    message_s: float
    collective_s: float


def _costs(many: Measured, few: Measured) -> Costs:
    """By two jobs of as many collectives, one of them of few messages."""
    counts = [[len(one.job.messages), one.job.collectives] for one in (many, few)]
    message_s, collective_s = np.linalg.solve(counts, [many.read_s, few.read_s])
    if collective_s < 0:  # less than the noise of a message's
        return Costs(many.message_s, 0.0)
    return Costs(float(message_s), float(collective_s))


def _within(stage: str, what: str, took_s: float, most_s: float | None, note: str) -> Figure:
    """A time, which is to be short."""
    if most_s is None:
        return Figure(stage, what, took_s, "s", note=note)
    return Figure(stage, what, took_s, "s", most_s / took_s, f"{most_s:g} s", 1.0, note)


def _measured(
    billions: float, repeats: int, ranks: int = RANKS, channels: int = CHANNELS
) -> Measured:
    made = large_job(GPT[billions], ranks=ranks, channels=channels, version=VERSION)
    spent = [_once(made) for _ in range(repeats)]
    read, planned = (sorted(column)[len(spent) // 2] for column in zip(*spent, strict=True))
    return Measured(made, read, planned)


def _once(made: LargeJob) -> tuple[float, float]:
    gc.collect()
    moments = [time.process_time()]
    reading = read_stream(made.flows, made.messages, results=False, ended=False)
    moments.append(time.process_time())
    assert isinstance(reading.job, LearnedJob), reading.why_not
    compile_flow_plans(reading.job)
    moments.append(time.process_time())
    return moments[1] - moments[0], moments[2] - moments[1]


def on_paper(costs: Costs) -> Iterator[Figure]:
    """What one core learns: the rate in each direction of a port with which it keeps up while a
    start-up and two iterations pass. What comes behind them is placed by C as planned."""
    stage = (
        f"learning on paper: {costs.message_s * 1e6:.1f} us a message, "
        f"{costs.collective_s * 1e6:.0f} us a collective"
    )
    for billions in PARAMETERS:
        for ranks in PAPER_RANKS:
            for channels in PAPER_CHANNELS:
                seen = passed(billions * 10**9, ranks, channels)
                took_s = seen.messages * costs.message_s + seen.collectives * costs.collective_s
                bits = 8 * seen.most_bytes
                wire = ", ".join(f"{bits / (rate * 1e9):.1f} s at {rate}" for rate in RATES_GBPS)
                yield Figure(
                    stage,
                    f"{billions} billion parameters, {ranks} ranks, {channels} channels",
                    bits / took_s / 1e9,
                    "Gb/s",
                    target=float(RATES_GBPS[0]),
                    note=f"{seen.messages / 1e6:.1f} M messages: {took_s:.1f} s; wire: {wire} Gb/s",
                )


@dataclass(frozen=True, slots=True)
class Passed:
    """A start-up and two iterations at a port."""

    messages: int
    """In both directions, clear-to-sends too."""
    collectives: int
    most_bytes: int
    """Of the direction that has more."""


def passed(parameters: int, ranks: int, channels: int) -> Passed:
    """Weights leave rank 0; the first iteration is one bucket, the second one of buckets of the
    usual size."""
    size = parameters * FLOAT_BYTES
    weights, buckets = _cut(size, BROADCAST_BYTES), _cut(size, BUCKET_BYTES)
    out = sum(n * _sends("broadcast", one, ranks, channels) for one, n in weights)
    both = _sends("all_reduce", size, ranks, channels)
    both += sum(n * _sends("all_reduce", one, ranks, channels) for one, n in buckets)
    reduced = 2 * (ranks - 1) * size // ranks
    count = 1 + sum(n for _, n in (*weights, *buckets))
    return Passed(2 * (out + 2 * both), count, size + 2 * reduced)


def _cut(size: int, cap: int) -> list[tuple[int, int]]:
    """(bytes, how many of them)."""
    whole, rest = divmod(size, cap)
    return [(each, times) for each, times in ((cap, whole), (rest, 1)) if each and times]


def _sends(kind: str, size: int, ranks: int, channels: int) -> int:
    """Messages of one rank for a collective of `size` bytes, by the generator's schedule."""
    each = FLOAT_BYTES if kind == "all_reduce" else 1
    shape = Shape(kind, size // each, each, ranks, channels, "Simple", VERSION)
    steps = 2 * (ranks - 1) if kind == "all_reduce" else 1
    return sum(map(len, plan(shape).values())) * steps * shape.slices
