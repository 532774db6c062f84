"""How large a collective may be by the sizes of the sends it would begin with: the most that these
hold, on a ring or on trees, and how much less it may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.double_binary_tree import tree_direction
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    NcclEra,
    Protocol,
    data_bytes_of,
)
from flowcheck.wire.collectives.ring_schedule import collective, hops_per_loop, sends_per_chunk
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import CODE_OF, Stream

Positions = tuple[tuple[int, ...], ...]
"""[edge][stream] -> number of the next send."""
Channels = tuple[tuple[int | None, ...], ...]
"""[edge][stream] -> channel; None: not told yet."""

MOST_OPTIONS = 16
"""Totals of one collective that are tried, and loops of a channel."""
MOST_CHUNKS = 256
"""Of a tree's channel, that are looked at."""
LL_SLACK = (0, 4, 2, 6, 1, 3, 5, 7)
"""Data bytes the last LL line may lack; four-byte elements are the common case."""
LEAST_CHUNK_BYTES = 16
"""Chunks are cut by multiples of it at least (NCCL src/device/all_reduce.h, 16 / sizeof(T))."""
MOST_SIZES = 8
"""Totals tried of those that take LL128 groups of the same room."""
STEP_BYTES = 8
"""Between two of these that are looked at."""


def totals_of(
    ring: Ring,
    positions: Positions,
    channels: Channels,
    kind: CollectiveKind,
    protocol: Protocol,
    root: int = 0,
) -> Iterator[int]:
    """Totals of `kind` that fit the parts of the channels, by any edge that shows them all. root:
    of a broadcast."""
    found: dict[int, None] = {}
    for edge, at, names in zip(ring.edges, positions, channels, strict=True):
        if edge.receiver is not None:
            continue
        parts = [
            _parts(ring, s, n, kind, protocol) if _writes(ring, edge, name, kind, root) else []
            for s, n, name in zip(edge.streams, at, names, strict=True)
        ]
        for taking_part in _subsets(parts, names):
            for choice in product(*taking_part):
                found.setdefault(sum(choice))
                if len(found) >= MOST_OPTIONS:
                    break
    if not found and kind is CollectiveKind.ALL_REDUCE:
        found.update(dict.fromkeys(_united(ring, positions, channels, protocol)))
    for total in sorted(found, reverse=True):
        if total > 0:
            yield total


def _subsets(
    parts: Sequence[Sequence[int]], names: Sequence[int | None]
) -> Iterator[list[Sequence[int]]]:
    """All streams of an edge, then fewer: small tensors use the first channels only."""
    order = sorted(range(len(parts)), key=lambda i: (names[i] is None, names[i] or 0))
    for count in range(len(parts), 0, -1):
        chosen = [parts[i] for i in order[:count]]
        if all(chosen):
            yield chosen
    if any(name is None for name in names):
        for i in order[1:]:
            if parts[i]:
                yield [parts[i]]


def _writes(ring: Ring, edge: Edge, channel: int | None, kind: CollectiveKind, root: int) -> bool:
    """False where no broadcast passes: whoever writes there does so to the root."""
    if kind is not CollectiveKind.BROADCAST or ring.sounding or (edge.senders and channel is None):
        return True
    return (edge.sender_of(channel or 0) + 1) % ring.ranks != root


def _parts(
    ring: Ring, stream: Stream, at: int, kind: CollectiveKind, protocol: Protocol
) -> list[int]:
    """Most data bytes a collective starting at send `at` may have on this channel: one entry for
    each number of loops it may have; () where a size is not known."""
    if stream.protocol_at(at) not in (None, protocol):
        return []
    options: list[int] = []
    total = 0
    while at < stream.stop and len(options) < MOST_OPTIONS:
        chunks = _loop_chunks(ring, 0, stream, at, kind, protocol)
        if chunks is None or any(size is None for size in chunks):
            break
        known = [size or 0 for size in chunks]
        if kind.in_blocks:
            if len(set(known)) > 1:
                break
            known = known[:1]
        total += sum(known)
        full = full_chunk(kind, protocol)
        options.append(total)
        if any(size < full for size in known):
            return [*options[-1:], *options[:-1]]
        at += _hops(ring, kind) * sends_per_chunk(kind, protocol)
    return options[::-1]


