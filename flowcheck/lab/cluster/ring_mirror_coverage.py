"""The chunks of a ring all-reduce that the mirrored ports show. In a ring of R ranks each link
carries all chunks but one in final form (link_coverage.py says which); links inside a host pass no
port. A link can be mirrored at two ports: as rx of its sender or tx of its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import RING_HOSTS
from flowcheck.lab.cluster.cluster_spec import Cluster, Mirror
from flowcheck.lab.roce_backend.rank_places import Place, nic_of, rank_layout
from flowcheck.wire.collectives.link_coverage import final_chunks


@dataclass(frozen=True, slots=True)
class RingCoverage:
    """What the mirrors show of one ring."""

    ring: tuple[int, ...]
    """Hosts, or ranks where a host has several, in the direction of the data."""
    links: int
    """Number of mirrored links of the ring."""
    sightings: tuple[int, ...]
    """[chunk] number of mirrored links that carry it in final form."""
    twice: tuple[int, ...]
    """Members whose outgoing link is mirrored at both ends; the second copy adds nothing."""
    start: bool
    """True: a mirrored link carries the broadcast of the initial weights from the first member."""
    letter: str = "h"
    """h: members are hosts; r: ranks."""

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
        members = ">".join(f"{self.letter}{member}" for member in self.ring)
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
            said += "; link out of " + ", ".join(f"{self.letter}{member}" for member in self.twice)
            said += " is mirrored at both ends, which adds nothing"
        if not self.start:
            said += "; the initial weights are NOT seen"
        return f"ring {members}: {said}"


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
    return _of_links(tuple(ring), seen, place[min(ring)])


def cluster_coverage(cluster: Cluster) -> list[RingCoverage]:
    """What a cluster's mirrors show of the rings over all its ranks, which differ by channel as the
    NICs do that they pass: one for each."""
    if cluster.ranks == cluster.hosts:
        return [coverage(range(cluster.hosts), cluster.mirrors)]
    nics = [nic_of(gpu, cluster.gpus, cluster.nics) for gpu in range(cluster.gpus)]
    hosts = range(cluster.hosts)
    layout = rank_layout([Place(str(host), nic) for host in hosts for nic in nics])
    host_of, found = layout.host_of, []
    for channel in range(cluster.nics):
        ring = tuple(layout.ring(channel))
        ports = [host_of[rank] * cluster.nics + layout.nics[rank] for rank in ring]
        seen = []
        for into in range(len(ring)):
            if host_of[ring[into - 1]] == host_of[ring[into]]:
                continue
            points = Mirror(ports[into - 1], "rx"), Mirror(ports[into], "tx")
            seen += [into for point in points if point in cluster.mirrors]
        found.append(_of_links(ring, seen, ring.index(0), letter="r"))
    return found


def _of_links(
    ring: tuple[int, ...], seen: list[int], first: int, *, letter: str = "h"
) -> RingCoverage:
    """seen: ring indices that mirrored links lead into; first: that of the first member."""
    size, links = len(ring), set(seen)
    carried = [final_chunks((link - 1) % size, size) for link in links]
    sightings = tuple(sum(chunk in final for final in carried) for chunk in range(size))
    twice = tuple(ring[link - 1] for link in sorted(links) if seen.count(link) > 1)
    # A broadcast is passed on from the first member and never returns to it.
    start = bool(links - {first})
    return RingCoverage(ring, len(links), sightings, twice, start, letter)
