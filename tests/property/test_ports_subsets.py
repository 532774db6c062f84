"""Chosen ports against every subset there is, on rings whose data are really moved around."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.moved import sums_passing

from flowcheck.errors import ConfigError
from flowcheck.ops.ports.choice import Choice, choose
from flowcheck.ops.ports.groups import groups_of
from flowcheck.ops.ports.monitors import monitors_of
from flowcheck.ops.ports.plugs import plugs_of
from flowcheck.ops.ports.rings import rings_of
from flowcheck.ops.ports.search import MOST_STEPS
from flowcheck.ops.ports.taps import sought_of
from flowcheck.ops.ports.topology import Algorithm, topology_from
from flowcheck.wire.logged import RingOrder

Point = tuple[int, int, str]
"""(node, NIC, direction)"""


@dataclass(frozen=True)
class Small:
    """A job small enough to try everything on."""

    nodes: int
    gpus: int
    tp: int
    nics: int
    switch_of: tuple[int, ...]
    """[node]"""
    monitors: tuple[tuple[int, int, str], ...]
    """(switch, Gb/s, machine)"""
    orders: tuple[tuple[int, ...], ...]
    """[channel] nodes in ring order"""
    redundancy: int

    @property
    def per_node(self) -> int:
        """Ranks of a node in one group."""
        return self.gpus // self.tp

    def rings(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """(group, channel, ranks of the communicator in ring order, from 0 on)."""
        found = []
        for group in range(self.tp):
            for channel, nodes in enumerate(self.orders):
                each = [n * self.per_node + i for n in nodes for i in range(self.per_node)]
                at = each.index(0)
                found.append((f"tp{group}", channel, tuple(each[at:] + each[:at])))
        return found


@st.composite
def small_jobs(draw: st.DrawFn) -> Small:
    nodes = draw(st.integers(2, 4))
    gpus, tp, nics = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)]))
    if nics == 2:
        nodes = min(nodes, 3)
    channels = draw(st.integers(1, 2))
    switches = draw(st.integers(1, 2))
    spot = st.tuples(
        st.integers(0, switches - 1), st.sampled_from([50, 100, 200, 400]), st.sampled_from("ab")
    )
    return Small(
        nodes=nodes,
        gpus=gpus,
        tp=tp,
        nics=nics,
        switch_of=tuple(draw(st.integers(0, switches - 1)) for _ in range(nodes)),
        monitors=tuple(draw(st.lists(spot, min_size=1, max_size=3))),
        orders=tuple(tuple(draw(st.permutations(range(nodes)))) for _ in range(channels)),
        redundancy=draw(st.integers(1, 2)),
    )


def chosen(job: Small, most_steps: int = MOST_STEPS) -> Choice | None:
    """By the product; None: it says that there is none."""
    used = sorted(set(job.switch_of))
    if any(switch not in used for switch, _, _ in job.monitors):
        return None
    cables = [
        {
            "nic": nic,
            "gpus": [nic] if job.nics > 1 else list(range(job.gpus)),
            "nodes": str(node),
            "switch": f"leaf{job.switch_of[node]}",
            "ports": f"p{node}n{nic}",
            "gbps": 100,
        }
        for node in range(job.nodes)
        for nic in range(job.nics)
    ]
    monitors = [
        {"switch": f"leaf{switch}", "port": f"m{n}", "gbps": gbps, "machine": machine}
        for n, (switch, gbps, machine) in enumerate(job.monitors)
    ]
    topology = topology_from(
        {"nodes": job.nodes, "gpus": job.gpus, "tp": job.tp, "cable": cables, "monitor": monitors}
    )
    plugs = plugs_of(topology)
    own = [ranks for group, _, ranks in job.rings() if group == "tp0"]
    log = [RingOrder(ranks=job.nodes * job.per_node, channels=tuple(own))]
    rings = rings_of(groups_of(topology), plugs, channels=None, logs=[log]).rings
    try:
        return choose(
            sought_of(rings, plugs, Algorithm.RING),
            monitors_of(topology, plugs, None),
            job.redundancy,
            most_steps,
        )
    except ConfigError:
        return None


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
