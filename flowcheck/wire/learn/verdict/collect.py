"""Cuts become collectives with results, sources, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flowcheck.findings.catalog.collective_evidence import (
    BEGINNING_UNTOLD,
    CHUNK_PLACES_OPEN,
    COPIES_DIFFER,
    END_BY_CONTENT,
    KIND_FROM_SIZES,
    NO_ADDED_STEP,
    READINGS_UNTRIED,
    SIZE_AMID_UNREAD,
    SIZE_BESIDE_LOST_RING,
    SIZE_OF_LOST_SENDS,
    WEIGHTS_SPREAD_OPEN,
    WIDER_ELEMENTS,
)
from flowcheck.findings.catalog.job_learning import BUCKET_BY_ORDER
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.p2p import SOURCE, Completion, Parcel
from flowcheck.wire.learn.cuts.place import (
    WHOLE_BYTES,
    Canvas,
    Placements,
    copies_differ,
    paint,
    put_together,
    ranges_of,
    result_bytes,
    seen_once,
    sources_of,
)
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.reading import Collective, Deferred, LinkSeen, Placement, Put, RingSeen
from flowcheck.wire.learn.search.begins import beginnings
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.evidence import added_step_told, counted
from flowcheck.wire.learn.search.pairs import completions
from flowcheck.wire.learn.trainer.element_size import (
    SIZED,
    element_size_told,
    in_start_up,
)
from flowcheck.wire.learn.trainer.habits import BUCKET, WEIGHTS
from flowcheck.wire.learn.trainer.iteration import disputed
from flowcheck.wire.learn.trainer.widths import as_wide
from flowcheck.wire.learn.verdict.doubt import assumptions, doubts_about, loses, unread_since
from flowcheck.wire.learn.verdict.ends import Ends, open_range, places_open, uncover_end


@dataclass(frozen=True, slots=True)
class Found:
    """The collectives of one communicator, and what completed them."""

    collectives: tuple[Collective, ...]
    completions: dict[int, Completion]
    counted: int
    """How many of the first cuts begin where the count of all sends says."""
    added_told: bool
    """The ring step that a patched trainer adds, if any, is borne out."""
    untold: frozenset[int] = frozenset()
    """Indices of collectives that contradict themselves: what was seen is something else."""
    untold_sends: int = 0
    """Sends seen of these."""


def collect(
    communicator: Communicator,
    number: int,
    p2p: Sequence[Stream],
    *,
    apart: bool = False,
    broken_off: bool = False,
    results: bool = True,
    goes_on: bool = False,
) -> Found:
    """Results of all collectives of a communicator. `apart`: connections beside it that lost
    sends were read as another communicator, but may be channels of this one. `broken_off`: not
    every reading was tried. `results`: False: nobody asks for those of gradients, whose bytes are
    then not looked at but where their sends begin. `goes_on`: what is on its way is read again
    once more of it came."""
    ring = communicator.ring
    cuts = in_start_up(communicator.habits, communicator.cuts.found)
    proposed = completions(ring, cuts, p2p)
    added = not ring.extra_sends or added_step_told(ring, cuts)
    known = counted(ring, cuts)
    ends = Ends(communicator)
    sized_cuts = cuts[:known] if added and not proposed and not results else ()
    later = set() if results else _weights(communicator, cuts)
    unasked = _gradients(sized_cuts, ends) | _on_their_way(
        communicator, cuts if goes_on and not results else ()
    )
    painted = [
        _unpainted(cut, ring) if i in later | unasked else paint(cut, ring, added=added)
        for i, cut in enumerate(cuts)
    ]
    # One parcel that contradicts a byte seen unmasks them all: they are of the same habit.
    if any(not c.fits(painted[i][0]) for i, c in proposed.items()):
        proposed = {}
    unread_ns, lossy = unread_since(communicator), loses(communicator)
    begun = beginnings(ring, cuts, [canvas for canvas, _, _ in painted], known)
    either = disputed(cuts, communicator.habits.reduces)
    wide = as_wide(communicator.habits, cuts, ring)
    sized = element_size_told(communicator.habits, cuts, ring)
    collectives, told, since = list[Collective](), list[int](), 0
    for i, (cut, (canvas, streams, first_ns)) in enumerate(zip(cuts, painted, strict=True)):
        unsized = not sized and cut.op.meaning in SIZED
        if not cut.matched and (unsized or not cut.op.licensed):
            continue
        told.append(i)
        # A collective comes after the one before it, whenever its frames were seen.
        since = max(since, _next_seen(painted, i) if first_ns is None else first_ns)
        sources = [source_name(stream, cut.op.protocol) for stream in streams]
        if i in proposed:
            proposed[i].put(canvas)
            sources += [SOURCE] if proposed[i].ranges else []
        doubts = doubts_about(cut, communicator) + [SIZE_OF_LOST_SENDS()] * unsized
        if cut.op.kind is CollectiveKind.ALL_REDUCE and i not in begun:
            doubts.append(BEGINNING_UNTOLD())
        doubts += [SIZE_BESIDE_LOST_RING()] * (apart and not cut.op.licensed)
        doubts += [READINGS_UNTRIED()] * (broken_off and _reduces(cut) and not cut.op.licensed)
        if cut.op.kind is CollectiveKind.ALL_REDUCE and not added:
            doubts.append(NO_ADDED_STEP())
        assumed = assumptions(cut, communicator) + [BUCKET_BY_ORDER()] * (i in either)
        assumed += begun.get(i, ())
        assumed += [KIND_FROM_SIZES(cut.op.kind)] * (lossy and cut.op.open_size)
        assumed += [WIDER_ELEMENTS()] * (wide and cut.op.meaning == BUCKET)
        if unread_ns is not None and max(cut.times(ring), default=0) >= unread_ns:
            assumed.append(SIZE_AMID_UNREAD())
        if differing := canvas.conflicts + canvas.torn:
            assumed.append(COPIES_DIFFER(differing))
        open_places, by = _end(ends, i, cut, canvas, ring)
        doubts += open_places
        assumed += by
        collectives.append(
            _collective(
                communicator, cut, canvas, number, since, sources, doubts, assumed, i in later
            )
        )
    untold = contradictory([(cuts[i], painted[i][0]) for i in told])
    sends = sum(cuts[told[place]].matched for place in untold)
    return Found(tuple(collectives), proposed, known, added, untold, sends)


def contradictory(told: Sequence[tuple[Cut, Canvas]]) -> frozenset[int]:
    """Indices of those whose copies differ in more than damaged frames explain: in most bytes, or
    at all where nothing but their size says what they are, and nothing as large was seen elsewhere
    whose copies are the same."""
    pairs = [(cut, _differing(cut, canvas), canvas.compared) for cut, canvas in told]
    sound = {cut.op for cut, differing, compared in pairs if compared and not differing}
    found = set()
    for place, (cut, differing, compared) in enumerate(pairs):
        guessed = cut.op.open_size or not cut.op.licensed
        mostly = 2 * differing > compared > 0
        if mostly or (differing and guessed and cut.op not in sound):
            found.add(place)
    return frozenset(found)


def _differing(cut: Cut, canvas: Canvas) -> int:
    """Bytes of which two copies differ. What fills up the last line or group, of which one byte at
    least is data, may be another thing on every hop: where nothing tells the size of a tensor, or
    of the blocks that were gathered, it contradicts nothing."""
    op, grain = cut.op, GRAIN_BYTES[cut.op.protocol]
    if not op.sized_by_wire or grain == 1 or not canvas.disputed.any():
        return canvas.conflicts
    tail = (op.work_bytes - 1) // grain * grain
    return int(canvas.disputed.reshape(-1, op.work_bytes)[:, : tail + 1].sum())


def _end(
    ends: Ends, i: int, cut: Cut, canvas: Canvas, ring: Ring
) -> tuple[list[Finding], list[Finding]]:
    """(doubts, assumptions) about where the result of cut `i` ends, which is uncovered where
    nothing tells."""
    if ends.spread_open(cut):
        canvas.clear()
        return [WEIGHTS_SPREAD_OPEN()], []
    if ends.group_open(cut):
        uncover_end(canvas, cut.op.protocol)
    if not ends.open(i, canvas):
        return [], [END_BY_CONTENT()] * ends.assumed(i, canvas)
    if places_open(cut, ring):
        return [CHUNK_PLACES_OPEN()], []
    uncover_end(canvas, cut.op.protocol)
    return [], [open_range(cut, ring)]


def _gradients(cuts: Sequence[Cut], ends: Ends) -> set[int]:
    """Indices of the large buckets whose sizes the trainer's plan tells."""
    return {
        i
        for i, cut in enumerate(cuts)
        if cut.op.meaning == BUCKET and cut.op.licensed and ends.told(i)
        if cut.op.work_bytes > WHOLE_BYTES
    }


