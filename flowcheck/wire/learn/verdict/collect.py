"""Cuts become collectives with results, sources, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.collective_evidence import (
    BEGINNING_UNTOLD,
    CHUNK_PLACES_OPEN,
    COPIES_DIFFER,
    END_BY_CONTENT,
    END_OPEN,
    NO_ADDED_STEP,
    READINGS_UNTRIED,
    SIZE_AMID_UNREAD,
    SIZE_BESIDE_LOST_RING,
    WIDER_ELEMENTS,
)
from flowcheck.findings.catalog.job_learning import BUCKET_BY_ORDER
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.p2p import SOURCE, Completion, Parcel
from flowcheck.wire.learn.cuts.place import (
    WHOLE_BYTES,
    Canvas,
    Placements,
    copies_differ,
    paint,
    ranges_of,
    result_bytes,
    seen_once,
)
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.reading import Collective, Deferred, LinkSeen, Placement, RingSeen
from flowcheck.wire.learn.search.begins import beginnings
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.evidence import added_step_told, counted
from flowcheck.wire.learn.search.pairs import completions
from flowcheck.wire.learn.trainer.habits import BUCKET, WEIGHTS
from flowcheck.wire.learn.trainer.iteration import disputed
from flowcheck.wire.learn.trainer.widths import as_wide
from flowcheck.wire.learn.verdict.doubt import assumptions, doubts_about, unread_since
from flowcheck.wire.learn.verdict.ends import Ends, places_open, uncover_end


@dataclass(frozen=True, slots=True)
class Found:
    """The collectives of one communicator, and what completed them."""

    collectives: tuple[Collective, ...]
    completions: dict[int, Completion]
    counted: int
    """How many of the first cuts begin where the count of all sends says."""
    added_told: bool
    """The ring step that a patched trainer adds, if any, is borne out."""


def collect(
    communicator: Communicator,
    number: int,
    p2p: Sequence[Stream],
    *,
    apart: bool = False,
    broken_off: bool = False,
    results: bool = True,
) -> Found:
    """Results of all collectives of a communicator. `apart`: connections beside it that lost
    sends were read as another communicator, but may be channels of this one. `broken_off`: not
    every reading was tried. `results`: False: nobody asks for those of gradients, whose bytes are
    then not looked at but where their sends begin."""
    ring, cuts = communicator.ring, communicator.cuts.found
    proposed = completions(ring, cuts, p2p)
    added = not ring.extra_sends or added_step_told(ring, cuts)
    known = counted(ring, cuts)
    ends = Ends(communicator)
    left_out = set() if results or proposed or not added else _gradients(cuts[:known], ends)
    later = set() if results else _weights(communicator)
    painted = [
        _unpainted(cut, ring) if i in left_out | later else paint(cut, ring, added=added)
        for i, cut in enumerate(cuts)
    ]
    # One parcel that contradicts a byte seen unmasks them all: they are of the same habit.
    if any(not c.fits(painted[i][0]) for i, c in proposed.items()):
        proposed = {}
    unread_ns = unread_since(communicator)
    begun = beginnings(ring, cuts, [canvas for canvas, _, _ in painted], known)
    either = disputed(cuts, communicator.habits.reduces)
    wide = as_wide(communicator.habits, cuts, ring)
    collectives = []
    since = 0
    for i, (cut, (canvas, streams, first_ns)) in enumerate(zip(cuts, painted, strict=True)):
        if not cut.matched and not cut.op.licensed:
            continue
        # A collective comes after the one before it, whenever its frames were seen.
        since = max(since, _next_seen(painted, i) if first_ns is None else first_ns)
        sources = [source_name(stream, cut.op.protocol) for stream in streams]
        if i in proposed:
            proposed[i].put(canvas)
            sources += [SOURCE] if proposed[i].ranges else []
        doubts = doubts_about(cut, communicator)
        if cut.op.kind is CollectiveKind.ALL_REDUCE and i not in begun:
            doubts.append(BEGINNING_UNTOLD())
        if not cut.op.licensed:
            doubts += [SIZE_BESIDE_LOST_RING()] * apart
            doubts += [READINGS_UNTRIED()] * (broken_off and _reduces(cut))
        if cut.op.kind is CollectiveKind.ALL_REDUCE and not added:
            doubts.append(NO_ADDED_STEP())
        assumed = assumptions(cut, communicator) + [BUCKET_BY_ORDER()] * (i in either)
        assumed += begun.get(i, ())
        assumed += [WIDER_ELEMENTS()] * (wide and cut.op.meaning == BUCKET)
        if unread_ns is not None and max(cut.times(ring), default=0) >= unread_ns:
            assumed.append(SIZE_AMID_UNREAD())
        if differing := canvas.conflicts + canvas.torn:
            assumed.append(COPIES_DIFFER(differing))
        if ends.open(i, canvas) and places_open(cut, ring):
            doubts.append(CHUNK_PLACES_OPEN())
        elif ends.open(i, canvas):
            uncover_end(canvas, cut.op.protocol)
            assumed.append(END_OPEN())
        elif ends.assumed(i, canvas):
            assumed.append(END_BY_CONTENT())
        deferred = _deferred(cut, ring) if i in later else None
        collectives.append(
            _collective(
                communicator, cut, canvas, number, since, sources, doubts, assumed, deferred
            )
        )
    return Found(tuple(collectives), proposed, known, added)


def _gradients(cuts: Sequence[Cut], ends: Ends) -> set[int]:
    """Indices of the large buckets whose sizes the trainer's plan tells."""
    return {
        i
        for i, cut in enumerate(cuts)
        if cut.op.meaning == BUCKET and cut.op.licensed and ends.told(i)
        if cut.op.work_bytes > WHOLE_BYTES
    }


