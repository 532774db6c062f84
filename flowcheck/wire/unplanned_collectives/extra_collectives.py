"""Recognizes ring collectives that are in no plan (metrics, barriers, evaluation) by the sizes
of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, Tuning, pieces
from flowcheck.wire.collectives.tensor_size_fit import (
    CollectiveSetting,
    EdgeSizes,
    Sizes,
    range_of_totals,
    totals_fitting,
)
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.unplanned_collectives.extra_tree_all_reduces import ExtraTreeAllReduces

LaneSizes = tuple[tuple[int, ...], ...]
"""[lane][message] wire bytes; a lane is a mirrored flow of the communicator."""
MessageSizeAt = Callable[[int, int], int | None]
"""(lane, message number) -> wire bytes; None: was lost, or nobody knows; ABSENT."""

NOT_ARRIVED = -1
"""Wire bytes of a message that has not come yet."""
LOOPS_MAX = 4
"""Rounds of the ring in a collective that is recognized."""
TOTALS_MAX = 64
"""Tensor sizes tried at one place; more of them means that too much was lost to tell."""
SENDS_MAX = 1 << 20
"""Sends laid out in one reading, some seconds: the stage must not stall."""
_Edges = tuple[tuple[int, EdgeSizes], ...]


class ExtraCollectives:
    """What may lie between the buckets of one communicator."""

    def __init__(
        self,
        job: LearnedJob,
        communicator: int,
        lanes: Sequence[tuple[int, int]],
        known: Sequence[LaneSizes],
        *,
        guess: bool,
    ) -> None:
        """lanes: [lane] (edge, channel); known: collectives that were seen at start-up; guess:
        other collectives of the ring are possible too."""
        self._job, self._communicator = job, job.communicators[communicator]
        self._lanes, self._guess = lanes, guess
        self._known = [sizes for sizes in known if any(sizes)]
        self._fits: dict[tuple[CollectiveKind, int, _Edges], tuple[LaneSizes, ...]] = {}
        self._pieces = max(job.edges[edge].pieces for edge, _ in lanes) if lanes else 1
        self._sends_left = SENDS_MAX
        places = [(job.edges[edge], channel) for edge, channel in lanes]
        trees = guess and self._communicator.found > 0
        self._trees = ExtraTreeAllReduces(self._communicator, job.rule, places) if trees else None

    def begin(self) -> None:
        """Another reading."""
        self._sends_left = SENDS_MAX

    def at(self, at: tuple[int, ...], size: MessageSizeAt) -> Iterator[LaneSizes]:
        """Collectives that may begin with the messages numbered `at`, each size once."""
        yield from self._known
        told = set(self._known)
        for kind, hops in self._hops() if self._guess else ():
            for sizes in self._of_kind(at, size, kind, hops):
                if sizes not in told:
                    told.add(sizes)
                    yield sizes
        if self._trees is not None:
            for sends in self._trees.at(lambda lane, n: self._whole(size, lane, at[lane], n)):
                sizes = tuple(tuple(self._pieces_of(lane)) for lane in sends)
                if sizes not in told:
                    told.add(sizes)
                    yield sizes

    def _pieces_of(self, sends: Sequence[int]) -> Iterator[int]:
        """Messages that they are, where queue pairs split them."""
        for size in sends:
            yield from (stop - start for start, stop in pieces(size, self._pieces))

    def _hops(self) -> Iterator[tuple[CollectiveKind, int]]:
        """Sends of one round of the ring, by kind."""
        ranks = self._communicator.ranks
        yield CollectiveKind.ALL_REDUCE, 2 * ranks - 2 + self._communicator.extra_sends
        yield CollectiveKind.BROADCAST, 1
        yield CollectiveKind.ALL_GATHER, ranks - 1
        yield CollectiveKind.REDUCE_SCATTER, ranks - 1

    def _of_kind(
        self, at: tuple[int, ...], size: MessageSizeAt, kind: CollectiveKind, hops: int
    ) -> Iterator[LaneSizes]:
        roots = self._roots() if kind is CollectiveKind.BROADCAST else (0,)
        for loops in range(1, LOOPS_MAX + 1):
            for used in range(1, self._communicator.channels + 1):
                for root in roots:
                    edges = self._edges(at, size, hops * loops, used, root, kind)
                    if edges is not None:
                        yield from self._fitting(kind, root, edges)

    def _after(self, lane: int) -> int:
        """Ring index of who is written to."""
        edge, channel = self._lanes[lane]
        return (self._job.edges[edge].sender_of(channel) + 1) % self._communicator.ranks

    def _around(self, lane: int) -> bool:
        """It is of the ring: what trees alone have sends nothing for it."""
        return self._job.edges[self._lanes[lane][0]].receiver is None

    def _roots(self) -> list[int]:
        """Roots of a broadcast that lanes tell from each other: who writes to one sends nothing,
        and all that nobody writes to are alike."""
        near = {self._after(lane) for lane in range(len(self._lanes)) if self._around(lane)}
        far = [rank for rank in range(self._communicator.ranks) if rank not in near]
        return sorted(near | set(far[:1]))

    def _edges(
        self,
        at: tuple[int, ...],
        size: MessageSizeAt,
        messages: int,
        used: int,
        root: int,
        kind: CollectiveKind,
    ) -> _Edges | None:
        """What each edge sends if the next `messages` of its first channels are one collective."""
        by_edge: dict[int, list[Sizes]] = {}
        for number, (edge, channel) in enumerate(self._lanes):
            if not self._around(number):
                continue
            silent = channel >= used or (
                kind is CollectiveKind.BROADCAST and self._after(number) == root
            )
            count = 0 if silent else messages
            sizes = tuple(self._whole(size, number, at[number], n) for n in range(count))
            if NOT_ARRIVED in sizes:
                return None
            by_edge.setdefault(edge, []).append(sizes)
        if not any(any(flows) for flows in by_edge.values()):
            return None
        return tuple(
            (edge, EdgeSizes(sender=self._job.edges[edge].writers, flows=tuple(flows)))
            for edge, flows in by_edge.items()
        )

    def _whole(self, size: MessageSizeAt, lane: int, at: int, send: int) -> int | None:
        """Wire bytes of a send; of one that queue pairs split, of all its pieces."""
        sizes = [size(lane, at + send * self._pieces + n) for n in range(self._pieces)]
        if NOT_ARRIVED in sizes:
            return NOT_ARRIVED
        known = [one for one in sizes if one is not None]
        return sum(known) if len(known) == len(sizes) else None

    def _fitting(self, kind: CollectiveKind, root: int, edges: _Edges) -> tuple[LaneSizes, ...]:
        """Collectives of this kind that give exactly these sizes, the smallest by protocol."""
        name = (kind, root, edges)
        if name not in self._fits:
            protocols = (Protocol.LL, Protocol.SIMPLE, Protocol.LL128)
            found = (self._smallest(kind, root, edges, protocol) for protocol in protocols)
            fits = tuple(sizes for sizes in found if sizes is not None)
            if self._sends_left < 0:
                return fits  # another reading may find more
            self._fits[name] = fits
        return self._fits[name]

    def _smallest(
        self, kind: CollectiveKind, root: int, edges: _Edges, protocol: Protocol
    ) -> LaneSizes | None:
        own = self._communicator
        setting = CollectiveSetting(
            ranks=own.ranks,
            channels=own.channels,
            protocol=protocol,
            kind=kind,
            extra_sends=own.extra_sends,
            root=root,
            tuning=Tuning(
                threads=own.threads, threshold=own.threshold, buffer_bytes=own.buffer_bytes
            ),
        )
        seen = [sizes for _, sizes in edges]
        # An edge that a broadcast does not use says nothing of its size.
        told = [edge for edge in seen if any(edge.flows)]
        if all(len(edge.flows) < own.channels for edge in told):
            return None  # what other channels carry has no bound
        totals = range_of_totals(told, setting)
        if protocol is Protocol.LL128:
            # Groups hardly tell the size, and of all that give the same sizes one is enough.
            totals = totals[:: max(1, -(-len(totals) // TOTALS_MAX))]
        if len(totals) > TOTALS_MAX:
            return None
        self._sends_left -= len(totals) * sum(len(own) for edge in seen for own in edge.flows)
        if self._sends_left < 0:
            return None
        for fit in totals_fitting(seen, setting, rules=(self._job.rule,), totals=totals):
            at = {edge: schedule for (edge, _), schedule in zip(edges, fit.schedules, strict=True)}
            return tuple(
                tuple(self._pieces_of([send.wire_bytes for send in at[edge][channel]]))
                if edge in at
                else ()
                for edge, channel in self._lanes
            )
        return None