def _weights(communicator: Communicator, cuts: Sequence[Cut]) -> set[int]:
    """Indices of the large broadcasts of weights of which all was seen: what they hold is put
    together once it is asked for. Where several dtypes are among them it is looked at here."""
    ring = communicator.ring
    if communicator.habits.types is not None or ring.sounding:
        return set()
    return {
        i
        for i, cut in enumerate(cuts)
        if cut.op.meaning == WEIGHTS and not cut.op.slack_is_open
        if result_bytes(cut, ring) > WHOLE_BYTES
        if seen_once(cut, ring) and not copies_differ(cut, ring)
    }


def _on_their_way(communicator: Communicator, cuts: Sequence[Cut]) -> set[int]:
    """Indices of large broadcasts of weights, and of large buckets, of which not all was seen.
    Weights behind which a gradient came are not on their way any more: what lacks of them is
    lost."""
    ring = communicator.ring
    sums = [i for i, cut in enumerate(cuts) if cut.op.meaning == BUCKET and cut.matched]
    gone = max(sums, default=0)
    return {
        i
        for i, cut in enumerate(cuts)
        if result_bytes(cut, ring) > WHOLE_BYTES
        if (cut.op.meaning == WEIGHTS and i >= gone and not seen_once(cut, ring))
        or (cut.op.meaning == BUCKET and cut.op.licensed and cut.lost)
    }


