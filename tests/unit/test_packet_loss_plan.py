"""Packet loss as it is planned: closed forms against every pattern of loss of small cases, in
fractions; against mpmath where numbers are small; simulations within their intervals."""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import TOO_MUCH_TO_SIMULATE
from flowcheck.ops.packet_loss.copy_loss import HopLosses, LossProcess
from flowcheck.ops.packet_loss.loss_odds import at_least_once, log_none_lost, step_odds
from flowcheck.ops.packet_loss.loss_simulation import (
    clopper_pearson,
    compared,
    simulate_hooked,
    simulate_steps,
    simulate_stops,
    simulate_taint,
)
from flowcheck.ops.packet_loss.replica_odds import Healing, stopped_share, sum_of_losses
from flowcheck.ops.packet_loss.ring_overflow import RingBurst
from flowcheck.ops.packet_loss.step_packets import (
    Coverage,
    PacketRun,
    StepPackets,
    Stream,
    step_packets,
)
from flowcheck.ops.planning.ddp_collectives import PlannedCollective
from flowcheck.ops.planning.wire_traffic import MirroredPort
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.collectives.ring_schedule import all_reduce, chunk_of

EXACT = 1e-12
FEW = settings(max_examples=40, deadline=None)
PROBABILITIES = st.floats(1e-12, 0.3)


def flat(packets: int, loops: int = 1) -> StepPackets:
    return StepPackets(elements=packets * loops * 8, loops=((packets, loops),))


def patterns(weights: list[Fraction]) -> Iterator[tuple[Fraction, tuple[bool, ...]]]:
    """(probability, which are lost) of every pattern of independent losses."""
    for lost in itertools.product((False, True), repeat=len(weights)):
        told = zip(weights, lost, strict=True)
        yield math.prod((p if gone else 1 - p for p, gone in told), start=Fraction(1)), lost


def seen_copies(packets: int, ranks: int, links: int) -> list[int]:
    """[packet] copies, by what each rank's link carries in NCCL's schedule; the last chunks of the
    loop are those that the links miss, of equal size."""
    hops = range(2 * ranks - 2)
    finals = [
        {chunk for chunk, final in (chunk_of(h, sender=s, ranks=ranks) for h in hops) if final}
        for s in range(links)
    ]
    each = packets // ranks
    return [sum(chunk in one for one in finals) for chunk in range(ranks) for _ in range(each)]


@pytest.mark.parametrize(
    ("packets", "coverage"),
    [
        (12, Coverage(ranks=4, copies=1)),
        (6, Coverage(ranks=3, copies=2)),
        (4, Coverage(ranks=2, copies=3)),
        (6, Coverage(ranks=3, links=2)),
        (6, Coverage(ranks=2, links=2)),
        (4, Coverage(ranks=4, links=3)),
        (5, Coverage(ranks=5, links=2)),
    ],
)
def test_a_step_is_what_all_patterns_of_loss_say(packets: int, coverage: Coverage) -> None:
    loss = Fraction(3, 16)
    links, ranks = coverage.links, coverage.ranks
    copies = [coverage.copies] * packets if links is None else seen_copies(packets, ranks, links)
    owner = [packet for packet, count in enumerate(copies) for _ in range(count)]
    clean = stopped = mean = Fraction(0)
    for weight, lost in patterns([loss] * len(owner)):
        left = set(owner) - {
            p for p in owner if all(g for o, g in zip(owner, lost, strict=True) if o == p)
        }
        clean += weight * (not any(lost))
        stopped += weight * (len(left) < packets)
        mean += weight * (packets - len(left))
    odds = step_odds(flat(packets), coverage, LossProcess(loss=float(loss)))
    assert odds.clean == pytest.approx(float(clean), rel=EXACT)
    assert odds.unrepaired == pytest.approx(float(stopped), rel=EXACT)
    assert odds.repaired == pytest.approx(float(1 - clean - stopped), rel=EXACT, abs=1e-15)
    assert odds.lost_packets == pytest.approx(float(mean), rel=EXACT)
    assert odds.lost_copies == pytest.approx(float(loss) * len(owner), rel=EXACT)
    three = step_odds(flat(packets), coverage, LossProcess(loss=float(loss)), rings=3)
    assert three.unrepaired == pytest.approx(float(1 - (1 - stopped) ** 3), rel=EXACT)


