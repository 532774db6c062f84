"""Which bytes of a collective's result pass the mirrored links of a ring in final form.

A link leads from one ring index to the next. In an all-reduce the link out of index i carries
every chunk in final form but chunk i + 1, whose sum the next rank itself completes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.ring_schedule import Schedule, chunk_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCoverage:
    """Of some links together."""

    bytes: int
    """The result's."""
    once_bytes: int
    """In final form on at least one of the links."""
    twice_bytes: int
    """On at least two: a frame that a mirror loses is on another one still."""
    links: tuple[int, ...]
    """[chunk of a loop] how many of the links carry it in final form; where channels differ, on the
    channel on which the fewest do."""
    missing: tuple[int, ...]
    """Chunks that hold something and pass none of them."""

    @property
    def complete(self) -> bool:
        return self.once_bytes == self.bytes


def final_chunks(sender: int, ranks: int) -> frozenset[int]:
    """Chunks of an all-reduce that the link out of ring index `sender` carries in final form."""
    hops = (chunk_of(hop, sender=sender, ranks=ranks) for hop in range(2 * ranks - 2))
    return frozenset(chunk for chunk, final in hops if final)


def link_coverage(schedules: Sequence[Schedule], result_bytes: int, chunks: int) -> LinkCoverage:
    """schedules: what each link carries; chunks: how many a loop has."""
    times: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    full: Counter[tuple[int, int]] = Counter()
    held: set[tuple[int, int]] = set()
    for schedule in schedules:
        every = [send for sends in schedule for send in sends]
        final = {s.start_byte: s.data_bytes for s in every if s.final and s.data_bytes}
        times.update(final.keys())
        sizes.update(final)
        full.update({(s.channel, s.chunk) for s in every if s.final and s.data_bytes})
        held |= {(s.channel, s.chunk) for s in every if s.data_bytes}
    fewest: dict[int, int] = {}
    for channel, chunk in held:
        fewest[chunk] = min(full[channel, chunk], fewest.get(chunk, len(schedules)))
    return LinkCoverage(
        bytes=result_bytes,
        once_bytes=sum(sizes.values()),
        twice_bytes=sum(size for start, size in sizes.items() if times[start] > 1),
        links=tuple(fewest.get(chunk, 0) for chunk in range(chunks)),
        missing=tuple(c for c in range(chunks) if fewest.get(c) == 0),
    )
