"""Where the iterations of a job begin that was met amid its run, if all its messages are alike:
by the trainer's pauses, and never at a place that only the stream's end makes the one that fits.

The truth is the drawn times: in iteration k each connection sends its n messages k * n to k * n +
n - 1, and the next one begins when all have.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from flowcheck.findings.catalog.midstream_jobs import BEGIN_OPEN, NO_WHOLE_ITERATION
from flowcheck.wire.learn.jobs.late.instants import Lane, first_iteration
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

LANES, EACH, SIZE = 4, 2, 4096
COMPUTE_NS, SEND_NS = 100_000_000, 200_000


def streams(
    draw: random.Random, iterations: int, *, stalls: float
) -> list[list[tuple[int, ObservedMessage]]]:
    """[lane] (place in its iteration, message). stalls: share of messages that wait longer amid an
    iteration than the trainer computes."""
    lanes: list[list[tuple[int, ObservedMessage]]] = [[] for _ in range(LANES)]
    at = order = 0
    for _ in range(iterations):
        at += int(COMPUTE_NS * draw.uniform(0.7, 1.5))
        sends = sorted(
            (place, draw.random(), lane) for lane in range(LANES) for place in range(EACH)
        )
        for place, _, lane in sends:
            at += int(SEND_NS * draw.expovariate(1))
            at += int(2 * COMPUTE_NS) if draw.random() < stalls else 0
            order += 1
            lanes[lane].append((place, message(lane, len(lanes[lane]), at, order)))
    return lanes


def message(lane: int, psn: int, at_ns: int, order: int) -> ObservedMessage:
    return ObservedMessage(
        flow=key(lane),
        first_psn=psn,
        packets=1,
        number=None,
        psn_counted=False,
        va=0,
        rkey=0,
        immediate=None,
        wire_bytes=SIZE,
        payload=np.zeros(0, np.uint8),
        first_ns=at_ns,
        order=order,
    )


def key(lane: int) -> FlowKey:
    return FlowKey(source="10.0.0.1", destination="10.0.0.2", dest_qp=lane)


def found(
    lanes: Sequence[Sequence[tuple[int, ObservedMessage]]], period: int, first: int, stop: int
) -> tuple[list[int] | None, object]:
    """([lane] place in its iteration where one is said to begin, why none is). first, stop: orders
    between which the capture lies."""
    seen = [[own for own in lane if first <= own[1].order < stop] for lane in lanes]
    sizes = np.full(period, SIZE)
    views = [Lane(key(n), sizes, [m for _, m in lane]) for n, lane in enumerate(seen)]
    cut, why = first_iteration(views, ended=False, laps=2)
    if cut is None:
        return None, why
    return [lane[i][0] for lane, i in zip(seen, cut.at, strict=True)], why


@pytest.mark.parametrize("seed", range(3))
def test_no_place_is_told_that_only_the_end_makes_the_one_that_fits(seed: int) -> None:
    draw = random.Random(seed)
    lanes = streams(draw, 14, stalls=0)
    first = draw.randrange(LANES * EACH)
    told = 0
    for stop in range(first + 1, LANES * EACH * 14):
        for period in (EACH, EACH + 1):  # the second one is a ring that sends one message more
            places, why = found(lanes, period, first, stop)
            if period != EACH:
                assert places is None, stop
            told += places is not None
            assert places in (None, [0] * LANES), stop
            if places is None:
                assert why.is_any_of(BEGIN_OPEN, NO_WHOLE_ITERATION)  # type: ignore[attr-defined]
    assert told


@pytest.mark.parametrize("seed", range(6))
def test_a_stall_now_and_then_leaves_it_told_however_much_is_seen(seed: int) -> None:
    lanes = streams(random.Random(seed), 60, stalls=0.01)
    every = LANES * EACH
    for iterations in range(12, 60, 4):
        places, why = found(lanes, EACH, 3, iterations * every)
        assert places == [0] * LANES, (iterations, why)