def chain_weight(lost: tuple[bool, ...], loss: Fraction, length: int) -> Fraction:
    """Of one copy's pattern: a chain of two states in balance, bad for `length` on average."""
    begin, end = loss / (1 - loss) / length, Fraction(1, length)
    weight = loss if lost[0] else 1 - loss
    for before, now in itertools.pairwise(lost):
        into_bad = 1 - end if before else begin
        weight *= into_bad if now else 1 - into_bad
    return weight


@pytest.mark.parametrize(
    "stream",
    [
        Stream(1, (PacketRun(3, 2, 2), PacketRun(1, 1, 1))),
        Stream(1, (PacketRun(12, 0, 1),)),
        Stream(2, (PacketRun(2, 1, 2),)),
        Stream(2, (PacketRun(1, 1, 1), PacketRun(2, 0, 2))),
        Stream(3, (PacketRun(1, 1, 2),)),
    ],
)
def test_bursts_are_what_all_patterns_of_all_chains_say(stream: Stream) -> None:
    loss, length = Fraction(1, 5), 3
    places = [
        at < block.run
        for block in stream.blocks
        for _ in range(block.loops)
        for at in range(block.run + block.gap)
    ]
    each = list(itertools.product((False, True), repeat=len(places)))
    weights = {one: chain_weight(one, loss, length) for one in each}
    assert sum(weights.values()) == 1
    there = Fraction(0)
    for copies in itertools.product(each, repeat=stream.copies):
        gone = any(
            wanted and all(lost)
            for wanted, lost in zip(places, zip(*copies, strict=True), strict=True)
        )
        there += 0 if gone else math.prod((weights[one] for one in copies), start=Fraction(1))
    process = LossProcess(loss=float(loss), burst_packets=length)
    assert math.exp(log_none_lost(stream, process)) == pytest.approx(float(there), rel=EXACT)


def test_rare_bursts_keep_their_digits() -> None:
    """One run of one copy: (1 - p)(1 - a)^(n - 1). Two copies: the chain of pairs, in 60 digits."""
    with mpmath.workdps(60):
        loss, count = mpmath.mpf(1e-11), 3_000_000
        process = LossProcess(loss=1e-11, burst_packets=20.0)
        begin, end = loss / (1 - loss) / 20, mpmath.mpf(1) / 20
        alone = 1 - (1 - loss) * (1 - begin) ** (count - 1)
        got = -math.expm1(log_none_lost(Stream(1, (PacketRun(count, 0, 1),)), process))
        assert got == pytest.approx(float(alone), rel=1e-8)
        # none bad, one bad: the next packet finds them so again, and not both bad
        kept = mpmath.matrix(
            [
                [(1 - begin) ** 2, 2 * begin * (1 - begin)],
                [end * (1 - begin), (1 - end) * (1 - begin) + end * begin],
            ]
        )
        left = kept ** (count - 1) * mpmath.matrix([1, 1])
        both = 1 - ((1 - loss) ** 2 * left[0] + 2 * loss * (1 - loss) * left[1])
        got = -math.expm1(log_none_lost(Stream(2, (PacketRun(count, 0, 1),)), process))
        assert got == pytest.approx(float(both), rel=1e-8)


@pytest.mark.parametrize("loss", [1e-3, 1e-9, 1e-12])
def test_rare_losses_keep_their_digits(loss: float) -> None:
    with mpmath.workdps(80):
        p, r = mpmath.mpf(loss), 24
        n = mpmath.mpf(24 * 10**6)
        two = 1 - (1 - p) ** (2 * n / r) * (1 - p**2) ** (n * (r - 2) / r)
        three = 1 - (1 - p**2) ** (3 * n / r) * (1 - p**3) ** (n * (r - 3) / r)
        twice = 1 - (1 - p**2) ** n
        clean = (1 - p) ** (2 * n)
        process = LossProcess(loss=loss)
        for coverage, told in (
            (Coverage(ranks=r, links=2), two),
            (Coverage(ranks=r, links=3), three),
            (Coverage(ranks=r, copies=2), twice),
        ):
            got = step_odds(flat(24 * 10**6), coverage, process)
            assert got.unrepaired == pytest.approx(float(told), rel=1e-11)
        assert got.repaired == pytest.approx(float(1 - twice - clean), rel=1e-11)
        assert at_least_once(got.unrepaired, 86_400) == pytest.approx(
            float(1 - (1 - twice) ** 86_400), rel=1e-11
        )