def _deferred(cut: Cut, ring: Ring) -> Deferred:
    def make(put: Put) -> bool:
        if (alike := put_together(cut, ring, put)) is not None:
            return alike
        canvas, _, _ = paint(cut, ring)
        put(0, canvas.result)
        return canvas.whole

    return Deferred(result_bytes(cut, ring), make, partial(sources_of, cut, ring))


def _unpainted(cut: Cut, ring: Ring) -> tuple[Canvas, tuple[Stream, ...], int | None]:
    """As `paint`, without the result."""
    canvas = Canvas(0)
    canvas.conflicts = int(copies_differ(cut, ring))
    streams = {id(stream): stream for stream, _, _ in cut.rows(ring)}
    return canvas, tuple(streams.values()), min(cut.times(ring), default=None)


def _reduces(cut: Cut) -> bool:
    return cut.op.kind is CollectiveKind.ALL_REDUCE


def _next_seen(painted: Sequence[tuple[Canvas, tuple[Stream, ...], int | None]], i: int) -> int:
    """When the first collective after `i` of which something was seen began."""
    return next((at for _, _, at in painted[i:] if at is not None), 0)


def source_name(stream: Stream, protocol: Protocol) -> str:
    """Short, for people: the last digits of both addresses."""
    key = stream.key
    return f"{short(key.source)}->{short(key.destination)} {protocol}"


def short(address: str) -> str:
    """The last group of an address."""
    return address.replace(".", ":").rsplit(":", 1)[-1][-4:]


