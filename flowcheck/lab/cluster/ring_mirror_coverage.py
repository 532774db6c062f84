"""The chunks of a ring all-reduce that the mirrored ports show. In a ring of R ranks, one rank per
host, each link carries all chunks but one in final form (link_coverage.py says which). A link can
be mirrored at two ports: as rx of its sender or tx of its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import RING_HOSTS
from flowcheck.lab.cluster.cluster_spec import Mirror
from flowcheck.wire.collectives.link_coverage import final_chunks


@dataclass(frozen=True, slots=True)
class RingCoverage:
    """What the mirrors show of one ring."""

    ring: tuple[int, ...]
    """Hosts in the direction of the data."""
    links: int
    """Number of mirrored links of the ring."""
    sightings: tuple[int, ...]
    """[chunk] number of mirrored links that carry it in final form."""
    twice: tuple[int, ...]
    """Hosts whose outgoing link is mirrored at both ends; the second copy adds nothing."""
    start: bool
    """True: a mirrored link carries the broadcast of the initial weights from the first host."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Chunks that no mirrored link carries in final form."""
        return tuple(chunk for chunk, count in enumerate(self.sightings) if not count)

    @property
    def complete(self) -> bool:
        """Whether all chunks are shown."""
        return not self.missing

    @property
    def spare(self) -> int:
        """Number of mirrored links that may fail, whichever they are: any two links carry all
        chunks."""
        return max(0, self.links - 2)

    def __str__(self) -> str:
        hosts = ">".join(f"h{host}" for host in self.ring)
        if not self.complete:
            lost = ", ".join(map(str, self.missing))
            said = f"{len(self.missing)} of {len(self.ring)} chunks never seen ({lost})"
        elif min(self.sightings) == 1:
            once = self.sightings.count(1)
            said = f"all {len(self.ring)} chunks seen, {once} of them once, without a spare"
        else:
            said = f"all {len(self.ring)} chunks seen, each at least {min(self.sightings)} times"
        if self.spare:
            said += f"; {self.spare} mirrored link(s) may fail"
        if self.twice:
            said += "; link out of " + ", ".join(f"h{host}" for host in self.twice)
            said += " is mirrored at both ends, which adds nothing"
        if not self.start:
            said += "; the initial weights are NOT seen"
        return f"ring {hosts}: {said}"


def coverage(ring: Sequence[int], mirrors: Sequence[Mirror]) -> RingCoverage:
    """What `mirrors` show of all-reduces over the hosts in `ring`. Raises ConfigError if `ring`
    has fewer than two hosts, or a host twice."""
    if len(ring) < 2 or len(set(ring)) != len(ring):
        raise ConfigError("ring", ",".join(map(str, ring)), RING_HOSTS())
    size = len(ring)
    place = {host: index for index, host in enumerate(ring)}
    seen = [
        # Ring index the mirrored link leads into.
        (place[mirror.port] + (mirror.direction == "rx")) % size
        for mirror in mirrors
        if mirror.port in place
    ]
    links = set(seen)
    carried = [final_chunks((link - 1) % size, size) for link in links]
    sightings = tuple(sum(chunk in final for final in carried) for chunk in range(size))
    twice = tuple(ring[link - 1] for link in sorted(links) if seen.count(link) > 1)
    # A broadcast is passed on from the first host and never returns to it.
    first = place[min(ring)]
    return RingCoverage(tuple(ring), len(links), sightings, twice, bool(links - {first}))