def test_what_the_prototype_published_comes_out() -> None:
    """Of its loss script's formulas with its numbers: 10 GiB in packets of 1,024 bytes, 24 ranks.
    Its own float64 says 1 - p**2 == 1.0 at p = 1e-9."""
    assert 1 - (1e-9) ** 2 == 1.0
    size = 10 * 2**30
    packets = step_packets(
        [all_reduce_of(size)], MirroredPort(ranks=24, pmtu_bytes=1024, protocol=Protocol.SIMPLE)
    )
    assert packets.packets == pytest.approx(size / 1024, rel=1e-5)
    with mpmath.workdps(60):
        p, n = mpmath.mpf(1e-9), mpmath.mpf(size) / 1024
        once = 1 - (1 - p) ** n
        partly = 1 - (1 - p**2) ** (n * 22 / 24) * (1 - p) ** (n * 2 / 24)
        twice = 1 - (1 - p**2) ** n
    for coverage, told, published in (
        (Coverage(ranks=24, copies=1), once, 1.04e-2),
        (Coverage(ranks=24, links=2), partly, 8.7e-4),
        (Coverage(ranks=24, copies=2), twice, 1.05e-11),
    ):
        odds = step_odds(packets, coverage, LossProcess(loss=1e-9))
        assert odds.unrepaired == pytest.approx(float(told), rel=1e-5)
        assert odds.unrepaired == pytest.approx(published, rel=5e-3)
    rings = step_odds(packets, Coverage(ranks=24, links=2), LossProcess(loss=1e-9), rings=32)
    assert 1 - rings.unrepaired == pytest.approx(0.972, abs=5e-4)
    six = step_odds(flat(6_000_000), Coverage(ranks=8, copies=2), LossProcess(loss=1e-9))
    assert six.unrepaired == pytest.approx(6e-12, rel=1e-9)
    third = step_odds(flat(6_000_000), Coverage(ranks=8, links=3), LossProcess(loss=1e-9))
    assert third.unrepaired == pytest.approx(6e-12 * 3 / 8, rel=1e-6)


