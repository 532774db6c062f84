"""Sharded training (FSDP, ZeRO): parameters gathered over and over, gradients reduce-scattered.

A reduce-scatter has the sizes of an all-gather; of two ranks, two of either have those of an
all-reduce. Content tells: parameters are gathered for the forward and again for the backward,
unchanged; and of more than two ranks, what is gathered is forwarded as it came.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise, product

from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    NcclEra,
    Protocol,
    data_bytes_of,
    wire_bytes,
)
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.candidates import Positions
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.echo import varied
from flowcheck.wire.learn.cuts.place import Canvas, paint, unpacked
from flowcheck.wire.learn.cuts.purse import Purse
from flowcheck.wire.learn.flows.channels import mark, marks_of
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.rings import Ring, rings
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_guesses
from flowcheck.wire.learn.search.heads import headed
from flowcheck.wire.learn.search.quiet import FIRST_HALF, skipped, starts

LOOKED_AT_BYTES = 1920
"""Of a send's data: whole groups of LL128, and more than chance makes equal."""
MOST_BEGINS = 4
"""Pauses behind which a stream is read whose start was not seen."""
ENOUGH_AGAIN = 2
ENOUGH_BYTES = 32
GATHERED, SCATTERED = "gathered parameters", "gradients, each rank's sum stays with it"
GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def gathers_again(streams: Sequence[Stream]) -> bool:
    """Several sends of each connection that carries large ones hold what an earlier one held."""
    counts = [
        sum(n - 1 for n in Counter(filter(None, map(_mark, stream.sends.values()))).values())
        for stream in streams
    ]
    return len(streams) > 1 and sum(counts) >= ENOUGH_AGAIN * len(streams)


