"""Chosen ports against every subset there is, on rings whose data are really moved around."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.moved import sums_passing
from support.small_jobs import Small, chosen, small_jobs

Point = tuple[int, int, str]
"""(node, NIC, direction)"""


def passing(job: Small) -> dict[tuple[str, int], dict[Point, set[int]]]:
    """[group, channel][point] chunks whose sums pass there."""
    found = {}
    for group, channel, ranks in job.rings():
        points: dict[Point, set[int]] = {}
        nic = int(group[2:]) if job.nics > 1 else 0
        for place, chunks in enumerate(sums_passing(len(ranks))):
            here = ranks[place] // job.per_node
            there = ranks[(place + 1) % len(ranks)] // job.per_node
            if here != there:
                points[here, nic, "rx"] = points[there, nic, "tx"] = set(chunks)
        found[group, channel] = points
    return found


def shows_all(
    job: Small,
    moved: dict[tuple[str, int], dict[Point, set[int]]],
    placed: dict[Point, int],
) -> bool:
    """Whether each group has a machine where each chunk is on enough monitors."""

    ranks = job.nodes * job.per_node
    ends = {
        name: {p for p, spot in placed.items() if job.monitors[spot][2] == name} for name in "ab"
    }

    def whole(group: str, machine: str) -> bool:
        rings = [points for (name, _), points in moved.items() if name == group]
        for points in rings:
            own = [(placed[p], points[p]) for p in ends[machine] if p in points]
            for chunk in range(ranks):
                if len({spot for spot, chunks in own if chunk in chunks}) < job.redundancy:
                    return False
        return True

    return all(any(whole(f"tp{g}", m) for m in "ab") for g in range(job.tp))


def fits(job: Small, placed: dict[Point, int]) -> bool:
    sums = [100 * list(placed.values()).count(n) for n in range(len(job.monitors))]
    beside = all(job.switch_of[p[0]] == job.monitors[spot][0] for p, spot in placed.items())
    return beside and all(s <= gbps for s, (_, gbps, _) in zip(sums, job.monitors, strict=True))


def every(job: Small, count: int) -> Iterator[dict[Point, int]]:
    """All ways to mirror so many points."""
    points = list(product(range(job.nodes), range(job.nics), ("rx", "tx")))
    for some in combinations(points, count):
        spots = [
            [n for n, (s, _, _) in enumerate(job.monitors) if s == job.switch_of[point[0]]]
            for point in some
        ]
        for where in product(*spots):
            yield dict(zip(some, where, strict=True))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_jobs())
def test_no_smaller_set_of_pairs_shows_every_chunk(job: Small) -> None:
    """And where it says that there is none, there is none of a few pairs."""
    moved = passing(job)
    choice = chosen(job)
    if choice is None:
        unused = {switch for switch, _, _ in job.monitors} - set(job.switch_of)
        assert unused or not any(
            fits(job, placed) and shows_all(job, moved, placed)
            for count in range(5 if job.nics == 1 else 4)
            for placed in every(job, count)
        )
        return
    points = {(p.node, p.nic, str(p.direction)): spot for p, spot in choice.placed}
    assert len(points) == len(choice.placed)
    assert fits(job, points) and shows_all(job, moved, points)
    assert choice.exact and choice.gap == 0 and choice.least == len(points)
    if len(points) <= 4 or job.nics == 1:
        assert not any(
            fits(job, placed) and shows_all(job, moved, placed)
            for placed in every(job, len(points) - 1)
        )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_jobs())
def test_every_chosen_pair_is_needed(job: Small) -> None:
    choice = chosen(job)
    if choice is None:
        return
    moved = passing(job)
    points = {(p.node, p.nic, str(p.direction)): spot for p, spot in choice.placed}
    for one in points:
        less = {point: spot for point, spot in points.items() if point != one}
        assert not shows_all(job, moved, less)


@pytest.mark.parametrize("nodes", [2, 3, 8, 33])
@pytest.mark.parametrize("redundancy", [1, 2, 3])
def test_as_many_links_as_the_ring_says(nodes: int, redundancy: int) -> None:
    """Of m pairs on monitors of their own, spread evenly over n links, a chunk is on all but those
    of the link that lacks it: m - ceil(m / n) is enough when it is r. There are 2 n pairs."""
    pairs = next(m for m in range(1, 99) if m - -(-m // nodes) >= redundancy)
    job = Small(
        nodes=nodes,
        gpus=1,
        tp=1,
        nics=1,
        switch_of=(0,) * nodes,
        monitors=((0, 100, "a"),) * 6,
        orders=(tuple(range(nodes)),),
        redundancy=redundancy,
    )
    choice = chosen(job)
    if pairs > 2 * nodes:
        assert choice is None
        return
    assert choice is not None and choice.exact
    assert len(choice.placed) == pairs


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_jobs(), st.randoms(use_true_random=False))
def test_ports_of_one_direction_show_all_in_any_order(job: Small, random: Random) -> None:
    """Chosen for one order of nodes, they do for another one."""
    choice = chosen(job)
    if choice is None or len({pair.direction for pair, _ in choice.placed}) > 1:
        return
    other = tuple(tuple(random.sample(nodes, len(nodes))) for nodes in job.orders)
    points = {(p.node, p.nic, str(p.direction)): spot for p, spot in choice.placed}
    moved = replace(job, orders=other)
    assert shows_all(moved, passing(moved), points)


def test_a_search_that_does_not_end_says_how_much_less_there_might_be() -> None:
    """Two groups on shared ports, each chunk on two monitors, one of which takes one pair only."""
    job = Small(
        nodes=4,
        gpus=2,
        tp=2,
        nics=1,
        switch_of=(0, 0, 1, 0),
        monitors=((0, 200, "b"), (1, 100, "a"), (1, 200, "b")),
        orders=((1, 0, 2, 3),),
        redundancy=2,
    )
    short, whole = chosen(job, most_steps=8), chosen(job)
    assert short is not None and whole is not None
    assert (short.exact, short.least, len(short.placed), short.gap) == (False, 3, 4, 1)
    assert (whole.exact, whole.least, len(whole.placed), whole.gap) == (True, 4, 4, 0)
    assert chosen(job, most_steps=1) is None