def _collective(
    communicator: Communicator,
    cut: Cut,
    canvas: Canvas,
    number: int,
    first_ns: int,
    sources: Sequence[str],
    doubts: Sequence[Finding],
    assumed: Sequence[Finding],
    later: bool,
) -> Collective:
    """later: the result is put together once it is asked for."""
    ring, size = communicator.ring, result_bytes(cut, communicator.ring)
    if canvas.disputed.any():
        canvas.covered &= ~canvas.disputed
        canvas.result[canvas.disputed] = 0
    if cut.op.kind is CollectiveKind.ALL_REDUCE and any(
        not doubt.is_any_of(NO_ADDED_STEP) for doubt in doubts
    ):
        canvas.clear()  # nor is it sure where what was seen lies
    return Collective(
        index=0,
        kind=str(cut.op.kind),
        communicator=number,
        protocol=cut.op.protocol,
        ranks=ring.ranks,
        channels=_channels(cut),
        bytes=size,
        covered_bytes=size if later else int(np.count_nonzero(canvas.covered)),
        missing=() if later else canvas.missing() if canvas.size_bytes == size else ((0, size),),
        result=canvas.result,
        conflicts=canvas.conflicts + canvas.torn,
        torn=canvas.torn,
        differing=tuple(canvas.differing),
        sources=tuple(dict.fromkeys(sources)),
        assumed=tuple(dict.fromkeys((*doubts, *assumed))),
        first_ns=first_ns,
        placements=Placements(cut, ring),
        meaning=cut.op.meaning,
        doubtful=bool(doubts),
        ring=_ring(cut, ring),
        algorithm=cut.op.algorithm,
        deferred=_deferred(cut, ring) if later else None,
    )


def _channels(cut: Cut) -> int:
    """Those that carry something on any connection mirrored: of two trees on several channels each
    link has those of its own tree alone."""
    return len({c for schedule in cut.schedules for c, sends in enumerate(schedule) if sends}) or 1


def _ring(cut: Cut, ring: Ring) -> RingSeen:
    return RingSeen(
        channels=ring.channels,
        gpus=ring.gpus,
        element_bytes=cut.op.element_bytes,
        extra_sends=ring.extra_sends,
        rules=cut.rules,
        links=tuple(
            LinkSeen(
                senders=edge.writers,
                receiver=edge.receiver,
                trees=edge.trees,
                channels=tuple(
                    (name, stream.queue_pairs or (stream.key,))
                    for name, stream in zip(names, edge.streams, strict=True)
                ),
            )
            for edge, names in zip(ring.edges, cut.channels, strict=True)
        ),
    )


def parcels_left(streams: Sequence[Stream], first_communicator: int) -> list[Collective]:
    """Every point-to-point send as a collective of its own; a connection that carried empty sends
    alone may as well be a channel of a ring that had nothing to do."""
    found: list[Collective] = []
    for stream in streams:
        if not any(send.wire_bytes for send in stream.sends.values()):
            continue
        for number in sorted(stream.sends):
            send = stream.sends[number]
            data, seen = Parcel(stream, ((0, send),), (send.wire_bytes,), number).content()
            found.append(
                Collective(
                    index=0,
                    kind="send_recv",
                    communicator=first_communicator,
                    protocol=Protocol.SIMPLE,
                    ranks=2,
                    channels=1,
                    bytes=len(data),
                    covered_bytes=int(seen.sum()),
                    missing=ranges_of(~seen),
                    result=np.where(seen, data, 0).astype(np.uint8),
                    conflicts=0,
                    sources=(source_name(stream, Protocol.SIMPLE),),
                    assumed=(),
                    first_ns=send.message.first_ns,
                    placements=(
                        Placement(
                            flow=stream.key,
                            number=number,
                            first_psn=send.message.first_psn,
                            protocol=Protocol.SIMPLE,
                            wire_bytes=send.wire_bytes,
                            start_byte=0,
                            data_bytes=send.wire_bytes,
                            final=True,
                        ),
                    ),
                )
            )
    return found
