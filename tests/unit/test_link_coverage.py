"""What mirrored links see of a collective, against a ring whose data are really moved around."""

from __future__ import annotations

from itertools import combinations

import pytest

from flowcheck.wire.collectives.link_coverage import final_chunks, link_coverage
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import collective


def final_on_links(ranks: int) -> list[set[int]]:
    """[link] chunks whose complete sum passes it: every rank sends one chunk a step and adds what
    it gets to its own."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    seen: list[set[int]] = [set() for _ in range(ranks)]
    for step in range(2 * ranks - 2):
        moving = [(at, (at - 1 - step) % ranks) for at in range(ranks)]
        parts = [set(held[at][chunk]) for at, chunk in moving]
        for (at, chunk), part in zip(moving, parts, strict=True):
            if len(part) == ranks:
                seen[at].add(chunk)
            held[(at + 1) % ranks][chunk] |= part
    return seen


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_every_link_lacks_the_chunk_that_the_next_rank_completes(ranks: int) -> None:
    assert [final_chunks(link, ranks) for link in range(ranks)] == final_on_links(ranks)


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("rule", [NcclEra.V2_19, NcclEra.V2_29])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("size", [4 * 100_003, 4 * 1000])
def test_bytes_of_any_links_are_those_of_their_chunks(
    size: int, ranks: int, rule: NcclEra, protocol: Protocol
) -> None:
    """A few elements leave slices and chunks empty."""
    schedules = [
        collective(
            CollectiveKind.ALL_REDUCE,
            size,
            sender=sender,
            ranks=ranks,
            channels=2,
            protocol=protocol,
            era=rule,
        )
        for sender in range(ranks)
    ]
    owners = final_on_links(ranks)
    chunk_bytes = [0] * ranks
    for sends in schedules[0] + schedules[1]:
        for send in sends:
            if send.final and (send.chunk in owners[0]) is (sends in schedules[0]):
                chunk_bytes[send.chunk] += send.data_bytes
    assert sum(chunk_bytes) == size
    for count in range(1, ranks + 1):
        for links in combinations(range(ranks), count):
            found = link_coverage([schedules[link] for link in links], size, ranks)
            times = [sum(chunk in owners[link] for link in links) for chunk in range(ranks)]
            assert found.missing == tuple(
                c for c in range(ranks) if chunk_bytes[c] and not times[c]
            )
            full = zip(times, chunk_bytes, strict=True)
            assert found.links == tuple(n if held else 0 for n, held in full)
            assert found.once_bytes == sum(chunk_bytes[c] for c in range(ranks) if times[c])
            assert found.twice_bytes == sum(chunk_bytes[c] for c in range(ranks) if times[c] > 1)
            assert found.complete == (found.missing == ())
