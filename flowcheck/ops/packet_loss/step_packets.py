"""The packets of a step whose loss matters, by how many mirrored copies of each there are. Pure.

An all-reduce on a ring of R ranks goes in loops of R chunks. In the second half of a loop each link
carries finished sums, of all chunks but one. So of R chunks, seen on M links, M are seen M - 1
times and the other R - M are seen M times: with two links (or both directions of one port) two
chunks once, R - 2 twice. Packets with partial sums hold nothing that a replica needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import LINKS_OF_RING
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.planning.ddp_collectives import PlannedCollective
from flowcheck.ops.planning.wire_traffic import MirroredPort
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.ring_schedule import collective

MOST_COPIES = 8
"""Copies of a chunk. A choice: more mirrors than that watch no ring."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Which mirrored copies there are. Construction raises ConfigError for an invalid value."""

    ranks: int
    links: int | None = None
    """Links of the ring that are mirrored, in one direction each; both directions of one port are
    two. None: `copies` says it."""
    copies: int = 1
    """Copies of every chunk, where `links` is None."""

    def __post_init__(self) -> None:
        most = min(MOST_COPIES, self.ranks)
        if self.links is not None and not 2 <= self.links <= most:
            raise ConfigError("--links", self.links, LINKS_OF_RING(ranks=self.ranks, most=most))
        if self.links is None and not 1 <= self.copies <= MOST_COPIES:
            raise ConfigError("--copies", self.copies, FROM_TO(least=1, most=MOST_COPIES))


class PacketRun(msgspec.Struct, frozen=True):
    """A run of packets that matter, and those behind it that do not, `loops` times in a row."""

    run: int
    gap: int
    loops: int


class Stream(msgspec.Struct, frozen=True):
    """Packets of one step that pass in this order, seen `copies` times; copy by copy they meet the
    same packets at the same distance."""

    copies: int
    blocks: tuple[PacketRun, ...]

    @property
    def packets(self) -> int:
        return sum(block.run * block.loops for block in self.blocks)


class StepPackets(msgspec.Struct, frozen=True, kw_only=True):
    """What one ring sends in a step."""

    elements: int
    """Gradient elements."""
    loops: tuple[tuple[int, int], ...]
    """(packets with finished sums in a loop, all channels; number of such loops)."""

    @property
    def packets(self) -> int:
        """Packets with finished sums, each counted once."""
        return sum(packets * loops for packets, loops in self.loops)

    @property
    def elements_per_packet(self) -> float:
        """Mean."""
        return self.elements / self.packets

    def streams(self, coverage: Coverage) -> Counter[Stream]:
        """{stream: how many of it}: independent of each other, as their copies lie apart."""
        slots = [(coverage.copies, [PacketRun(p, _gap(p, p, coverage), m) for p, m in self.loops])]
        if (links := coverage.links) is not None:
            shares = [(_shares(packets, coverage.ranks, links), m) for packets, m in self.loops]
            slots = [
                (
                    links if slot == links else links - 1,
                    [
                        PacketRun(one[slot], _gap(sum(one), one[slot], coverage), m)
                        for one, m in shares
                    ],
                )
                for slot in range(links + 1)
            ]
        found = Counter(
            Stream(copies, tuple(block for block in blocks if block.run))
            for copies, blocks in slots
        )
        return Counter({stream: n for stream, n in found.items() if stream.blocks})


def _shares(packets: int, ranks: int, links: int) -> tuple[int, ...]:
    """Packets of a loop in each chunk that a link misses, and at last in all other chunks."""
    chunk, shares = -(-packets // ranks), list[int]()
    for _ in range(links):
        shares.append(min(chunk, packets - sum(shares)))
    return (*shares, packets - sum(shares))


def _gap(packets: int, run: int, coverage: Coverage) -> int:
    """Other packets of the same loop on the link: 2 (R - 1) chunks pass in it."""
    whole = 2 * (coverage.ranks - 1) * -(-packets // coverage.ranks)
    return max(0, whole - run)


def step_packets(
    collectives: Iterable[PlannedCollective], wire: MirroredPort, iterations: int = 1
) -> StepPackets:
    """Of the gradient buckets among `collectives`, all-reduced `iterations` times in a step, by
    NCCL's ring schedule (wire/collectives/ring_schedule.py). A message of no data counts as no
    packet."""
    loops, elements = Counter[int](), 0
    of_size: dict[tuple[int, int], Counter[int]] = {}
    for planned in collectives:
        if planned.role is not CollectiveRole.BUCKET or not planned.work_bytes:
            continue
        key = (planned.work_bytes, planned.element_bytes)
        if key not in of_size:
            of_size[key] = Counter(_packets_of_loops(planned, wire).tolist())
        loops.update(of_size[key])
        elements += planned.work_bytes // planned.element_bytes
    told = sorted((n, times * iterations) for n, times in loops.items() if n)
    return StepPackets(elements=elements, loops=tuple(told))


def _packets_of_loops(planned: PlannedCollective, wire: MirroredPort) -> NDArray[np.int64]:
    """[loop] packets with finished sums, of all channels: these run side by side."""
    sums = np.zeros(0, np.int64)
    for sender in (0, 1):
        schedule = collective(
            planned.kind,
            planned.work_bytes,
            sender=sender,
            element_bytes=planned.element_bytes,
            ranks=wire.ranks,
            channels=wire.channels,
            protocol=wire.protocol_of(planned),
            era=wire.era,
        )
        for table in schedule:
            shape = (-1, len(table.chunks), table.parts)
            if not len(table):
                continue
            packets = np.where(table.data_bytes > 0, -(-table.wire_bytes // wire.pmtu_bytes), 0)
            wanted = table.final.reshape(shape)[0, :, 0].copy()
            if sender:  # rank 0 sends no finished chunk 1: rank 1, its successor, finishes it
                wanted &= table.chunks == 1
            each = packets.reshape(shape).sum(axis=2)[:, wanted].sum(axis=1)
            if len(each) > len(sums):
                sums = np.concatenate([sums, np.zeros(len(each) - len(sums), np.int64)])
            sums[: len(each)] += each
    return sums