def _mark(send: SendSeen) -> bytes:
    """Of what a send holds; empty where too little of it was seen, or is different."""
    protocol = send.protocol or Protocol.SIMPLE
    if not send.wire_bytes or send.message.missing or send.message.conflicts:
        return b""
    size = min(LOOKED_AT_BYTES, data_bytes_of(protocol, send.wire_bytes))
    wide = min(send.wire_bytes, wire_bytes(protocol, size))
    whole = replace(send.message, wire_bytes=wide, payload=send.message.payload[:wide])
    data, seen = unpacked(replace(send, message=whole, wire_bytes=wide), protocol, size)
    words = data[: size // 4 * 4].view("<u4")
    if not seen.all() or not varied(words):
        return b""
    return hashlib.sha256(data.tobytes()).digest() + send.wire_bytes.to_bytes(8, "little")


def read_gathers(group: Group, purse: Purse, rules: tuple[NcclEra, ...]) -> Communicator | None:
    """The likeliest ring of a group, and what it gathered and scattered: from its start on, or
    behind one of the pauses between steps; None: it forms no ring."""
    guesses = [replace(ring, gathers=True) for ring in _likeliest(rings(group, rules))]
    if not guesses:
        return None
    one = guesses[0]
    pauses = () if one.from_start else islice(starts(one, share=FIRST_HALF), MOST_BEGINS)
    begins: list[Positions] = [*pauses, ()]
    ranks = _ranks_forwarding(one)
    likely = [ring for ring in guesses if ring.ranks == ranks]
    for tried, begin in product(filter(None, (likely, guesses)), begins):
        found = read_guesses([replace(ring, begin=begin) for ring in tried], purse)
        if found is not None and not found.cuts.unread:
            break
    if found is None:
        return None
    cuts = found.cuts
    if cuts.ring.begin:
        cuts = headed(replace(cuts, skipped=skipped(cuts.ring, cuts.ring.begin)))
    return replace(found, cuts=replace(cuts, found=kinds_told(cuts.found, cuts.ring)))


def _ranks_forwarding(ring: Ring) -> int | None:
    """How many ranks there are by what is gathered: of R - 1 blocks a rank sends its own first and
    R - 2 in a row as they came; None: most rows do not say so. ring: any that the connections may
    be."""
    rows: Counter[int] = Counter()
    for one, two in pairwise(ring.around):
        brought = frozenset[int]().union(*map(marks_of, one.streams))
        for stream in two.streams:
            rows.update(_rows_forwarded(stream, brought))
    (blocks, count), *_ = rows.most_common(1) or [(0, 0)]
    return blocks + 2 if 2 * count > rows.total() > 1 else None


def _rows_forwarded(stream: Stream, brought: Collection[int]) -> Iterator[int]:
    """Blocks in each row of those that were sent as they came."""
    first = last = None
    for number, send in stream.sends.items():
        own = mark(send)
        if own in brought:
            first, last = number if first is None else first, number
        elif own is not None and first is not None and last is not None:
            protocol = stream.protocol_at(first) or stream.protocol
            yield (last - first) // sends_per_chunk(CollectiveKind.ALL_GATHER, protocol) + 1
            first = None


def _likeliest(guesses: Iterable[Ring]) -> list[Ring]:
    """Of each number of ranks those that leave the fewest hints aside: the sizes of gathers are the
    same wherever a ring begins."""
    ordered = sorted(guesses, key=lambda ring: ring.penalty)
    least: dict[tuple[int, int], int] = {}
    for ring in ordered:
        least.setdefault((ring.ranks, ring.extra_sends), ring.penalty)
    return [ring for ring in ordered if ring.penalty == least[ring.ranks, ring.extra_sends]]


def kinds_told(cuts: Sequence[Cut], ring: Ring) -> tuple[Cut, ...]:
    """Gathers and reduce-scatters by what they hold, named; as they are where nothing tells."""
    gathered = {
        i: gather
        for i, cut in enumerate(cuts)
        if cut.op.kind in GATHERS and not cut.op.licensed
        if (gather := _as(cut, ring, CollectiveKind.ALL_GATHER, GATHERED)) is not None
    }
    painted = {i: paint(cut, ring)[0] for i, cut in gathered.items()}
    hashes = {
        i: hashlib.sha256(canvas.result.tobytes()).digest()
        for i, canvas in painted.items()
        if canvas.whole and canvas.result.any()
    }
    often = Counter(hashes.values())
    again = {cuts[i].op.work_bytes for i, mark in hashes.items() if often[mark] > 1}
    found = list(cuts)
    for i, cut in gathered.items():
        twice = often[hashes.get(i, b"")] > 1
        once = ring.ranks == 2 and cut.op.work_bytes in again and not twice
        if once or _differ_early(cut, painted[i], ring):
            found[i] = _as(cut, ring, CollectiveKind.REDUCE_SCATTER, SCATTERED) or found[i]
        elif twice or _forwarded(cut, ring):
            found[i] = cut
    return tuple(found)


def scattered(cuts: Sequence[Cut], ring: Ring) -> tuple[Cut, ...]:
    """Reduce-scatters that were taken for gathers: the copies of a block differ, as sums do on
    their way."""
    found = []
    for cut in cuts:
        gather = cut.op.kind is CollectiveKind.ALL_GATHER and not cut.op.licensed
        differs = gather and _differ_early(cut, paint(cut, ring)[0], ring)
        other = differs and _as(cut, ring, CollectiveKind.REDUCE_SCATTER, cut.op.meaning)
        found.append(other or cut)
    return tuple(found)


def _as(cut: Cut, ring: Ring, kind: CollectiveKind, meaning: str) -> Cut | None:
    """None if that would be another one on the wire."""
    return cut.reread(replace(cut.op, kind=kind, meaning=meaning), ring)


def _differ_early(cut: Cut, canvas: Canvas, ring: Ring) -> bool:
    """Copies of a block differ from its beginning on, and not only in what fills its end up."""
    size = cut.op.work_bytes
    disputed = canvas.disputed.reshape(ring.ranks, size)
    return bool(disputed[:, : max(ENOUGH_BYTES, size - GRAIN_BYTES[cut.op.protocol])].any())


def _forwarded(cut: Cut, ring: Ring) -> bool:
    """A block was mirrored as it came and as it was sent on."""
    starts = Counter(
        send.start_byte
        for stream, number, send in cut.sends(ring)
        if number in stream.sends and send.data_bytes
    )
    return any(count > 1 for count in starts.values())