def _weights(communicator: Communicator) -> set[int]:
    """Indices of the large broadcasts of weights of which all was seen: what they hold is put
    together once it is asked for. Where several dtypes are among them it is looked at here."""
    cuts, ring = communicator.cuts.found, communicator.ring
    if communicator.habits.types is not None or ring.sounding:
        return set()
    return {
        i
        for i, cut in enumerate(cuts)
        if cut.op.meaning == WEIGHTS and cut.op.protocol is Protocol.SIMPLE
        if result_bytes(cut, ring) > WHOLE_BYTES
        if seen_once(cut, ring) and not copies_differ(cut, ring)
    }


def _deferred(cut: Cut, ring: Ring) -> Deferred:
    def make() -> tuple[NDArray[np.uint8], bool]:
        canvas, _, _ = paint(cut, ring)
        return canvas.result, not canvas.conflicts and bool(canvas.covered.all())

    return Deferred(result_bytes(cut, ring), make)


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
    deferred: Deferred | None,
) -> Collective:
    ring, size = communicator.ring, result_bytes(cut, communicator.ring)
    if canvas.disputed.any():
        canvas.covered &= ~canvas.disputed
        canvas.result[canvas.disputed] = 0
    if cut.op.kind is CollectiveKind.ALL_REDUCE and any(
        not doubt.of(NO_ADDED_STEP) for doubt in doubts
    ):
        canvas.clear()  # nor is it sure where what was seen lies
    return Collective(
        index=0,
        kind=str(cut.op.kind),
        communicator=number,
        protocol=cut.op.protocol,
        ranks=ring.ranks,
        channels=max(sum(map(bool, schedule)) for schedule in cut.schedules) or 1,
        bytes=size,
        covered_bytes=size if deferred else int(np.count_nonzero(canvas.covered)),
        missing=() if deferred else canvas.missing() if canvas.size_bytes else ((0, size),),
        result=canvas.result,
        conflicts=canvas.conflicts + canvas.torn,
        sources=tuple(dict.fromkeys(sources)),
        assumed=tuple(dict.fromkeys((*doubts, *assumed))),
        first_ns=first_ns,
        placements=Placements(cut, ring),
        meaning=cut.op.meaning,
        doubtful=bool(doubts),
        ring=_ring(cut, ring),
        tree=cut.op.tree,
        deferred=deferred,
    )


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
