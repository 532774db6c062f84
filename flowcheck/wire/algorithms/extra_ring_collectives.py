"""Recognizes ring collectives that are in no plan (metrics, barriers, evaluation) by the sizes of
their sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.wire.algorithms.algorithm_spec import (
    CommunicatorShape,
    MirroredLane,
    SendSizeAt,
    SendSizes,
)
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import hops_per_loop
from flowcheck.wire.collectives.tensor_size_fit import (
    CollectiveSetting,
    EdgeSizes,
    Sizes,
    range_of_totals,
    totals_fitting,
)
from flowcheck.wire.traffic.observed_messages import NOT_ARRIVED

LOOPS_MAX = 4
"""Rounds of the ring in a collective that is recognized. A choice that bounds time: longer ones are
as large as buckets."""
TOTALS_MAX = 64
"""Tensor sizes tried at one place; more of them means that too much was lost to tell. A choice that
bounds time."""
SENDS_MAX = 1 << 20
"""Sends laid out in one reading, some seconds: the stage must not stall. A choice: more may explain
more."""
_Edges = tuple[tuple[int, EdgeSizes], ...]


class ExtraRingCollectives:
    """What the ring may carry between the buckets of one communicator."""

    def __init__(self, own: CommunicatorShape, era: NcclEra, lanes: Sequence[MirroredLane]) -> None:
        self._own, self._era, self._lanes = own, era, lanes
        self._edge = {lane.number: lane.edge for lane in lanes}
        self._fits: dict[tuple[CollectiveKind, int, _Edges], tuple[SendSizes, ...]] = {}
        self._sends_left = SENDS_MAX

    def begin(self) -> None:
        """Another reading."""
        self._sends_left = SENDS_MAX

    def at(self, size: SendSizeAt) -> Iterator[SendSizes]:
        """Each that may begin here."""
        known: set[SendSizes] = set()
        for kind in CollectiveKind:
            if kind is CollectiveKind.ALL_GATHER_V and self._era is not NcclEra.V2_29:
                continue  # earlier ones make none
            hops = hops_per_loop(kind, self._own.ranks, self._own.extra_sends)
            for sizes in self._of_kind(size, kind, hops):
                if sizes not in known:
                    known.add(sizes)
                    yield sizes

    def _of_kind(self, size: SendSizeAt, kind: CollectiveKind, hops: int) -> Iterator[SendSizes]:
        roots = self._roots() if kind is CollectiveKind.BROADCAST else (0,)
        for loops in range(1, LOOPS_MAX + 1):
            for used in range(1, self._own.channels + 1):
                for root in roots:
                    edges = self._edges(size, hops * loops, used, root, kind)
                    if edges is not None:
                        yield from self._fitting(kind, root, edges)

    def _after(self, lane: MirroredLane) -> int:
        """Ring index of who is written to."""
        return (lane.edge.sender_of(lane.channel) + 1) % self._own.ranks

    def _roots(self) -> list[int]:
        """Roots of a broadcast that lanes tell from each other: who writes to one sends nothing,
        and all that nobody writes to are alike."""
        near = {self._after(lane) for lane in self._lanes if _around(lane)}
        far = [rank for rank in range(self._own.ranks) if rank not in near]
        return sorted(near | set(far[:1]))

    def _edges(
        self, size: SendSizeAt, sends: int, used: int, root: int, kind: CollectiveKind
    ) -> _Edges | None:
        """What each edge sends if the next `sends` of its first channels are one collective."""
        by_edge: dict[int, list[Sizes]] = {}
        for number, lane in enumerate(self._lanes):
            if not _around(lane):
                continue
            silent = lane.channel >= used or (
                kind is CollectiveKind.BROADCAST and self._after(lane) == root
            )
            sizes = tuple(size(number, n) for n in range(0 if silent else sends))
            if NOT_ARRIVED in sizes:
                return None
            by_edge.setdefault(lane.number, []).append(sizes)
        if not any(any(flows) for flows in by_edge.values()):
            return None
        return tuple(
            (number, EdgeSizes(sender=self._edge[number].writers, flows=tuple(flows)))
            for number, flows in by_edge.items()
        )

    def _fitting(self, kind: CollectiveKind, root: int, edges: _Edges) -> tuple[SendSizes, ...]:
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
    ) -> SendSizes | None:
        own = self._own
        setting = CollectiveSetting(
            ranks=own.ranks,
            channels=own.channels,
            protocol=protocol,
            kind=kind,
            extra_sends=own.extra_sends,
            root=root,
            tuning=own.tuning,
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
        self._sends_left -= len(totals) * sum(len(sizes) for edge in seen for sizes in edge.flows)
        if self._sends_left < 0:
            return None
        for fit in totals_fitting(seen, setting, eras=(self._era,), totals=totals):
            at = {edge: schedule for (edge, _), schedule in zip(edges, fit.schedules, strict=True)}
            return tuple(
                tuple(send.wire_bytes for send in at[lane.number][lane.channel])
                if lane.number in at
                else ()
                for lane in self._lanes
            )
        return None


def _around(lane: MirroredLane) -> bool:
    """It is of the ring: what another algorithm alone has sends nothing for it."""
    return lane.edge.receiver is None