@lru_cache(maxsize=64)
def full_chunk(kind: CollectiveKind, protocol: Protocol) -> int:
    """Data bytes of a full chunk with default buffers, behind which another loop may follow."""
    return Launch(
        kind=kind,
        work_bytes=0,
        element_bytes=1,
        ranks=2,
        channels=1,
        protocol=protocol,
        era=NcclEra.V2_19,
    ).chunk_bytes


def _united(ring: Ring, positions: Positions, channels: Channels, protocol: Protocol) -> list[int]:
    """The total of a one-loop all-reduce whose chunks no single edge shows, but all together."""
    total = 0
    for channel in range(ring.channels):
        united: list[int | None] = [None] * ring.ranks
        for edge, at, names in zip(ring.edges, positions, channels, strict=True):
            if edge.receiver is not None:
                continue
            order = sorted(range(len(at)), key=lambda i: (names[i] is None, names[i] or 0))
            if channel >= len(order):
                continue
            i = order[channel]
            chunks = _loop_chunks(
                ring,
                edge.sender_of(channel),
                edge.streams[i],
                at[i],
                CollectiveKind.ALL_REDUCE,
                protocol,
            )
            for lane, size in enumerate(chunks or []):
                if size is not None and united[lane] not in (None, size):
                    return []
                united[lane] = size if size is not None else united[lane]
        if any(size is None for size in united):
            return []
        total += sum(size or 0 for size in united)
    return [total]


def _loop_chunks(
    ring: Ring, sender: int, stream: Stream, at: int, kind: CollectiveKind, protocol: Protocol
) -> Sequence[int | None] | None:
    """[chunk, by who writes] most data bytes of each chunk of the loop that starts at send `at`,
    None where no copy of the chunk has a known size; None if copies disagree."""
    lanes = ring.ranks if kind is CollectiveKind.ALL_REDUCE else _hops(ring, kind)
    hops, per_hop = _hops(ring, kind), sends_per_chunk(kind, protocol)
    name = (at, lanes, hops, per_hop, CODE_OF[protocol])
    if name not in stream.looked_up:
        stream.looked_up[name] = _lanes(stream, at, lanes, hops, per_hop, protocol)
    found = stream.looked_up[name]
    if found is None or kind is not CollectiveKind.ALL_REDUCE:
        return found
    # Hop n carries chunk `sender` - 1 - n.
    return [found[(sender - 1 - chunk) % lanes] for chunk in range(lanes)]


def _lanes(
    stream: Stream, at: int, lanes: int, hops: int, per_hop: int, protocol: Protocol
) -> list[int | None] | None:
    """[lane] most data bytes of what hops n, n + lanes, ... carry; None if they disagree."""
    sizes: list[int | None] = [None] * lanes
    for hop in range(hops):
        sends = [stream.sends.get(at + hop * per_hop + i) for i in range(per_hop)]
        if any(send is None for send in sends):
            continue
        size = sum(data_bytes_of(protocol, s.wire_bytes) for s in sends if s is not None)
        if sizes[hop % lanes] not in (None, size):
            return None
        sizes[hop % lanes] = size
    return sizes


def _hops(ring: Ring, kind: CollectiveKind) -> int:
    return hops_per_loop(kind, ring.ranks, ring.extra_sends)


def tree_totals(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol
) -> Iterator[int]:
    """Most bytes that the next messages of the trees' own connections hold together, of as many
    channels as there may be."""
    if not ring.found:
        return
    next_of = _next_on_trees(ring, positions, channels)
    told: dict[int, None] = {}
    for used in range(ring.channels, 0, -1):
        if not all(channel in next_of for channel in range(used)):
            continue
        sums = [_chunk_sums(*next_of[channel], protocol) for channel in range(used)]
        if not all(sums):
            continue
        told.setdefault(sum(run[-1] for run in sums))
        # Chunks may be of one size to the last one: the next tensor may follow at any of them.
        for count in range(min(max(map(len, sums)), MOST_CHUNKS), 0, -1):
            told.setdefault(sum(run[min(count, len(run)) - 1] for run in sums))
    yield from (total for total in told if total > 0)