def all_reduce_of(size: int) -> PlannedCollective:
    return PlannedCollective(
        kind=CollectiveKind.ALL_REDUCE,
        work_bytes=size,
        role=CollectiveRole.BUCKET,
        element_bytes=4,
    )


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (3, 2), (5, 1)])
def test_packets_are_those_with_finished_sums_of_every_rank(
    protocol: Protocol, ranks: int, channels: int
) -> None:
    size, pmtu = 5_000_004, 1024
    packets, data = {}, 0
    for sender in range(ranks):
        for channel in all_reduce(
            size,
            sender=sender,
            ranks=ranks,
            channels=channels,
            protocol=protocol,
            era=MirroredPort(ranks=ranks).era,
        ):
            for send in channel:
                if send.final and send.data_bytes:
                    packets[send.start_byte] = (-(-send.wire_bytes // pmtu), send.data_bytes)
    data = sum(size for _, size in packets.values())
    assert data == size, "every byte of the tensor is finished once"
    wire = MirroredPort(ranks=ranks, channels=channels, protocol=protocol, pmtu_bytes=pmtu)
    got = step_packets([all_reduce_of(size)], wire, iterations=2)
    assert got.packets == 2 * sum(count for count, _ in packets.values())
    streams = got.streams(Coverage(ranks=ranks, links=2))
    assert sum(stream.packets * times for stream, times in streams.items()) == got.packets


def test_a_copy_is_lost_if_any_hop_loses_it() -> None:
    hops = HopLosses(switch=0.25, bit_error_rate=2**-20, nic=0.125, ring=0.5)
    bits = 8 * (4096 + 58 + 4)
    link = 1 - (1 - Fraction(1, 2**20)) ** bits
    kept = Fraction(3, 4) * (1 - link) * Fraction(7, 8) * Fraction(1, 2)
    assert hops.of_link(4096) == pytest.approx(float(link), rel=EXACT)
    assert hops.of_copy(4096) == pytest.approx(float(1 - kept), rel=EXACT)
    rare = HopLosses(switch=1e-15, nic=1e-16).of_copy(4096)
    assert rare == pytest.approx(1.1e-15, rel=EXACT)


def lost_in_ring(frames: int, slots: int, rate: Fraction) -> int:
    """Frames that find no slot, event by event: each takes 1 / rate arrivals to be drained."""
    leaves: deque[Fraction] = deque()
    free_at, lost = Fraction(0), 0
    for arrival in range(1, frames + 1):
        while leaves and leaves[0] <= arrival:
            leaves.popleft()
        if len(leaves) == slots:
            lost += 1
            continue
        free_at = max(free_at, Fraction(arrival)) + 1 / rate
        leaves.append(free_at)
    return lost


@FEW
@given(
    slots=st.integers(2, 20),
    frames=st.integers(1, 120),
    line=st.integers(1, 400),
    drain=st.integers(1, 400),
)
def test_a_ring_overflows_where_events_say_so(
    slots: int, frames: int, line: int, drain: int
) -> None:
    burst = RingBurst(
        slots=slots, line_gbps=line, drain_gbps=drain, burst_bytes=frames * 1024, pmtu_bytes=1024
    )
    rate = burst.drained_per_arrival
    assert rate == Fraction(1024 + 58 + 24, 1024 + 58) * Fraction(drain, line)
    assert burst.frames == frames
    assert burst.lost_frames == lost_in_ring(frames, slots, rate)
    most = burst.most_burst_bytes
    if most is None:
        assert rate >= 1
    elif most // 1024 < 2000:
        assert lost_in_ring(most // 1024, slots, rate) == 0
        assert lost_in_ring(most // 1024 + 1, slots, rate) == 1


CALM, HOOKED, UNHOOKED = range(3)
"""A step that is lost not at all, or is answered by the hook or not."""


@pytest.mark.parametrize(
    ("every", "delay", "hook"),
    [(3, 2, None), (4, 0, None), (1, 3, 2), (3, 2, 1), (3, 1, 3), (2, 3, 4), (3, 0, 2), (2, 4, 2)],
)
def test_taint_is_what_all_timelines_say(every: int, delay: int, hook: int | None) -> None:
    """Steps one by one: a file of each `every`th step is taken `delay` steps later, and the hook
    answers some losses."""
    lost, success = Fraction(1, 4), Fraction(2, 3)
    weights = (1 - lost, lost * success, lost * (1 - success))
    before = -(-(every + delay) // every) * every
    exact = healed = hooked = Fraction(0)
    for steps in itertools.product(range(3), repeat=before + every - 1):
        weight = math.prod((weights[one] for one in steps), start=Fraction(1))
        tainted: set[int] = set()
        for number, kind in enumerate(steps, 1):
            tainted |= {number} if kind != CALM else set()
            if hook is not None:
                answered = {i for i in tainted if steps[i - 1] == HOOKED and number - i >= hook}
                hooked += weight * sum(i <= every for i in answered)
                tainted -= answered
            if number >= delay and (number - delay) % every == 0:
                taken = {i for i in tainted if i <= number - delay}
                tainted -= taken
                whole = number - delay >= every and number < before + every
                healed += weight * bool(taken) if whole and number >= before else 0
            if number >= before:
                exact += weight * (not tainted)
    healing = Healing(
        checkpoint_every=every, heal_delay=delay, hook_delay=hook, hook_success=float(success)
    )
    assert 1 - healing.tainted_share(float(lost)) == pytest.approx(float(exact / every), rel=EXACT)
    assert healing.checkpoint_heals(float(lost)) == pytest.approx(float(healed), rel=EXACT)
    assert healing.hook_heals(float(lost)) == pytest.approx(float(hooked / every), rel=EXACT)
    day = lost * success * healing.hooked_steps(7 * every)
    assert float(day) == pytest.approx(float(7 * hooked), rel=EXACT)


@pytest.mark.parametrize(
    ("every", "delay", "hook"), [(3, 2, None), (5, 0, 2), (4, 1, 9), (1, 0, 1)]
)
def test_a_loss_waits_as_long_as_its_steps_say(every: int, delay: int, hook: int | None) -> None:
    waits = []
    for number in range(1, every + 1):
        taken = every + delay - number
        waits.append(Fraction(taken if hook is None else (3 * min(hook, taken) + taken), 1))
    mean = sum(waits) / every / (1 if hook is None else 4)
    healing = Healing(checkpoint_every=every, heal_delay=delay, hook_delay=hook, hook_success=0.75)
    assert healing.mean_wait_steps() == pytest.approx(float(mean), rel=EXACT)


def test_days_that_stop_in_fractions() -> None:
    lost, steps = Fraction(1, 7), 40
    gone = sum(1 - (1 - lost) ** i for i in range(1, steps + 1)) / steps
    assert stopped_share(float(lost), steps) == pytest.approx(float(gone), rel=EXACT)
    assert at_least_once(float(lost), steps) == pytest.approx(float(1 - (1 - lost) ** steps))
    assert stopped_share(1e-15, 1000) == pytest.approx(1e-15 * 1001 / 2, rel=1e-9)
    assert (at_least_once(1.0, 3), at_least_once(0.0, 3)) == (1.0, 0.0)


@pytest.mark.parametrize(("first", "count"), [(0, 7), (3, 400), (1, 86_400), (250, 9_000_000)])
@pytest.mark.parametrize("lost", [1e-15, 1e-11, 1e-7, 1.3e-5, 1e-2, 0.7])
def test_sums_over_many_steps_keep_their_digits(first: int, count: int, lost: float) -> None:
    log = math.log1p(-lost)
    with mpmath.workdps(60):
        each = mpmath.exp(mpmath.mpf(log))
        told = count - each**first * (1 - each**count) / (1 - each)
    assert sum_of_losses(first, count, log) == pytest.approx(float(told), rel=2e-12)


@pytest.mark.parametrize(("seen", "samples"), [(0, 50), (3, 50), (25, 50), (49, 50), (50, 50)])
def test_an_interval_is_that_of_the_beta_distribution(seen: int, samples: int) -> None:
    low, high = clopper_pearson(seen, samples, 0.01)
    if seen:
        tail = mpmath.betainc(seen, samples - seen + 1, 0, low, regularized=True)
        assert float(tail) == pytest.approx(0.005, rel=1e-9)
    if seen < samples:
        tail = mpmath.betainc(seen + 1, samples - seen, high, 1, regularized=True)
        assert float(tail) == pytest.approx(0.005, rel=1e-9)
    assert low <= seen / samples <= high


@pytest.mark.parametrize(
    ("coverage", "burst", "rings"),
    [
        (Coverage(ranks=4, links=2), 1.0, 1),
        (Coverage(ranks=4, copies=2), 1.0, 3),
        (Coverage(ranks=4, links=2), 6.0, 1),
        (Coverage(ranks=4, links=3), 6.0, 2),
        (Coverage(ranks=2, copies=1), 30.0, 1),
    ],
)
def test_packets_that_are_drawn_agree_with_the_plan(
    coverage: Coverage, burst: float, rings: int
) -> None:
    packets, process = flat(40, 3), LossProcess(loss=0.004, burst_packets=burst)
    odds = step_odds(packets, coverage, process, rings)
    steps = 20_000
    touched, stopped = simulate_steps(packets, coverage, process, rings=rings, steps=steps, seed=7)
    assert stopped > 0
    for planned, seen in ((odds.unrepaired, stopped), (odds.repaired, touched - stopped)):
        assert compared("", planned, seen, steps).agrees
    if stopped > 100:
        assert not compared("", odds.unrepaired * 1.6, stopped, steps).agrees


def test_losses_that_do_not_fit_into_memory_are_not_drawn() -> None:
    with refused_as(TOO_MUCH_TO_SIMULATE, kind=ConfigError):
        simulate_steps(
            flat(10**7),
            Coverage(ranks=4, links=2),
            LossProcess(loss=0.1),
            rings=1,
            steps=10**6,
            seed=0,
        )


def test_drawn_days_and_taints_agree_with_the_plan() -> None:
    lost, steps, samples = 0.01, 150, 20_000
    days, there = simulate_stops(lost, steps, samples, 3)
    assert compared("", at_least_once(lost, steps), days, samples).agrees
    assert compared("", 1 - stopped_share(lost, steps), there, samples).agrees
    for hook in (None, 4):
        healing = Healing(checkpoint_every=50, heal_delay=3, hook_delay=hook, hook_success=0.6)
        tainted = simulate_taint(lost, healing, samples, 5)
        assert compared("", healing.tainted_share(lost), tainted, samples).agrees
    for hook in (4, 20, 52, 53):
        healing = Healing(checkpoint_every=50, heal_delay=3, hook_delay=hook, hook_success=0.6)
        hooked = simulate_hooked(0.3, healing, samples, 6)
        assert compared("", healing.hook_heals(0.3), hooked, samples).agrees
        assert (hooked == 0) == (hook == 53)


@FEW
@given(
    loss=PROBABILITIES,
    packets=st.integers(1, 5000),
    ranks=st.integers(2, 30),
    burst=st.sampled_from([1.0, 4.0, 200.0]),
)
def test_more_loss_and_fewer_copies_are_worse(
    loss: float, packets: int, ranks: int, burst: float
) -> None:
    def lost(count: int, p: float, coverage: Coverage) -> float:
        process = LossProcess(loss=p, burst_packets=burst)
        odds = step_odds(flat(count, 2), coverage, process)
        whole = odds.clean + odds.repaired + odds.unrepaired
        assert whole == pytest.approx(1, abs=1e-9)
        assert all(0 <= one <= 1 for one in (odds.clean, odds.repaired, odds.unrepaired))
        return odds.unrepaired

    slack = 1 + 1e-9
    one, two = Coverage(ranks=ranks, copies=1), Coverage(ranks=ranks, copies=2)
    both = Coverage(ranks=ranks, links=2)
    assert lost(packets, loss, two) <= lost(packets, loss, both) * slack
    if burst == 1:  # two chunks in a row meet a burst together; on links of their own they do not
        assert lost(packets, loss, both) <= lost(packets, loss, one) * slack
    for coverage in (one, two, both):
        assert lost(packets, loss / 2, coverage) <= lost(packets, loss, coverage) * slack
    assert lost(packets, loss, two) <= lost(packets + 1, loss, two) * slack


@FEW
@given(
    lost=PROBABILITIES,
    every=st.integers(1, 200),
    delay=st.integers(0, 50),
    hook=st.integers(1, 60),
    success=st.floats(0, 1),
)
def test_sooner_healing_is_better(
    lost: float, every: int, delay: int, hook: int, success: float
) -> None:
    def share(every: int, delay: int, hook: int | None, success: float = 1.0) -> float:
        return Healing(
            checkpoint_every=every, heal_delay=delay, hook_delay=hook, hook_success=success
        ).tainted_share(lost)

    slack = 1 + 1e-9
    alone = share(every, delay, None)
    assert alone <= share(every + 1, delay, None) * slack <= 1 + 1e-9
    assert alone <= share(every, delay + 1, None) * slack
    assert share(every, delay, hook, success) <= alone * slack
    assert share(every, delay, hook) <= share(every, delay, hook, success) * slack
    assert share(every, delay, hook) <= share(every, delay, hook + 1) * slack


def planned(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan-loss", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


SIZE = ("--gradient-bytes", 1e7, "--world", 8, "--step-seconds", 10)


def test_the_default_is_a_rule_over_all_gradients() -> None:
    code, _ = planned(*SIZE)
    assert code == 0
    told = json.loads(planned(*SIZE, "--json")[1])
    assert told["chosen"]["taint"] is None and told["simulation"] == [] and told["ring"] is None
    assert told["chosen"]["coverage"]["links"] == 2
    codes = [one["code"] for one in told["assumed"]]
    assert codes[0] == "plan_loss.foreign_loss" and "plan_loss.stops_at_loss" in codes
    assert planned(*SIZE, "--switch-loss", 0)[1].count("never") >= 4


def test_a_plan_of_healing_says_what_of_it_is_one(tmp_path: Path) -> None:
    picture = tmp_path / "loss.svg"
    words = (*SIZE, "--switch-loss", 1e-5, "--heal", "--checkpoint-every", 100, "--hook-delay", 5)
    code, said = planned(*words, "--simulate", 2000, "--seed", 4, "--svg", picture)
    assert code == 0, said
    assert "DIFFERS" not in said
    told = json.loads(planned(*words, "--json")[1])
    taint, packets = told["chosen"]["taint"], told["packets"]
    assert taint["elements"] == taint["lost_packets"] * packets["elements_per_packet"]
    assert taint["bytes"] == 12 * taint["elements"]
    assert "plan_loss.taint_until_healed" in {one["code"] for one in told["assumed"]}
    told = json.loads(planned(*words, "--clip-norm", "--json")[1])
    assert told["chosen"]["taint"] is None, "one norm over all: the replica waits"
    assert "plan_loss.waits_at_loss" in {one["code"] for one in told["assumed"]}
    root = ElementTree.parse(picture).getroot()
    curves = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == 6
    for curve in curves:
        ys = [float(point.split(",")[1]) for point in curve.get("points", "").split()]
        assert ys == sorted(ys), "the more loss, the fewer exact steps"


def test_a_hook_that_answers_after_the_checkpoint_heals_nothing() -> None:
    words = (*SIZE, "--switch-loss", 1e-3, "--heal", "--checkpoint-every", 2, "--simulate", 50)
    code, told = planned(*words, "--hook-delay", 5, "--json")
    late = json.loads(told)
    taint = late["chosen"]["taint"]
    assert code == 0 and taint["checkpoints_day"] > 0
    assert (taint["hook_step"], taint["hook_day"], taint["hooks_day"]) == (0, 0, 0)
    # Of two steps, that after a checkpoint waits two steps for the next one, taken one later.
    soon = json.loads(planned(*words, "--hook-delay", 2, "--json")[1])
    lost, steps = soon["chosen"]["odds"]["unrepaired"], soon["steps_day"]
    assert soon["chosen"]["taint"]["hooks_day"] == pytest.approx(lost * steps / 2, rel=1e-9)
    assert len(soon["simulation"]) == 7 and all(one["agrees"] for one in soon["simulation"])


def test_a_hook_alone_heals() -> None:
    """The share of exact steps is that of a plan with files that come too late to heal anything;
    and simulated losses agree."""
    words = (*SIZE, "--links", 2, "--switch-loss", 1e-5, "--heal", "--hook-delay", 5)
    code, said = planned(*words, "--simulate", 3000)
    assert code == 0 and "DIFFERS" not in said and "checkpoint file" not in said
    alone = json.loads(planned(*words, "--json")[1])["chosen"]
    never = ("--checkpoint-every", 1_000_000, "--heal-delay", 100)
    both = json.loads(planned(*words, *never, "--json")[1])["chosen"]
    assert alone["taint"]["exact_share"] == pytest.approx(both["taint"]["exact_share"], rel=1e-9)
    assert (alone["taint"]["wait_steps"], alone["taint"]["checkpoint_day"]) == (5, 0)
    assert alone["whole_rule"]["kept_share"] is None, "a hook is no help to a rule over all"


@pytest.mark.parametrize("every", [1, 7, 100])
def test_a_rule_over_all_gradients_goes_on_with_the_next_checkpoint(every: int) -> None:
    """Played out: a step is lost or not, and a checkpoint begins the replica anew."""
    words = (*SIZE, "--links", 2, "--switch-loss", 1e-5, "--checkpoint-every", every)
    code, said = planned(*words, "--heal-delay", 3, "--simulate", 3000)
    assert code == 0 and "DIFFERS" not in said
    chosen = json.loads(planned(*words, "--heal-delay", 3, "--json")[1])["chosen"]
    random, steps = np.random.default_rng(1), 200_000
    lost = random.random(steps) < chosen["odds"]["unrepaired"]
    there, waits = 0, []
    stopped = None
    for step in range(steps):
        if lost[step] and stopped is None:
            stopped = step
        saved = step % every == 0
        there += saved or stopped is None
        if saved and stopped is not None:
            waits.append(step - stopped + 3)
            stopped = None
    rule = chosen["whole_rule"]
    assert there / steps == pytest.approx(rule["kept_share"], abs=0.02)
    every_loss = np.flatnonzero(lost)
    until = -every_loss % every + 3
    assert until.mean() == pytest.approx(rule["wait_steps"], rel=0.05)
    assert max(waits) <= rule["most_wait_steps"] == every - 1 + 3


def test_no_loss_is_told_as_zero() -> None:
    for more in ((), ("--heal", "--checkpoint-every", 5)):
        said = planned(*SIZE, "--switch-loss", 0, *more)[1]
        assert " -0" not in said


def test_a_burst_that_overflows_the_ring_is_told() -> None:
    rates = ("--line-gbps", 200, "--drain-gbps", 100, "--ring-slots", 1024)
    code, said = planned(*SIZE, *rates)
    assert code == 1 and "OVERFLOWS" in said and "not a probability" in said
    told = json.loads(planned(*SIZE, *rates, "--burst-bytes", 1e6, "--json")[1])
    assert told["ring"]["lost_frames"] == 0 and told["ring"]["most_burst_bytes"] > 1e6


def test_a_model_tells_its_buckets(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make(width=700):\n"
        "    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(20)))\n"
    )
    model = f"{tmp_path}/net.py:make"
    told = json.loads(planned(model, "--set", "width=600", "--world", 4, "--json")[1])
    elements = 20 * (600 * 600 + 600)
    assert told["packets"]["elements"] == elements
    assert elements * 4 / 4096 < told["packets"]["packets"] < elements * 4 / 4096 * 1.05
    codes = {one["code"] for one in told["assumed"]}
    assert "plan_loss.one_all_reduce" not in codes


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), "--gradient-bytes"),
        (("--gradient-bytes", "nan"), "--gradient-bytes"),
        (("--gradient-bytes", "1e13"), "--gradient-bytes"),
        (("net.py:make", "--gradient-bytes", "1e6"), "--gradient-bytes"),
        ((*SIZE, "--element-bytes", "3"), "--element-bytes"),
        ((*SIZE, "--links", "9"), "--links"),
        ((*SIZE, "--links", "1"), "--links"),
        ((*SIZE, "--copies", "0"), "--copies"),
        ((*SIZE, "--copies", "1", "--links", "2"), "--copies"),
        ((*SIZE, "--switch-loss", "-1e-9"), "--switch-loss"),
        ((*SIZE, "--bit-error-rate", "nan"), "--bit-error-rate"),
        ((*SIZE, "--nic-loss", "0.6"), "--nic-loss"),
        ((*SIZE, "--ring-loss", "inf"), "--ring-loss"),
        ((*SIZE, "--burst-packets", "0.5"), "--burst-packets"),
        ((*SIZE, "--rings", "0"), "--rings"),
        ((*SIZE, "--step-seconds", "0"), "--step-seconds"),
        ((*SIZE, "--heal"), "--checkpoint-every"),
        (
            (*SIZE, "--heal", "--hook-delay", "1", "--hook-success", "0.9"),
            "--checkpoint-every",
        ),
        ((*SIZE, "--hook-delay", "1"), "--hook-delay"),
        ((*SIZE, "--checkpoint-every", "0"), "--checkpoint-every"),
        ((*SIZE, "--heal-delay", "-1"), "--heal-delay"),
        ((*SIZE, "--hook-success", "2"), "--hook-success"),
        ((*SIZE, "--state-bytes", "0"), "--state-bytes"),
        ((*SIZE, "--line-gbps", "100"), "--line-gbps"),
        ((*SIZE, "--drain-gbps", "100"), "--drain-gbps"),
        ((*SIZE, "--line-gbps", "nan", "--drain-gbps", "1"), "--line-gbps"),
        ((*SIZE, "--line-gbps", "2", "--drain-gbps", "1", "--ring-slots", "1"), "--ring-slots"),
        ((*SIZE, "--line-gbps", "2", "--drain-gbps", "1", "--burst-bytes", "inf"), "--burst-bytes"),
        ((*SIZE, "--simulate", "0"), "--simulate"),
        ((*SIZE, "--seed", "-1"), "--seed"),
        ((*SIZE, "--protocol", "tcp"), "--protocol"),
        ((*SIZE, "--pmtu", "1500"), "--pmtu"),
    ],
    ids=str,
)
def test_values_that_allow_no_plan_are_refused_by_their_option(
    words: tuple[str, ...], key: str
) -> None:
    with pytest.raises(ConfigError) as error:
        planned(*words)
    assert error.value.key == key
    assert error.value.finding.remedy
