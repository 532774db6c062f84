"""Learning a job too large for a capture: its messages without what they carry, at three sizes, and
what one core learns at the rates of mirror ports, from the time that a message takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

from support.large_jobs import GPT, LargeJob, large_job
from support.netib.layouts import slices
from support.netib.partition import Shape, plan

from bench.measure import Figure, Scale
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import LearnedJob

RANKS, CHANNELS = 16, 8
LEARNED_S = 1.0
"""To learn the largest job, start-up and two iterations."""
LINEAR = 1.0
"""Messages per second of the largest job against those of the smallest."""
PLANNED_S = 0.05
QUICK = (0.15,)
RATES_GBPS = (100, 200, 400)
PARAMETERS = (1, 7, 13, 70)
"""Billions, of gradients of 4 bytes in buckets of 25 MiB."""
PAPER_RANKS, PAPER_CHANNELS = (8, 64, 1024), (8, 32)
FLOAT_BYTES, BUCKET_BYTES = 4, 25 << 20
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
            LINEAR / 2,
            f"{one.message_s * 1e6:.1f} us a message",
        )
    yield from on_paper(last.message_s)


def _within(stage: str, what: str, took_s: float, most_s: float | None, note: str) -> Figure:
    """A time, which is to be short."""
    if most_s is None:
        return Figure(stage, what, took_s, "s", note=note)
    return Figure(stage, what, took_s, "s", most_s / took_s, f"{most_s:g} s", 1.0, note)


def _measured(billions: float, repeats: int) -> Measured:
    made = large_job(GPT[billions], ranks=RANKS, channels=CHANNELS, version=VERSION)
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


def on_paper(message_s: float) -> Iterator[Figure]:
    """How many times faster than the wire one core learns an iteration, all of whose all-reduces
    both directions of a port carry at once. Above 1 it keeps up. message_s: as measured."""
    fastest = RATES_GBPS[-1]
    for billions in PARAMETERS:
        for ranks in PAPER_RANKS:
            for channels in PAPER_CHANNELS:
                count, sent_bytes = iteration(billions * 10**9, ranks, channels)
                times = [sent_bytes * 8 / (rate * 1e9 * count * message_s) for rate in RATES_GBPS]
                slower = zip(RATES_GBPS[:-1], times[:-1], strict=True)
                others = ", ".join(f"{one:.1f} at {rate} Gb/s" for rate, one in slower)
                yield Figure(
                    f"learning on paper, {fastest} Gb/s each way",
                    f"{billions} billion parameters, {ranks} ranks, {channels} channels",
                    times[-1],
                    "x the wire",
                    target=1.0,
                    note=f"{others}; {count / 1e3:.0f} k messages an iteration",
                )


def iteration(parameters: int, ranks: int, channels: int) -> tuple[int, int]:
    """(messages of both directions of a port, clear-to-sends too; data bytes of one direction) of
    the all-reduces of one iteration."""
    whole, rest = divmod(parameters * FLOAT_BYTES, BUCKET_BYTES)
    buckets = [(whole, BUCKET_BYTES), (int(rest > 0), rest)]
    count = sum(times * _sends(size, ranks, channels) for times, size in buckets if times)
    # As many clear-to-sends, and as many in the other direction.
    return 4 * count, 2 * (ranks - 1) * parameters * FLOAT_BYTES // ranks


def _sends(size: int, ranks: int, channels: int) -> int:
    """Messages of one rank for an all-reduce of `size` bytes, by the generator's schedule."""
    shape = Shape(
        "all_reduce", size // FLOAT_BYTES, FLOAT_BYTES, ranks, channels, "Simple", VERSION
    )
    steps = 2 * (ranks - 1)
    slices_each = len(slices(1, FLOAT_BYTES, shape.slices))
    return sum(len(loops) * steps * slices_each for loops in plan(shape).values())