def _next_on_trees(
    ring: Ring, positions: Positions, channels: Channels
) -> dict[int, tuple[Stream, int]]:
    """[channel] (a connection of its tree that the ring has not, number of its next send)."""
    found: dict[int, tuple[Stream, int]] = {}
    for edge, at, names in zip(ring.edges, positions, channels, strict=True):
        if edge.receiver is None:
            continue
        own = [
            channel
            for channel in range(ring.channels)
            if tree_direction(edge, channel, ring) is not None
        ]
        left = iter([channel for channel in own if channel not in names])
        for stream, number, name in zip(edge.streams, at, names, strict=True):
            channel = next(left, None) if name is None else name
            if channel is not None:
                found.setdefault(channel, (stream, number))
    return found


def _chunk_sums(stream: Stream, at: int, protocol: Protocol) -> list[int]:
    """[chunks] data of so many, up to the first that is smaller than those before it."""
    first = stream.sends.get(at)
    total, sums = 0, list[int]()
    while (send := stream.sends.get(at)) is not None and first is not None:
        if send.protocol not in (None, protocol) or send.wire_bytes > first.wire_bytes:
            break
        total += data_bytes_of(protocol, send.wire_bytes)
        sums.append(total)
        if send.wire_bytes < first.wire_bytes or len(sums) == MOST_CHUNKS:
            break
        at += 1
    return sums


def slacks(ring: Ring, kind: CollectiveKind, total: int, protocol: Protocol) -> tuple[int, ...]:
    """What an all-reduce may lack of the most its sizes allow."""
    if protocol is Protocol.LL and kind is CollectiveKind.ALL_REDUCE:
        return LL_SLACK
    groups, rest = divmod(total, GRAIN_BYTES[Protocol.LL128])
    few = protocol is Protocol.LL128 and kind is CollectiveKind.ALL_REDUCE and not rest
    if few and groups < ring.ranks:
        # Chunks without a byte: those before them are as short as any are cut.
        return 0, total - groups * LEAST_CHUNK_BYTES
    return (0,)


def totals_of_room(ring: Ring, kind: CollectiveKind, room_bytes: int) -> list[int]:
    """Bytes of tensors, reduced or broadcast, whose distinct chunks, on all channels together, take
    LL128 groups of just so much room, the largest first. Whether the sizes of each channel fit is
    not looked at."""
    reduces = kind is CollectiveKind.ALL_REDUCE
    if ring.channels == 1 and (ring.ranks == 2 or not reduces):
        return []
    senders = [e.sender for e in ring.around if reduces or (e.sender + 1) % ring.ranks]
    extra = ring.extra_sends if reduces else 0
    found: set[int] = set()
    for rule in ring.rules if senders else ():
        edge = _EdgeInGroups(kind, rule, ring.ranks, ring.channels, senders[0], extra)
        found.update(_totals_on(edge, room_bytes))
    return sorted(found, reverse=True)


class _EdgeInGroups(NamedTuple):
    """One edge of a ring, which carries a collective in LL128."""

    kind: CollectiveKind
    era: NcclEra
    ranks: int
    channels: int
    sender: int
    extra_sends: int

    def room(self, total: int) -> int:
        """Data bytes that the groups of all distinct chunks could hold."""
        schedule = collective(
            self.kind,
            total,
            sender=self.sender,
            element_bytes=4 if total % 4 == 0 else 1,
            extra_sends=self.extra_sends,
            ranks=self.ranks,
            channels=self.channels,
            protocol=Protocol.LL128,
            era=self.era,
        )
        sends = (send for channel in schedule for send in channel)
        chunks = {(send.channel, send.loop, send.chunk): send.wire_bytes for send in sends}
        return sum(data_bytes_of(Protocol.LL128, size) for size in chunks.values())

    def least(self, room_bytes: int, most: int) -> int:
        """The smallest total, in steps, that takes as much room; `most` where none below does."""
        low, high = 0, most
        while low + 1 < high:
            middle = (low + high) // 2
            if self.room(middle * STEP_BYTES) >= room_bytes:
                high = middle
            else:
                low = middle
        return high


@lru_cache(maxsize=4096)
def _totals_on(edge: _EdgeInGroups, room_bytes: int) -> tuple[int, ...]:
    """The room grows with the total: those of one room are next to each other."""
    most = room_bytes // STEP_BYTES + 1
    start, stop = edge.least(room_bytes, most), edge.least(room_bytes + 1, most)
    step = max(1, (stop - start) // MOST_SIZES)
    return tuple(n * STEP_BYTES for n in range(start, stop, step))
