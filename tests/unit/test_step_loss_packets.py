"""A loss is of the step whose packets never came, whenever it is found."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.extraction import (
    LL,
    PMTU_BYTES,
    SIMPLE,
    Bench,
    Packet,
    Send,
    bench,
    packets_of,
    plan_of,
)

from flowcheck.stages.chain_events.lost_packets import LostPackets

FIRST = 3
"""Messages of the first iteration; each later one has SIZES."""
SIZES = (5 * PMTU_BYTES, 40, 2 * PMTU_BYTES + 8, 3 * PMTU_BYTES)
ITERATIONS = 12
HOLES_MAX = 16  # FC_FLOW_HOLES


def sends(protocol: int) -> list[Send]:
    each = [Send(bytes(size), protocol) for size in SIZES]
    return [*each[:FIRST], *each * (ITERATIONS - 1)]


def iteration_of(packet: Packet) -> int:
    return 1 if packet.number < FIRST else 2 + (packet.number - FIRST) // len(SIZES)


def planned(one: Bench, protocol: int) -> None:
    own = sends(protocol)
    plan = plan_of(own[:FIRST], each=own[FIRST : FIRST + len(SIZES)])
    assert one.extractor.install_plan(plan)


def by_iteration(packets: list[Packet]) -> Counter[int | None]:
    return Counter(map(iteration_of, packets))


def holes_of(lacking: set[int]) -> int:
    return sum(nth - 1 not in lacking for nth in lacking)


def looked(losses: LostPackets) -> tuple[Counter[int | None], Counter[int | None]]:
    change = losses.check()
    return +change.lost, +change.healed


TOTAL = len(packets_of(sends(SIMPLE)))
LACKING = st.lists(
    st.tuples(st.integers(10, TOTAL - 3), st.integers(1, 30)), min_size=1, max_size=HOLES_MAX
).map(lambda runs: {n for at, size in runs for n in range(at, min(at + size, TOTAL - 2))})
"""Packets that never come: runs of them, of more than an iteration as well; the first messages
come, and the last packet, which shows what is missing before it."""


@settings(deadline=None, max_examples=25)
@given(lacking=LACKING, late=st.sets(st.integers(0, TOTAL)), protocol=st.sampled_from([LL, SIMPLE]))
def test_packets_that_never_came_are_of_the_iteration_the_plan_has_them_in(
    lacking: set[int], late: set[int], protocol: int
) -> None:
    packets = packets_of(sends(protocol))
    if protocol == LL:  # its messages are twice as long: other packets, the same rule
        lacking = {min(2 * nth, len(packets) - 2) for nth in lacking}
    while holes_of(lacking) > HOLES_MAX:
        lacking.remove(max(lacking))
    late &= lacking
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        bench(Path(folder), slots=1024, data_bytes=1 << 20) as one,
    ):
        losses = LostPackets([one.flows], [one.staging])
        one.run(packets[:8])
        planned(one, protocol)
        one.run(packet for nth, packet in enumerate(packets[8:], 8) if nth not in lacking)
        assert looked(losses) == ({}, {}), "it may be late only"
        lost = by_iteration([packets[nth] for nth in sorted(lacking)])
        assert looked(losses) == (lost, {})
        one.run(packets[nth] for nth in sorted(late))
        split = holes_of(lacking - late) <= HOLES_MAX
        healed = by_iteration([packets[nth] for nth in sorted(late)])
        change = losses.check()
        assert not split or (+change.lost, +change.healed) == ({}, healed)
        assert looked(losses) == ({}, {})


def test_more_holes_than_a_flow_can_list_are_lost_all_the_same(shm: Path) -> None:
    """Those that found no place come back no more: none of them is healed."""
    packets = packets_of(sends(SIMPLE))
    with bench(shm) as one:
        losses = LostPackets([one.flows], [one.staging])
        one.run(packets[:8])
        planned(one, SIMPLE)
        losses.check()
        odd = packets[9:-1:2]
        assert len(odd) > 2 * HOLES_MAX
        one.run([*packets[8:-1:2], packets[-1]])
        found, healed = looked(losses)
        more, again = looked(losses)
        assert (found + more).total() == len(odd) and not healed and not again
        known = Counter({step: n for step, n in (found + more).items() if step is not None})
        assert known <= by_iteration(odd) and known.total() >= HOLES_MAX


def test_packets_of_a_job_without_a_plan_are_told_by_the_first_job_alone(shm: Path) -> None:
    packets = packets_of(sends(SIMPLE))
    with bench(shm) as one:
        first = LostPackets([one.flows], [one.staging])
        further = LostPackets([one.flows], [one.staging], first=False)
        one.run([*packets[:20], *packets[24:]])
        assert looked(first) == looked(further) == ({}, {})
        assert looked(first) == ({None: 4}, {}) and looked(further) == ({}, {})
        planned(one, SIMPLE)  # from here on it is another job's
        first = LostPackets([one.flows], [one.staging], [[one.staging]])
        assert looked(first) == ({}, {})
