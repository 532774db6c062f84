"""What a choice of mirrors sees, against rings whose data are really moved around."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.moved import sums_passing
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import RING_HOSTS
from flowcheck.lab.cluster import Mirror, coverage

Seen = dict[tuple[int, str], list[int]]
"""Per port and direction, the chunks whose complete sum passed it, in order."""


def run_all_reduce(ring: list[int]) -> Seen:
    """Of a ring that runs."""
    seen: Seen = {}
    for at, chunks in enumerate(sums_passing(len(ring))):
        seen[ring[at], "rx"] = seen[ring[(at + 1) % len(ring)], "tx"] = chunks
    return seen


def run_broadcast(ring: list[int]) -> set[tuple[int, str]]:
    """The first rank's data go from hand to hand until everybody has them."""
    passed = set()
    at = ring.index(min(ring))
    have = {ring[at]}
    while len(have) < len(ring):
        to = (at + 1) % len(ring)
        passed |= {(ring[at], "rx"), (ring[to], "tx")}
        have.add(ring[to])
        at = to
    return passed


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[int], list[Mirror]]:
    size = draw(st.integers(2, 8))
    ring = draw(st.permutations(range(size)))
    points = [Mirror(port, way) for port in range(size) for way in ("rx", "tx")]
    return list(ring), draw(st.lists(st.sampled_from(points), min_size=1, unique=True))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choices())
def test_against_a_ring_that_runs(choice: tuple[list[int], list[Mirror]]) -> None:
    ring, mirrors = choice
    seen = run_all_reduce(ring)
    # The two ends of a link carry the same: counted once.
    links: dict[int, list[int]] = {}
    for mirror in mirrors:
        at = ring.index(mirror.port)
        from_ = at if mirror.direction == "rx" else (at - 1) % len(ring)
        links.setdefault(from_, seen[mirror.port, mirror.direction])
    counts = [sum(chunks.count(c) for chunks in links.values()) for c in range(len(ring))]
    found = coverage(ring, mirrors)
    assert list(found.sightings) == counts
    assert list(found.missing) == [c for c, count in enumerate(counts) if count == 0]
    points = {(mirror.port, mirror.direction) for mirror in mirrors}
    assert found.start == bool(points & run_broadcast(ring))
    # Any `spare` links fail: all is still seen; one more may be too many.
    if found.complete:
        left = len(links) - found.spare
        assert left >= 2
        lists = sorted(links.values(), key=len)
        assert set().union(*lists[:left]) == set(range(len(ring)))
        for one in lists:
            assert set(one) != set(range(len(ring)))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_the_rules_of_thumb(size: int) -> None:
    ring = range(size)
    for port in ring:
        assert len(coverage(ring, [Mirror(port, "rx")]).missing) == 1
        assert len(coverage(ring, [Mirror(port, "tx")]).missing) == 1
        assert coverage(ring, [Mirror(port, "rx"), Mirror(port, "tx")]).complete
    assert coverage(ring, [Mirror(0, "rx"), Mirror(1, "rx")]).complete
    # Both ends of one link: two ports, two directions, and still one chunk short.
    same = coverage(ring, [Mirror(0, "rx"), Mirror(1, "tx")])
    assert len(same.missing) == 1
    assert same.twice == (0,)
    assert "never seen" in str(same)


def test_one_link_into_the_first_host_never_carries_the_weights() -> None:
    assert not coverage(range(4), [Mirror(0, "tx")]).start
    assert "initial weights are NOT seen" in str(coverage(range(4), [Mirror(3, "rx")]))
    assert coverage(range(4), [Mirror(0, "rx")]).start


@pytest.mark.parametrize("ring", [[], [1], [0, 1, 0]])
def test_no_ring(ring: list[int]) -> None:
    with refused_as(RING_HOSTS, kind=ConfigError):
        coverage(ring, [Mirror(0, "rx")])
