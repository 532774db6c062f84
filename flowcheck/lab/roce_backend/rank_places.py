"""Where the ranks of a communicator are, and the rings that follow: which GPU of a host a channel
enters and leaves by, as NCCL's topology search finds it on nodes with NVSwitch.

Sources: src/graph/search.cc and src/graph/connect.cc (connectRings) of NCCL 2.21 to 2.30, as they
come out on nodes of eight H100: with a NIC for each GPU channel c enters by GPU c and leaves by GPU
c xor 1, on odd nodes the other way round; with fewer NICs it enters by the first GPU of a NIC and
leaves by the next GPU, through the same NIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank is."""

    host: str
    """Whatever tells hosts apart."""
    nic: int
    """Number of its NIC on that host: each GPU writes by the one nearest to it."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """A communicator's ranks by host."""

    hosts: tuple[tuple[int, ...], ...]
    """[host] its ranks, ascending; hosts in the order of their first rank."""
    nics: tuple[int, ...]
    """[rank] its NIC."""

    @property
    def host_of(self) -> list[int]:
        """[rank] number of its host."""
        pairs = [(rank, host) for host, ranks in enumerate(self.hosts) for rank in ranks]
        return [host for _, host in sorted(pairs)]

    def entrances(self, host: int) -> list[int]:
        """Positions among a host's ranks of the first rank of each NIC."""
        ranks = self.hosts[host]
        nics = [self.nics[rank] for rank in ranks]
        return [nics.index(nic) for nic in sorted(set(nics))]

    def heads(self, nccl_version: int) -> list[list[int]]:
        """[host] the ranks that are heads of NVLS trees, one for each NIC; [] where NCCL of this
        release (22900 for 2.29) makes none (src/transport/nvls.cc, src/graph/tuning.cc)."""
        gpus, nics = nvls_needs(nccl_version)
        sizes = {len(ranks) for ranks in self.hosts}
        count = min(len(self.entrances(host)) for host in range(len(self.hosts)))
        if len(sizes) > 1 or min(sizes) < gpus or count < nics or len(self.hosts) < 2:
            return []
        return [
            [ranks[position] for position in self.entrances(host)[:count]]
            for host, ranks in enumerate(self.hosts)
        ]

    def chain(self, channel: int) -> list[int]:
        """Host by host, its ranks as a channel's tree has them: one is in the tree over hosts, the
        first GPU of the channel's NIC on every host, and the others hang from it in a row
        (src/graph/connect.cc, connectTrees). [] where hosts have different numbers of ranks."""
        if len({len(ranks) for ranks in self.hosts}) > 1:
            return []
        found: list[int] = []
        for host, ranks in enumerate(self.hosts):
            entrances = self.entrances(host)
            first = entrances[channel % len(entrances)]
            found += [ranks[first - hop] for hop in range(len(ranks))]
        return found

    def found(self, channels: int) -> int:
        """Channels that NCCL's search found, which have the first of the two trees; their copies
        have the second one. The search does not ask how many channels there may be (src/init.cc,
        initTransportsRank), so that each NIC has one; what is more than NCCL_MAX_NCHANNELS is cut
        off behind the copying (src/graph/connect.cc, ncclTopoPostset)."""
        nics = min(len(self.entrances(host)) for host in range(len(self.hosts)))
        half = -(-channels // 2)
        return -(-half // nics) * nics

    def ring(self, channel: int) -> list[int]:
        """The ring of a channel, from rank 0 on."""
        whole: list[int] = []
        for host, ranks in enumerate(self.hosts):
            whole += [ranks[position] for position in self._inside(host, channel)]
        first = whole.index(0)
        return [*whole[first:], *whole[:first]]

    def _inside(self, host: int, channel: int) -> list[int]:
        """Positions of a host's ranks as a channel's ring passes them."""
        gpus = len(self.hosts[host])
        if len({len(ranks) for ranks in self.hosts}) > 1:
            # What the search finds for unequal hosts is not known; any order is a ring.
            return list(range(gpus))
        entrances = self.entrances(host)
        nics = min(len(self.entrances(other)) for other in range(len(self.hosts)))
        if nics == gpus and gpus % 2 == 0:
            first = channel % nics
            first, last = (first, first ^ 1) if host % 2 == 0 else (first ^ 1, first)
        else:
            first = entrances[channel % nics]
            last = (first + 1) % gpus
        # Down from the entrance to the GPU above it, or up to the one below.
        step = -1 if last == (first + 1) % gpus else 1
        return [(first + step * hop) % gpus for hop in range(gpus)]


def rank_layout(places: Sequence[Place]) -> RankLayout:
    """The layout of ranks that are at `places` ([rank])."""
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place.host, []).append(rank)
    return RankLayout(tuple(map(tuple, found.values())), tuple(place.nic for place in places))


def nvls_needs(nccl_version: int) -> tuple[int, int]:
    """(GPUs, NICs) of a host that NVLS trees need at least; the release as 22900 for 2.29."""
    return (2, 2) if nccl_version >= 22800 else (3, 1)


def nic_of(gpu: int, gpus: int, nics: int) -> int:
    """The NIC nearest to a GPU of a host: `nics` of them are shared out among `gpus` in order."""
    return gpu * nics // gpus
