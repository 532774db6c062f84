"""Recognizes tree all-reduces that are in no plan by the sizes of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.wire.algorithms.algorithm_spec import (
    CommunicatorShape,
    MirroredLane,
    SendSizeAt,
    SendSizes,
)
from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.double_binary_tree import TREE_THREADS, tree_chunks, tree_direction
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    NcclEra,
    Protocol,
    data_bytes_of,
    wire_bytes,
)

CHUNKS_MAX = 8
"""Messages of a connection in one all-reduce that is recognized. A choice that bounds time: longer
ones are as large as buckets."""
TreeSizes = tuple[tuple[int, ...], ...]
"""[channel][send] wire bytes."""


class ExtraTreeAllReduces:
    """What trees may carry between the buckets of one communicator."""

    def __init__(self, own: CommunicatorShape, era: NcclEra, lanes: Sequence[MirroredLane]) -> None:
        self._own, self._era = own, era
        self._channels: list[list[int]] = [[] for _ in range(own.channels)]
        """[channel] lanes of its tree."""
        for number, lane in enumerate(lanes):
            if tree_direction(lane.edge, lane.channel, own) is not None:
                self._channels[lane.channel].append(number)
        self._lanes = len(lanes)

    def begin(self) -> None:
        """What one place costs is bounded by CHUNKS_MAX: there is nothing to grant anew."""

    def at(self, size: SendSizeAt) -> Iterator[SendSizes]:
        """Each that may begin here."""
        for used in range(1, self._own.channels + 1):
            for count in range(1, CHUNKS_MAX + 1):
                rows = [self._row(size, channel, count) for channel in range(used)]
                known = [row for row in rows if row is not None]
                if len(known) < used:
                    break
                for protocol in (Protocol.LL, Protocol.SIMPLE, Protocol.LL128):
                    if (chunks := self._fitting(known, protocol)) is not None:
                        yield self._on_lanes(chunks)

    def _row(self, size: SendSizeAt, channel: int, count: int) -> tuple[int, ...] | None:
        """Wire bytes of the next sends of a channel, alike on all its links; None where they are
        not, or nobody knows."""
        row: list[int] = []
        for number in range(count):
            sizes = {size(lane, number) for lane in self._channels[channel]} - {None}
            if len(sizes) != 1 or (only := sizes.pop()) is None or only < 0:
                return None
            row.append(only)
        return tuple(row)

    def _fitting(self, rows: Sequence[Sequence[int]], protocol: Protocol) -> TreeSizes | None:
        """[channel][send] of a tensor whose messages are just these: the largest that is."""
        room = sum(data_bytes_of(protocol, size) for row in rows for size in row)
        grain = GRAIN_BYTES[protocol] if protocol is Protocol.LL128 else 1
        less = range(0, sum(map(len, rows)) * (grain > 1) + 1)
        for total in (room - n * grain for n in less):
            chunks = self._chunks(total, protocol) if total > 0 else ()
            if chunks[: len(rows)] == tuple(map(tuple, rows)) and not any(chunks[len(rows) :]):
                return chunks
        return None

    def _chunks(self, total: int, protocol: Protocol) -> TreeSizes:
        own = self._own
        launch = Launch(
            kind=CollectiveKind.ALL_REDUCE,
            work_bytes=total,
            element_bytes=4 if total % 4 == 0 else 1,
            ranks=own.ranks,
            channels=own.channels,
            protocol=protocol,
            era=self._era,
            tuning=own.tuning,
            thread_rule=TREE_THREADS,
            gpus=own.gpus,
        )
        return tuple(
            tuple(wire_bytes(protocol, size) for _, size in spans) for spans in tree_chunks(launch)
        )

    def _on_lanes(self, chunks: TreeSizes) -> SendSizes:
        lanes: list[tuple[int, ...]] = [()] * self._lanes
        for channel, own in enumerate(self._channels):
            for lane in own:
                lanes[lane] = chunks[channel]
        return tuple(lanes)
